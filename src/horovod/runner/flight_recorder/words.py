"""Ranks, names and times as words of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LISTED = 8


def spans(ranks: Iterable[int]) -> str:
    """Returns numbers with runs shortened: "0, 2-5"."""
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts: list[str] = []
    for first, last in runs:
        if last - first < 2:
            parts += [str(rank) for rank in range(first, last + 1)]
        else:
            parts.append(f"{first}-{last}")
    return ", ".join(parts)


def ranks_text(ranks: Iterable[int]) -> str:
    """Returns "rank 1" or "ranks 0, 2-5"."""
    listed = list(ranks)
    return f"rank{'' if len(listed) == 1 else 's'} {spans(listed)}"


def verb(ranks: Sequence[int], one: str, several: str) -> str:
    """Returns the form of a verb that goes with so many ranks."""
    return one if len(ranks) == 1 else several


def capital(text: str) -> str:
    """Returns the text with its first letter in capitals."""
    return text[:1].upper() + text[1:]


def quoted(name: str) -> str:
    """Returns a name in quotes, with control characters escaped and what is very long cut."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)
    return f'"{shown}"' if len(shown) <= 100 else f'"{shown[:60]}...{shown[-37:]}"'


def names_text(names: Sequence[str]) -> str:
    """Returns names in quotes, separated by commas, with a count of those left out."""
    listed = ", ".join(quoted(name) for name in names[:LISTED])
    left = len(names) - LISTED
    return f"{listed} and {left} more" if left > 0 else listed


def count(number: int, noun: str) -> str:
    """Returns "1 operation" or "5 operations"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def seconds(value: float) -> str:
    """Returns a duration with a unit that suits it."""
    if value >= 1:
        return f"{value:.1f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} us"
