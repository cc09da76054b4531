"""How late each rank was in each step, as a picture whose pixels are the cells."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from itertools import groupby

from horovod.runner.timeline.figures import Lateness
from horovod.runner.timeline.markup import text
from horovod.runner.timeline.units import duration, shown

MOST_COLUMNS = 300
MOST_ROWS = 512
COLOUR = (226, 92, 30)
TALL, LOW, HEIGHT = 22, 2, 400  # of a row at most and at least, and of all rows if that fits
MOST_NAMES = 16


def png(alphas: Sequence[bytes], colour: tuple[int, int, int] = COLOUR) -> bytes:
    """A PNG file of one colour; `alphas` are the rows, one byte of opacity for each pixel."""
    raw = b"".join(b"\0" + b"".join(bytes((*colour, a)) for a in row) for row in alphas)
    header = struct.pack(">IIBBBBB", len(alphas[0]), len(alphas), 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def heatmap(lateness: Lateness, numbers: Sequence[int], hosts: Sequence[str]) -> str:
    """The picture with its axes, as HTML; nothing where nobody's arrival is known."""
    ranks = list(lateness.ranks)
    if len(ranks) < 2 or not lateness.matrix:
        return ""
    rows = _bins(len(ranks), MOST_ROWS)
    columns = _bins(len(lateness.matrix), MOST_COLUMNS)
    cells = [
        [
            max(lateness.matrix[c][ranks[r]] for c in range(*column) for r in range(*row))
            for column in columns
        ]
        for row in rows
    ]
    top = _top(cells)
    alphas = [
        bytes(
            0 if value <= lateness.threshold else min(255, max(12, round(255 * value / top)))
            for value in row
        )
        for row in cells
    ]
    picture = base64.b64encode(png(alphas)).decode()
    labels = "&#10;".join(
        f"rank {ranks[a]} on {text(hosts[ranks[a]])}"
        if b - a == 1
        else f"ranks {ranks[a]} to {ranks[b - 1]}"
        for a, b in rows
    )
    steps = " ".join(
        str(numbers[a]) if b - a == 1 else f"{numbers[a]}-{numbers[b - 1]}" for a, b in columns
    )
    height = min(TALL * len(rows), max(HEIGHT, LOW * len(rows)))
    return (
        '<h3>How far behind each rank was</h3><div class="plot" id="heatmap">'
        f'<div class="axis host-names" style="height:{height}px">{_names(ranks, hosts)}</div>'
        f'<img src="data:image/png;base64,{picture}" style="height:{height}px" data-top="{top:.1f}" '
        f'data-rows="{labels}" data-steps="{steps}" alt="lateness of each rank (down) in each step (across)">'
        f'<div></div><div class="axis axis-x"><span>step {numbers[0]}</span><span>{_scale(top)}</span>'
        f"<span>step {numbers[-1]}</span></div></div>"
    )


def _bins(number: int, most: int) -> list[tuple[int, int]]:
    width = -(-number // most)
    return [(i, min(i + width, number)) for i in range(0, number, width)]


def _top(cells: list[list[float]]) -> float:
    """What is drawn opaque: the latest, but not a single outlier that would make all else pale."""
    worst = sorted(max(row[c] for row in cells) for c in range(len(cells[0])))
    return max(worst[int(0.95 * (len(worst) - 1))], worst[-1] / 8, 1.0)


def _scale(top: float) -> str:
    red, green, blue = COLOUR
    ramp = f"linear-gradient(90deg, rgba({red},{green},{blue},0), rgb({red},{green},{blue}))"
    return (
        f'not behind <i style="display:inline-block;width:70px;height:10px;background:{ramp};'
        f'border:1px solid var(--line)"></i> {duration(top)} or more'
    )


def _names(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Names of ranks where there is room, else of hosts, beside the first row of each."""
    if len(ranks) <= MOST_NAMES:
        labels = [(i + 0.5, f"rank {rank}") for i, rank in enumerate(ranks)]
    else:
        labels = []
        place = 0
        for host, run in groupby(hosts[rank] for rank in ranks):
            width = len(list(run))
            labels.append((place + width / 2, shown(host, 16)))
            place += width
        if len(labels) == 1:
            step = len(ranks) / 8
            labels = [(i * step + 0.5, f"rank {ranks[int(i * step)]}") for i in range(8)]
        every = -(-len(labels) // MOST_NAMES)
        labels = labels[::every]
    return "".join(
        f'<span style="top:{100 * at / len(ranks):.2f}%">{text(label)}</span>'
        for at, label in labels
    )
