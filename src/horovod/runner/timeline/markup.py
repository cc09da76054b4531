"""Pieces of HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from horovod.runner.timeline.units import shown


def text(value: str) -> str:
    """Any text, made safe for HTML and free of characters that can't be shown."""
    return escape(shown(value, 10_000))


def legend(items: Iterable[tuple[str, str]]) -> str:
    """What colours mean: pairs of CSS class and label."""
    marks = "".join(f'<span><i class="{kind}"></i>{escape(label)}</span>' for kind, label in items)
    return f'<div class="legend">{marks}</div>'


def table(
    caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = (0,)
) -> str:
    """A table of cells that are HTML already; a cell that begins with <td is taken as it is.

    `texts` are the columns that hold texts. A column without a head holds bars, which narrow screens omit.
    """
    lines = [f"<caption>{escape(caption)}</caption>"] if caption else []
    heading = "".join(_head(head, text=i in texts) for i, head in enumerate(heads))
    lines.append(f"<thead><tr>{heading}</tr></thead><tbody>")
    for row in rows:
        cells = []
        for i, cell in enumerate(row):
            if cell.startswith("<td"):
                cells.append(cell)
            else:
                cells.append(f'<td class="text">{cell}</td>' if i in texts else f"<td>{cell}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table>{"".join(lines)}</tbody></table></div>'


def _head(label: str, *, text: bool) -> str:
    if not label:
        return '<th class="meter"></th>'
    return f'<th class="text">{escape(label)}</th>' if text else f"<th>{escape(label)}</th>"


def meter(share: float, kind: str = "") -> str:
    """A table cell with a bar; `share` from 0 to 1 of the cell."""
    width = 100 * min(1.0, max(0.0, share))
    return f'<td class="meter"><div class="{kind}" style="width:{width:.1f}%"></div></td>'


def long_cell(value: str, most: int = 64) -> str:
    """A table cell with a name that may be long; the whole name is its tip."""
    return f'<td class="text long" data-tip="{text(value)}">{escape(shown(value, most))}</td>'


def section(name: str, title: str, advice: str, body: str, *, urgent: bool = False) -> str:
    """A section with its one sentence of advice."""
    kind = "advice urgent" if urgent else "advice"
    return (
        f"<section "
        f'id="{name}"><h2>{escape(title)}</h2>\n<p class="{kind}">{escape(advice)}</p>\n{body}</section>\n'
    )
