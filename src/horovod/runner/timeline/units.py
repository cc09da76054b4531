"""Figures as people read them."""

from __future__ import annotations


def duration(micros: float) -> str:
    """Like "20.1 ms"."""
    for limit, factor, unit in ((1e3, 1.0, "us"), (1e6, 1e3, "ms"), (120e6, 1e6, "s")):
        if abs(micros) < limit * 0.9995:
            return f"{_three(micros / factor)} {unit}"
    return f"{_three(micros / 60e6)} min"


def size(count: float) -> str:
    """Like "16 MiB"."""
    for limit, factor, unit in (
        (1024, 1, "B"),
        (1024**2, 1024, "KiB"),
        (1024**3, 1024**2, "MiB"),
        (1024**4, 1024**3, "GiB"),
    ):
        if count < limit * 0.9995:
            return f"{_three(count / factor)} {unit}"
    return f"{_three(count / 1024**4)} TiB"


def rate(per_second: float) -> str:
    """Bytes per second, like "7.93 GB/s"."""
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if per_second >= factor:
            return f"{_three(per_second / factor)} {unit}"
    return f"{_three(per_second)} B/s"


def percent(share: float) -> str:
    """Like "93 %"; small ones with one digit more."""
    value = 100 * share
    if 0 < value < 0.1:
        return "< 0.1 %"
    return f"{value:.1f} %" if 0 < value < 10 else f"{value:.0f} %"


def count(number: int, word: str) -> str:
    """Like "1 rank" or "1,200 ranks"."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def shown(name: str, most: int = 60) -> str:
    """A name made of characters that can be printed, shortened in the middle."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    if len(text) <= most:
        return text
    head = (most - 3) // 3
    return f"{text[:head]}...{text[head + 3 - most :]}"


def _three(value: float) -> str:
    """Three digits that say something."""
    size = abs(value)
    if size >= 99.95 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
