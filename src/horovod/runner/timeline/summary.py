"""The report in a few lines for the terminal."""

from __future__ import annotations

import textwrap

from horovod.runner.timeline.advice import hidden_share, mean_share, sections, unknown
from horovod.runner.timeline.figures import Figures
from horovod.runner.timeline.job import ranks_text
from horovod.runner.timeline.units import count, duration, percent

TITLES = {
    "time": "Time",
    "hidden": "Hidden",
    "slowest": "Slowest rank",
    "tensors": "Tensors",
    "sizes": "Bandwidth",
    "fusion": "Fusion",
    "pending": "At the end",
}
WIDTH = 100
INDENT = 14


def headline(figures: Figures) -> str:
    """Like "4 ranks on 2 hosts, 120 steps of 35.2 ms"."""
    hosts = set(figures.hosts) - {"?"}
    text = count(figures.size, "rank")
    if hosts:
        text += f" on {count(len(hosts), 'host')}"
    if figures.steps.marked:
        return f"{text}, {count(len(figures.steps.numbers), 'step')} of {duration(figures.step)}"
    return f"{text}, {duration(figures.step)} without marks of steps"


def summary(figures: Figures) -> str:
    """Headline, shares, and one sentence per section."""
    lines = [headline(figures)]
    shares = {
        part: percent(mean_share(figures, part)) for part in ("compute", "waiting", "communicating")
    }
    whose = "" if len(figures.present) == figures.size else f"  ({ranks_text(figures.present)})"
    hidden = hidden_share(figures.shares)
    more = "" if hidden is None else f", communication hidden {percent(hidden)}"
    lines.append(", ".join(f"{part} {share}" for part, share in shares.items()) + more + whose)
    lines.append("")
    for name, text in sections(figures).items():
        lines += _paragraph(TITLES[name], text)
    for text in remarks(figures):
        lines += _paragraph("Note", text)
    return "\n".join(lines)


def remarks(figures: Figures) -> list[str]:
    """What a reader has to know about the figures themselves."""
    found = [unknown(figures), figures.steps.left_out, *figures.notes]
    if not figures.steps.marked:
        found.append("There are no two marks of steps, so the whole recording counts as one step.")
    without = [share.rank for share in figures.shares if not share.from_callers]
    if without and figures.size > 1:
        found.append(
            f"No caller of {ranks_text(without)} was seen blocked: communicating is all execution "
            f"there, waiting is "
            "negotiation of own tensors, and either may have run beside computation."
        )
    if figures.bad_clocks:
        found.append(
            f"For steps this short the clock of {ranks_text(figures.bad_clocks)} is not known well "
            f"enough: when "
            "they were ready is taken from what rank 0 heard, often of all ranks of a host at once."
        )
    elif figures.clock_error > 0.01 * figures.step > 0:
        found.append(
            f"The clocks of the ranks are known to {duration(figures.clock_error)} only: who was "
            f"late by less "
            "than twice that can't be told."
        )
    return [text for text in found if text]


def _paragraph(title: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=title.ljust(INDENT),
        subsequent_indent=" " * INDENT,
        break_on_hyphens=False,
    )
