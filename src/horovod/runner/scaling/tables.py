"""Tables of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as needed; all but the last are right-aligned."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    last = len(headings) - 1
    return "\n".join(
        "  ".join(
            cell if i == last else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
