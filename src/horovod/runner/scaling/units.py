"""Rates, times and sizes as people write them: 25Gbit/s, 20us, 64MiB; and numbers for tables."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*(\S*)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_PREFIXES = {**_DECIMAL, **_BINARY}
_BITS = ("bit/s", "bps", "bits/s", "b/s", "bit")  # tc and Ethernet speak of bits
_BYTES = ("B/s", "Bps", "bytes/s")

RATES: dict[str, float] = {
    **{prefix + unit: factor / 8 for prefix, factor in _PREFIXES.items() for unit in _BITS},
    **{prefix + unit: factor for prefix, factor in _PREFIXES.items() for unit in _BYTES},
}
TIMES: dict[str, float] = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
SIZES: dict[str, float] = {
    **{prefix + unit: factor for prefix, factor in _PREFIXES.items() for unit in ("B", "bytes")},
    "": 1.0,
}


def parse_rate(text: str) -> float:
    """Bytes per second of a rate such as '25Gbit/s', '3.1GB/s', '1gbit' (bit and byte are told apart).

    Raises:
        ValueError: it is no positive number with a known unit.
    """
    return _parse(text, RATES, "a rate such as 25Gbit/s or 3.1GB/s")


def parse_time(text: str) -> float:
    """Seconds of a time such as '20us', '0.5ms', '1s'.

    Raises:
        ValueError: it is no number with a known unit, or negative.
    """
    return _parse(text, TIMES, "a time with its unit, such as 20us or 1.5ms", zero=True)


def parse_size(text: str) -> float:
    """Bytes of a size such as '64MiB', '128MB', '4096'.

    Raises:
        ValueError: it is no number with a known unit, or negative.
    """
    return _parse(text, SIZES, "a size such as 64MiB or 100MB", zero=True)


def _parse(text: str, units: Mapping[str, float], expected: str, zero: bool = False) -> float:
    match = _NUMBER.fullmatch(text)
    factor = units.get(match[2]) if match else None
    if match and factor is None and units is RATES:
        # `1gbit` is how tc writes it; a capital B always means bytes.
        factor = units.get(match[2][:1].upper() + match[2][1:]) if match[2].islower() else None
    if match is None or factor is None:
        raise ValueError(f"expected {expected}, found '{text}'")
    value = float(match[1]) * factor
    if not math.isfinite(value) or (value == 0 and not zero):
        raise ValueError(f"expected {expected}, greater than 0, found '{text}'")
    return value


def time_text(seconds: float) -> str:
    """1.23 s, 45.6 ms, 20 us."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{number_text(seconds / factor)} {unit}"
    return "0 s" if seconds == 0 else f"{number_text(seconds * 1e6)} us"


def size_text(count: float) -> str:
    """552 MB, 64 kB, 12 B: decimal, as network rates are."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= factor:
            return f"{number_text(count / factor)} {unit}"
    return f"{count:.0f} B"


def rate_text(bytes_per_second: float) -> str:
    """25 Gbit/s, 935 Mbit/s."""
    bits = bytes_per_second * 8
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= factor:
            return f"{number_text(bits / factor)} {unit}"
    return f"{number_text(bits)} bit/s"


def number_text(value: float) -> str:
    """Three significant digits, and never an exponent."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
