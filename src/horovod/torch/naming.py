"""Numbers for things that need names of their own on the wire: optimizers and batch-norm layers.

All ranks count alike as long as they build the same things in the same order. Each `init` starts
the count anew, so that ranks that come later count like those that were there before.
"""

from __future__ import annotations

from collections import Counter

from horovod.common import engine

_counts: Counter[tuple[str, int]] = Counter()


def next_number(kind: str) -> int:
    """Returns 0, 1, 2, ... for each kind."""
    key = (kind, engine.state.rounds)
    number = _counts[key]
    _counts[key] += 1
    return number
