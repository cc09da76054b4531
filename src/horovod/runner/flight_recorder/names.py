"""Names that differ only by a prefix, a suffix or a counter, and names that the engine counted itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What frameworks and this one put between the parts of a name.
_SEPARATORS = "./_-:"
_COUNTER = re.compile(r"[./_\-:]?\d+")
_NUMBER = re.compile(r"\d+")
_NONAME = re.compile(r"noname\.\d+")
_KIND = re.compile(r"(grouped_)?(allreduce|allgather|broadcast|alltoall|reducescatter)\.")


@dataclass(frozen=True)
class Difference:
    """The single point in which two names differ.

    Attributes:
        text: a phrase, e.g. "the prefix 'optimizer1.'".
        later: 0 or 1: which of the names seems to have been made later (it is longer, or counts higher).
    """

    text: str
    later: int


def family(name: str) -> str:
    """Returns the name without the number of an operation that was given none."""
    return _NONAME.sub("noname.*", name)


def is_generated(name: str) -> bool:
    """Tells whether the engine made the name by counting."""
    return _NONAME.search(name) is not None


def difference(one: str, other: str) -> Difference | None:
    """Returns in which single point two names differ; None if in more than a prefix, suffix or counter."""
    kind, other_kind = _KIND.match(one), _KIND.match(other)
    if kind and other_kind and kind[0] == other_kind[0]:
        one, other = one[kind.end() :], other[other_kind.end() :]
    if one == other or not one or not other or is_generated(one) or is_generated(other):
        return None
    later = int(len(other) > len(one))
    short, long = (one, other) if later else (other, one)
    text = _added(short, long) if len(short) < len(long) else None
    return Difference(text, later) if text else _counter(one, other)


def _added(short: str, long: str) -> str | None:
    """What the longer of two names has more, if that is all."""
    if long.endswith(short) and long[-len(short) - 1] in _SEPARATORS:
        return f"the prefix '{long[: -len(short)]}'"
    equal = [a == b for a, b in zip(short, long, strict=False)]
    head = short[: equal.index(False) if False in equal else len(short)]
    rest = short[len(head) :]
    if not head or not long.endswith(rest):
        return None
    inserted = long[len(head) : len(long) - len(rest)]
    splits_number = head[-1].isdigit() and inserted[0].isdigit()
    if _COUNTER.fullmatch(inserted) and not splits_number:
        return f"the counter '{inserted}'"
    if not rest and inserted[0] in _SEPARATORS:
        return f"the suffix '{inserted}'"
    return None


def _counter(one: str, other: str) -> Difference | None:
    """The one number in which two names differ."""
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return None
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    different = [pair for pair in pairs if pair[0] != pair[1]]
    if len(different) != 1:
        return None
    first, second = different[0]
    return Difference(f"a counter ({first} and {second})", int(int(second) > int(first)))
