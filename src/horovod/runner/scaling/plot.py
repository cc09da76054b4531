"""The speed-up over the number of ranks: as characters for a terminal, and as a PNG file."""

from __future__ import annotations

import importlib
import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.runner.scaling.report import Row, base_ranks
from horovod.runner.scaling.units import number_text

WIDTH, HEIGHT = 60, 14
INSTALL_TEXT = (
    "--plot needs matplotlib, which is not installed here: pip install 'horovod[plots]', or pip install "
    "matplotlib"
)


class _Marks(NamedTuple):
    measured: str
    ideal: str
    corner: str
    horizontal: str
    vertical: str
    tick: str


_UNICODE = _Marks("●", "·", "└", "─", "│", "┤")
_ASCII = _Marks("*", ".", "+", "-", "|", "+")


def text_plot(rows: Sequence[Row], encoding: str | None, width: int = WIDTH) -> str:
    """Speed-up over ranks, with the ideal; empty where fewer than two sizes can be compared.

    `encoding`: what the terminal takes; other than UTF-8 gets ASCII.
    """
    points = [(row.ranks, row.speed_up) for row in rows if row.speed_up is not None]
    if len(points) < 2:
        return ""
    marks = _UNICODE if (encoding or "").lower().replace("-", "") == "utf8" else _ASCII
    base, most = base_ranks(rows), max(ranks for ranks, _ in points)
    highest = max(most / base, *(speed_up for _, speed_up in points))
    grid = [[" "] * width for _ in range(HEIGHT)]

    def put(ranks: float, speed_up: float, mark: str) -> None:
        column = round((width - 1) * ranks / most)
        row = round((HEIGHT - 1) * speed_up / highest)
        grid[HEIGHT - 1 - row][column] = mark

    for column in range(width):
        ranks = column / (width - 1) * most
        if ranks >= base:
            put(ranks, ranks / base, marks.ideal)
    for ranks, speed_up in points:
        put(ranks, speed_up, marks.measured)
    lines = [f"speed-up   {marks.measured} measured   {marks.ideal} ideal"]
    labelled = {
        HEIGHT - 1 - round((HEIGHT - 1) * value / highest): value for value in _ticks(highest)
    }
    for index, cells in enumerate(grid):
        label = number_text(labelled[index]) if index in labelled else ""
        edge = marks.tick if index in labelled else marks.vertical
        lines.append(f"{label:>7} {edge}{''.join(cells).rstrip()}")
    lines.append(f"{'':>7} {marks.corner}{marks.horizontal * width}")
    lines.append(f"{'':>9}{_labels([ranks for ranks, _ in points], most, width)} ranks")
    return "\n".join(lines)


def _ticks(highest: float) -> list[float]:
    """Up to five round numbers from 0 to `highest`."""
    raw = highest / 4
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [step * i for i in range(int(highest / step + 1e-9) + 1)]


def _labels(ranks: Sequence[int], most: int, width: int) -> str:
    line = [" "] * (width + 8)
    free = 0
    for value in sorted(set(ranks)):
        text = str(value)
        column = max(0, round((width - 1) * value / most) - len(text) + 1)
        if column >= free:
            line[column : column + len(text)] = text
            free = column + len(text) + 1
    return "".join(line).rstrip()


def why_no_png(file: Path) -> str | None:
    """Why there can be no picture at `file`, if so; to be asked before the runs begin."""
    if file.suffix.lower() != ".png":
        return f"--plot: expected a file that ends in .png, found '{file}'"
    if not file.absolute().parent.is_dir():
        return f"--plot {file}: there is no folder {file.absolute().parent}"
    if importlib.util.find_spec("matplotlib") is None:
        return INSTALL_TEXT
    return None


def write_png(rows: Sequence[Row], title: str, file: Path) -> None:
    """Throughput beside the ideal, and efficiency, over the number of ranks.

    Raises:
        OSError: the file can't be written.
    """
    new_figure = importlib.import_module("matplotlib.figure").Figure  # optional, and slow to import
    points = [row for row in rows if row.throughput is not None]
    ranks = [row.ranks for row in points]
    values = [row.throughput.value for row in points if row.throughput is not None]
    base = values[0] / ranks[0]
    figure = new_figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(ranks, [base * n for n in ranks], "--", color="0.6", label="ideal")
    left.plot(ranks, values, "o-", color="#1f6fb4", label="measured")
    left.set_ylabel(points[0].throughput.unit_per_second if points[0].throughput else "")
    left.set_ylim(bottom=0)
    left.legend()
    efficiencies = [100 * row.efficiency for row in points if row.efficiency is not None]
    right.plot(ranks, efficiencies, "o-", color="#1f6fb4")
    right.axhline(100, linestyle="--", color="0.6")
    for x, y in zip(ranks, efficiencies, strict=True):
        right.annotate(f"{y:.0f} %", (x, y), (0, 8), textcoords="offset points", ha="center")
    right.set_ylabel("efficiency, %")
    right.set_ylim(0, max(115, 1.15 * max(efficiencies)))
    for axes in (left, right):
        axes.set_xlabel("ranks")
        axes.set_xticks(ranks)
        axes.set_xlim(0, 1.08 * max(ranks))
        axes.grid(visible=True, alpha=0.3)
    # A $ would begin a formula.
    figure.suptitle(title.replace("$", r"\$"), fontsize=11)
    figure.savefig(file, dpi=120)
