"""How ranks spent their time, as HTML: bars for a few ranks, columns for many."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from horovod.runner.timeline.figures import RankShare
from horovod.runner.timeline.markup import legend, table, text
from horovod.runner.timeline.units import duration, percent, shown

FEW = 32  # up to that many ranks each has a bar with its name
MOST_COLUMNS = 512
EXTREMES = 5
MOST_HOST_NAMES = 8
PARTS = ("compute", "communicating", "waiting")
NAMES = {
    "compute": "compute",
    "communicating": "communicating, program blocked",
    "waiting": "waiting for others",
}
HEIGHT = 190


def rank_charts(shares: Sequence[RankShare], steps: int) -> str:
    """The chart that fits the number of ranks, with its legend; `steps` turns sums into times per step."""
    parts = legend((part, NAMES[part]) for part in PARTS)
    if len(shares) <= FEW:
        return parts + _bars(shares, steps) + _details(shares, steps)
    return parts + _columns(shares) + _extremes(shares) + _details(shares, steps)


def _bars(shares: Sequence[RankShare], steps: int) -> str:
    rows = []
    for share in shares:
        rows.append(
            f'<div class="name">rank {share.rank} <span class="muted">{text(share.host)}</span></div>'
        )
        segments = []
        for part in PARTS:
            value = share.share(getattr(share, part))
            inside = percent(value) if value >= 0.08 else ""
            segments.append(
                f'<span class="{part}" style="flex:{value:.5f} 1 0" data-tip="{_tip(share, part, steps)}">'
                f"{inside}</span>"
            )
        rows.append(f'<div class="stack">{"".join(segments)}</div>')
    return f'<div class="rows" id="rank-bars">{"".join(rows)}</div>'


def _tip(share: RankShare, part: str, steps: int) -> str:
    value = getattr(share, part)
    line = (
        f"rank {share.rank} on {shown(share.host)}\n{NAMES[part]}: "
        f"{duration(value / max(1, steps))} per step, "
        f"{percent(share.share(value))}"
    )
    if part == "waiting" and share.data_wait > 0:
        line += f"\nof it for data: {duration(share.data_wait / max(1, steps))}"
    return escape(line)


def binned(shares: Sequence[RankShare], most: int) -> list[list[RankShare]]:
    """At most `most` groups of neighbouring ranks."""
    width = -(-len(shares) // most)
    return [list(shares[i : i + width]) for i in range(0, len(shares), width)]


def _columns(shares: Sequence[RankShare]) -> str:
    groups = binned(shares, MOST_COLUMNS)
    gap = 0.15 if len(groups) <= 300 else 0.0
    marks = []
    for x, group in enumerate(groups):
        means = {part: sum(s.share(getattr(s, part)) for s in group) / len(group) for part in PARTS}
        who = f"rank {group[0].rank} on {shown(group[0].host)}"
        if len(group) > 1:
            who = f"ranks {group[0].rank} to {group[-1].rank}, mean"
        tip = who + "".join(f"\n{NAMES[part]}: {percent(means[part])}" for part in PARTS)
        low = 100.0
        rects = []
        for part in PARTS:
            height = 100 * means[part]
            low -= height
            rects.append(
                f'<rect class="{part}" x="{x + gap / 2:.3f}" y="{low:.2f}" width="{1 - gap:.3f}" '
                f'height="{height:.2f}"/>'
            )
        marks.append(f'<g data-tip="{escape(tip)}">{"".join(rects)}</g>')
    return (
        '<div class="plot" id="rank-columns">'
        f'<div class="axis axis-y" style="height:{HEIGHT}px"><span>100 %</span><span>50 '
        f"%</span><span>0</span></div>"
        f"<svg "
        f'viewBox="0 0 {len(groups)} 100" preserveAspectRatio="none" style="height:{HEIGHT}px" role="img" '
        f'aria-label="share of compute, communicating and waiting of each rank">{"".join(marks)}</svg>'
        f"{host_strip([s.host for s in shares])}"
        f'<div></div><div class="axis axis-x"><span>rank {shares[0].rank}</span><span>share of the '
        f"step time, one column "
        f"per rank</span><span>rank {shares[-1].rank}</span></div></div>"
    )


def host_strip(hosts: Sequence[str]) -> str:
    """The names of the hosts below columns that are ordered by rank."""
    runs = [(host, len(list(run))) for host, run in groupby(hosts)]
    if len(runs) < 2 or len(runs) > 128:
        return ""
    every = -(-len(runs) // MOST_HOST_NAMES)
    spans = []
    for place, (host, width) in enumerate(runs):
        label = escape(shown(host, 12)) if place % every == 0 else "&nbsp;"
        spans.append(f'<span style="flex:{width} 1 0" data-tip="host {text(host)}">{label}</span>')
    return f'<div class="hosts">{"".join(spans)}</div>'


def _extremes(shares: Sequence[RankShare]) -> str:
    ordered = sorted(shares, key=lambda s: s.share(s.waiting))
    least = _table("Wait least: the others wait for them", ordered[:EXTREMES])
    most = _table("Wait most", ordered[: -EXTREMES - 1 : -1])
    return f'<div class="columns" style="margin-top:16px">{least}{most}</div>'


def _table(caption: str, shares: Sequence[RankShare]) -> str:
    rows = [
        [
            str(s.rank),
            escape(shown(s.host, 24)),
            *(percent(s.share(getattr(s, part))) for part in PARTS),
        ]
        for s in shares
    ]
    return table(caption, ["rank", "host", "compute", "commun.", "waiting"], rows, texts=(0, 1))


def _details(shares: Sequence[RankShare], steps: int) -> str:
    rows = [
        [
            str(s.rank),
            escape(shown(s.host, 32)),
            *(duration(getattr(s, part) / max(1, steps)) for part in PARTS),
            duration(s.data_wait / max(1, steps)),
            duration(s.hidden / max(1, steps)) if s.from_callers else "unknown",
            duration(s.wall / max(1, steps)),
        ]
        for s in shares
    ]
    heads = [
        "rank",
        "host",
        "compute",
        "communicating",
        "waiting",
        "of it for data",
        "hidden comm.",
        "step",
    ]
    return (
        f"<details><summary>Figures of all ranks, per "
        f"step</summary>{table('', heads, rows, texts=(0, 1))}</details>"
    )
