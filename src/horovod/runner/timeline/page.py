"""The report as one HTML page that needs no other file and no network."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from horovod.runner.timeline import advice
from horovod.runner.timeline.figures import Figures
from horovod.runner.timeline.heatmap import heatmap
from horovod.runner.timeline.job import ranks_text
from horovod.runner.timeline.markup import legend, long_cell, meter, section, table, text
from horovod.runner.timeline.rank_charts import rank_charts
from horovod.runner.timeline.summary import headline, remarks
from horovod.runner.timeline.units import count, duration, percent, rate, shown, size

MOST_RANKING = 10
MOST_PENDING = 20
# Nothing is to be loaded from anywhere, whatever the names of tensors hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def page(figures: Figures) -> str:
    """The whole page."""
    texts = advice.sections(figures)
    bodies = {
        "time": ("Where the time goes", _time(figures)),
        "hidden": ("Communication hidden behind computation", _hidden(figures)),
        "slowest": ("The slowest rank", _slowest(figures)),
        "tensors": ("Tensors that were waited for longest", _tensors(figures)),
        "sizes": ("Bytes and algorithm bandwidth by size", _sizes(figures)),
        "fusion": ("Fusion", _fusion(figures)),
    }
    parts = []
    if figures.pending:
        urgent = any(pending.silent for pending in figures.pending)
        block = section(
            "pending",
            "When the recording ended",
            texts["pending"],
            _pending(figures),
            urgent=urgent,
        )
        parts.append(block)
    parts += [section(name, title, texts[name], body) for name, (title, body) in bodies.items()]
    if not figures.pending or not any(pending.silent for pending in figures.pending):
        parts = parts[bool(figures.pending) :] + parts[: bool(figures.pending)]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Timeline report: {escape(headline(figures))}</title>",
            f"<style>\n{_asset('page.css')}</style></head><body>",
            _head(figures),
            *parts,
            _remarks(figures),
            f'<div id="tip" role="status"></div>\n<script>\n{_asset("page.js")}</script>\n</body></html>\n',
        ]
    )


def _asset(name: str) -> str:
    return (files("horovod.runner.timeline") / name).read_text(encoding="utf-8")


def _head(figures: Figures) -> str:
    when = datetime.fromtimestamp(figures.start / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    whose = "all ranks" if len(figures.present) == figures.size else ranks_text(figures.present)
    durations = sorted(figures.steps.durations)
    slow = durations[int(0.95 * (len(durations) - 1))] if durations else 0.0
    hidden = advice.hidden_share(figures.shares)
    tiles = [
        (duration(figures.step), f"a step; 95 % within {duration(slow)}")
        if figures.steps.marked
        else (duration(figures.step), "recorded, without marks of steps"),
        (percent(advice.mean_share(figures, "compute")), "compute"),
        (percent(advice.mean_share(figures, "waiting")), "waiting for others"),
        (percent(advice.mean_share(figures, "communicating")), "communicating, program blocked"),
        ("unknown" if hidden is None else percent(hidden), "of communication hidden"),
    ]
    boxes = "".join(
        f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles
    )
    return (
        f'<h1>Timeline report</h1>\n<div class="muted">{escape(headline(figures))}; recorded '
        f"{when}, files of {whose}"
        f'</div>\n<div class="tiles">{boxes}</div>\n'
    )


def _time(figures: Figures) -> str:
    lost = advice.unknown(figures)
    note = (
        f'<p class="muted" id="unknown" style="margin-top:14px">{escape(lost)}</p>' if lost else ""
    )
    return rank_charts(figures.shares, len(figures.steps.numbers)) + note


def _hidden(figures: Figures) -> str:
    known = [s for s in figures.shares if s.from_callers and s.hidden + s.communicating > 0]
    if not known:
        return ""
    steps = max(1, len(figures.steps.numbers)) * len(known)
    hidden = sum(s.hidden for s in known) / steps
    exposed = sum(s.communicating for s in known) / steps
    share = hidden / (hidden + exposed)
    parts = "".join(
        f'<span class="{kind}" style="flex:{part:.5f} 1 0">{percent(part) if part >= 0.08 else ""}</span>'
        for kind, part in (("hidden-part", share), ("communicating", 1 - share))
    )
    by_rank = sorted((s.hidden / (s.hidden + s.communicating), s.rank) for s in known)
    spread = ""
    if len(known) > 1:
        (least, low), (most, high) = by_rank[0], by_rank[-1]
        spread = f" Least on rank {low} ({percent(least)}), most on rank {high} ({percent(most)})."
    return (
        legend(
            [
                ("hidden-part", f"behind computation: {duration(hidden)} per step"),
                ("communicating", f"program blocked: {duration(exposed)} per step"),
            ]
        )
        + f"<div "
        f'class="stack" id="hidden-bar">{parts}</div><p class="muted" style="margin-top:8px">Mean over '
        f"{count(len(known), 'rank')}.{spread}</p>"
    )


def _slowest(figures: Figures) -> str:
    late = figures.lateness
    if not late.ranking:
        return ""
    entries = late.ranking[:MOST_RANKING]
    costs = any(entry.cost is not None for entry in entries)
    heads = [
        "rank",
        "host",
        "slowest in",
        "steps",
        "",
        "typically behind",
        *(["cost to others"] if costs else []),
    ]
    rows = [
        [
            str(s.rank),
            escape(shown(s.host, 32)),
            percent(s.share),
            f"{s.steps:,}",
            meter(s.share, "waiting"),
            duration(s.late),
            *([("unknown" if s.cost is None else duration(s.cost))] if costs else []),
        ]
        for s in entries
    ]
    rest = late.ranking[MOST_RANKING:]
    lines = []
    if rest:
        steps = sum(s.steps for s in rest)
        lines.append(
            f"{count(len(rest), 'other rank')} the slowest in {count(steps, 'step')} together."
        )
    if late.nobody:
        lines.append(
            f"In {count(late.nobody, 'step')} nobody was more than {duration(late.threshold)} "
            f"behind the median rank."
        )
    if costs:
        lines.append(
            "Cost: how long another rank was blocked meanwhile, per step in which this rank was slowest."
        )
    note = f'<p class="muted" style="margin-top:8px">{escape(" ".join(lines))}</p>' if lines else ""
    hosts = Counter[str]()
    for s in late.ranking:
        hosts[s.host] += s.steps
    by_host = ""
    if len(late.ranks) > MOST_RANKING and len(set(late.ranks.values())) > 1:
        steps = len(late.matrix)
        host_rows = [
            [long_cell(host, 40), percent(n / steps), f"{n:,}", meter(n / steps, "waiting")]
            for host, n in hosts.most_common(5)
        ]
        by_host = table("By host", ["host", "slowest in", "steps", ""], host_rows)
    ranking = table("By rank" if by_host else "", heads, rows, texts=(0, 1))
    return f"{by_host}{ranking}{note}{heatmap(late, figures.steps.numbers, figures.hosts)}"


def _tensors(figures: Figures) -> str:
    if not figures.tensors:
        return ""
    most = figures.tensors[0].waited
    blocked = any(t.blocked is not None for t in figures.tensors)
    heads = [
        "tensor",
        "waited",
        "",
        "typically",
        "longest",
        "last, mostly",
        "size",
        "times",
        "kind",
    ]
    rows = [
        [
            long_cell(t.name, 44),
            duration(t.waited),
            meter(t.waited / most, "waiting"),
            duration(t.typical),
            duration(t.longest),
            "nobody" if t.last_rank is None else f"rank {t.last_rank} ({percent(t.last_share)})",
            size(t.bytes),
            f"{t.times:,}",
            escape(shown(t.kind, 16)),
            *([duration(t.blocked or 0.0)] if blocked else []),
        ]
        for t in figures.tensors
    ]
    if blocked:
        heads.append("program blocked")
    note = (
        '<p class="muted" style="margin-top:8px">Waited: from the first rank ready to the last, '
        "all steps together."
        f"{' Program blocked: in waits for this tensor, all ranks together.' if blocked else ''}</p>"
    )
    return table("", heads, rows) + note


def _sizes(figures: Figures) -> str:
    if not figures.sizes:
        return ""
    time = sum(c.time for c in figures.sizes) or 1.0
    best = max(c.bandwidth for c in figures.sizes) or 1.0
    steps = max(1, len(figures.steps.numbers))
    rows = [
        [
            escape(shown(c.kind, 20)),
            c.label,
            f"{c.responses / steps:,.1f}",
            size(c.bytes / steps),
            percent(c.time / time),
            rate(c.bandwidth),
            meter(c.bandwidth / best),
            rate(c.best),
        ]
        for c in figures.sizes
    ]
    heads = [
        "kind",
        "size of response",
        "per step",
        "bytes per step",
        "of execution time",
        "bandwidth",
        "",
        "at best",
    ]
    note = (
        f'<p class="muted" style="margin-top:8px">Algorithm bandwidth: bytes of a response over '
        f"the time to execute it "
        f"without waiting for data, as rank {figures.reference} saw it.</p>"
    )
    return table("", heads, rows, texts=(0, 1)) + note


def _fusion(figures: Figures) -> str:
    fusion = figures.fusion
    if not fusion.responses:
        return ""
    steps = max(1, len(figures.steps.numbers))
    tiles = [
        (f"{fusion.tensors / fusion.responses:.1f}", "tensors per response"),
        (f"{fusion.responses / steps:,.1f}", "responses per step"),
        (size(fusion.typical_bytes), "in a typical response"),
        (percent(fusion.fused_tensors / fusion.tensors), "of tensors fused"),
        (percent(fusion.fused_bytes / fusion.bytes) if fusion.bytes else "none", "of bytes fused"),
    ]
    if fusion.decision is not None:
        tiles.append((duration(fusion.decision), "from complete to decided"))
    boxes = "".join(
        f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles
    )
    most = max(number for _, number, _ in fusion.by_count)
    rows = [
        [
            label,
            f"{number:,}",
            meter(number / most),
            percent(weight / fusion.bytes) if fusion.bytes else "0",
        ]
        for label, number, weight in fusion.by_count
        if number
    ]
    heads = ["tensors in it", "responses", "", "of all bytes"]
    return f'<div class="tiles" style="margin:0 0 16px">{boxes}</div>{table("", heads, rows)}'


def _pending(figures: Figures) -> str:
    rows = [
        [
            long_cell(p.name, 44),
            escape(shown(p.kind, 16)),
            duration(p.since),
            escape(ranks_text(p.ready)) if p.ready else "none known",
            escape(ranks_text(p.silent))
            if p.silent
            else ("executing or agreed" if p.ready else ""),
        ]
        for p in figures.pending[:MOST_PENDING]
    ]
    left = len(figures.pending) - len(rows)
    note = f'<p class="muted">{count(left, "more tensor")}.</p>' if left > 0 else ""
    return (
        table("", ["tensor", "kind", "since", "ready", "not heard of"], rows, texts=(0, 1, 3, 4))
        + note
    )


def _remarks(figures: Figures) -> str:
    lines = "".join(f"<li>{text(line)}</li>" for line in remarks(figures))
    meaning = (
        "<li>Compute: no caller is blocked. Communicating: a caller is blocked while a response is "
        "executed. Waiting: "
        "a caller is blocked otherwise, until others are ready or their data has arrived. Together "
        "they are the wall "
        "time of the steps.</li><li>Behind: later than the median rank, for the tensor of the step "
        "where it was most."
        "</li>"
    )
    return f'<section id="notes"><h2>Notes</h2><ul class="muted">{lines}{meaning}</ul></section>'
