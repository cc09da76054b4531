"""What the analysis says: findings, each with its kind, the ranks, sentences and evidence."""

from __future__ import annotations

from dataclasses import dataclass

# Kinds of finding; docs/flight-recorder.md lists them.
NO_FILE = "no-file"  # a rank that others wait for has no dump
NOTHING_SUBMITTED = "nothing-submitted"  # a rank has not begun
SHORT = "short"  # a rank stopped after fewer steps
MISSING = "missing"  # a rank left out an operation and went on
IDLE = "idle"  # a rank has not submitted it and does nothing else in Horovod
EXTRA = "extra"  # ranks call an operation that the others do not
NAMES = "names"  # the same operation under another name
ORDER = "order"  # the same operations in another order
DIFFERENT = "different"  # two groups of ranks wait for different operations
JOIN = "join"  # joined ranks wait for the others
MISMATCH = "mismatch"  # the same name, but another type, shape, operator or root
FAILED = "failed"  # an operation failed though the ranks submitted the same
NONE = "none"  # no divergence


@dataclass(frozen=True)
class Finding:
    """One thing that went wrong, or that nothing did.

    Attributes:
        kind: one of the constants above.
        ranks: who diverged; empty if that cannot be told, or if nobody did.
        sentences: what happened and what to do, the most important one first.
        evidence: what in the dumps shows it.
        when: seconds since the epoch of the first sign.
    """

    kind: str
    ranks: tuple[int, ...]
    sentences: tuple[str, ...]
    evidence: tuple[str, ...]
    when: float
