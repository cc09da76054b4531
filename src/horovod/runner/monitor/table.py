"""The table as lines of text: a pure function of figures, width and height."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from horovod.runner.monitor.figures import Figures, Total, Trouble, total_of, worst_first

GAP = "  "
LONGEST_HOST = 24
LEAST_ROWS = 4  # title, header, something, total

_BOLD, _DIM, _UNDERLINED, _RED, _YELLOW = "1", "2", "4", "31", "33"
_COLOURS = {
    Trouble.NONE: "",
    Trouble.LEFT: _DIM,
    Trouble.ABSENT: _YELLOW,
    Trouble.SILENT: _RED,
    Trouble.FAILED: _RED,
}


class Style(NamedTuple):
    """What the place where the table appears can show.

    Attributes:
        width: columns; no line is wider.
        height: lines at most.
        colours: ANSI colours may be used.
        ellipsis: stands for what was left out.
    """

    width: int
    height: int
    colours: bool = False
    ellipsis: str = "…"


class _Column(NamedTuple):
    title: str
    cell: Callable[[Figures | Total], str]
    least: int  # columns, so that the table does not jump
    keep: int  # in a narrow terminal the columns with the smallest numbers go first
    left: bool = False
    optional: bool = False  # left out while all its cells are empty


def _text(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def quantity(value: float) -> str:
    """A number of bytes with three digits and a decimal unit, e.g. `1.25 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if value < 999.5 or unit == "PB":
            break
        value /= 1000
    digits = 0 if unit == "B" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


def rate(value: float) -> str:
    """A number per second with about three digits."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 0.0995 else 3
    return f"{value:.{digits}f}"


def _rank(row: Figures | Total) -> str:
    return str(row.rank) if isinstance(row, Figures) else "all"


def _host(row: Figures | Total) -> str:
    if isinstance(row, Figures):
        return row.host if len(row.host) <= LONGEST_HOST else f"{row.host[: LONGEST_HOST - 2]}.."
    return f"{row.hosts} host{'s' if row.hosts != 1 else ''}"


def _late(row: Figures | Total) -> str:
    return f"{row.late:.1f} s" if isinstance(row, Figures) and row.late >= 0.05 else ""


_COLUMNS = (
    _Column("rank", _rank, 4, 100),
    _Column("host", _host, 4, 4, left=True),
    _Column("step", lambda row: _text(row.step, "{:.0f}".format), 6, 7),
    _Column("step/s", lambda row: _text(row.step_rate, rate), 6, 9),
    _Column("bytes/s", lambda row: _text(row.bytes_rate, quantity), 8, 5),
    _Column("waiting", lambda row: _text(row.waiting, "{:.0%}".format), 7, 8),
    _Column("in flight", lambda row: _text(row.in_flight, "{:.0f}".format), 9, 1),
    _Column("memory", lambda row: _text(row.memory, quantity), 7, 3),
    _Column("stalls", lambda row: _text(row.stalls, "{:.0f}".format), 6, 2),
    _Column("late", _late, 5, 6, optional=True),
    _Column("", lambda row: row.state, 0, 10, left=True, optional=True),
)


def render(rows: Sequence[Figures], title: str, style: Style) -> list[str]:
    """The table: title, names of the columns, ranks, total.

    All ranks stand in their order if there is room; else the worst come first, then how many more there are.

    Args:
        rows: all ranks by number.
        title: first line.
        style: how wide and high it may be; at least one line is made.
    """
    total = total_of(rows)
    room = max(1, style.height) - 3
    shown = list(rows)
    more: list[str] = []
    if room < len(rows):
        count = max(0, room - 1)
        shown = worst_first(rows)[:count]
        hidden = len(rows) - count
        more = [f"{style.ellipsis} {hidden} {'more' if count else 'ranks'}"] if room > 0 else []
    columns = _fitting([*shown, total], style.width)
    widths = _widths(columns, [*shown, total])
    paint = _paint if style.colours else _plain
    lines = [
        paint(_clip(title, style), _BOLD),
        paint(_clip(_header(columns, widths, style), style), _UNDERLINED),
        *(_row(row, columns, widths, style) for row in shown),
        *(paint(_clip(line, style), _DIM) for line in more),
        paint(
            _clip(_line([column.cell(total) for column in columns], columns, widths), style), _BOLD
        ),
    ]
    # Too low for a whole table: the total is worth most, then what its numbers mean.
    return (
        lines
        if style.height >= len(lines)
        else [lines[-1], *lines[1:-1]][: max(1, style.height)][::-1]
    )


def _header(columns: Sequence[_Column], widths: Sequence[int], style: Style) -> str:
    text = _line([column.title for column in columns], columns, widths)
    # An underlined header reaches to the end of the table.
    return text.ljust(sum(widths) + len(GAP) * (len(widths) - 1)) if style.colours else text


def _row(row: Figures, columns: Sequence[_Column], widths: Sequence[int], style: Style) -> str:
    text = _clip(_line([column.cell(row) for column in columns], columns, widths), style)
    colour = _COLOURS[row.trouble] or (_YELLOW if row.stalls else "")
    return _paint(text, colour) if style.colours and colour else text


def _fitting(rows: Sequence[Figures | Total], width: int) -> list[_Column]:
    """The columns that fit, without those that have nothing to say."""
    columns = [
        column
        for column in _COLUMNS
        if not column.optional or any(column.cell(row) for row in rows)
    ]
    while len(columns) > 1:
        widths = _widths(columns, rows)
        if sum(widths) + len(GAP) * (len(widths) - 1) <= width:
            break
        columns.remove(min(columns, key=lambda column: column.keep))
    return columns


def _widths(columns: Sequence[_Column], rows: Sequence[Figures | Total]) -> list[int]:
    return [
        max(column.least, len(column.title), *(len(column.cell(row)) for row in rows))
        for column in columns
    ]


def _line(cells: Sequence[str], columns: Sequence[_Column], widths: Sequence[int]) -> str:
    return GAP.join(
        cell.ljust(width) if column.left else cell.rjust(width)
        for cell, column, width in zip(cells, columns, widths, strict=True)
    ).rstrip()


def _clip(text: str, style: Style) -> str:
    return text if len(text) <= style.width else text[: max(0, style.width)]


def _paint(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m"


def _plain(text: str, _code: str) -> str:
    return text
