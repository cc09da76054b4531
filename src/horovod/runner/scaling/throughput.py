"""Throughput from what a script prints: which lines say it, whose figure it is, and the sum over ranks.

docs/scaling.md states the rules; all here is pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

TOTAL, PER_RANK, UNSAID = "total", "per-rank", "unsaid"
FIGURES = ("auto", TOTAL, PER_RANK)
WARM_UP_SHARE = 0.25  # of a line's repetitions; the first ones are slower

_ITEMS = (
    r"images?|imgs?|samples?|examples?|sequences?|seqs?|sentences?|tokens?|words?|frames?|records?|rows?|"
    r"graphs?|nodes?|edges?|items?"
)
_STEPS = r"iterations?|iters?|its?|steps?|batch(?:es)?"
_PER = r"\s*(?:/|per\s+)\s*"
_SECOND = r"(?:seconds?|secs?|s)"
_VALUE = r"(?P<value>[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_END = r"(?![A-Za-z0-9/])"
# '123.4 images/s', '12.3 img/sec per GPU', '4.94it/s'
_BEFORE = re.compile(
    rf"(?<![\w.,]){_VALUE}\s*(?P<unit>{_ITEMS}|{_STEPS}){_PER}{_SECOND}{_END}", re.IGNORECASE
)
# 'images/sec: 123.4', 'Img/sec per CPU: 12.3', 'Total img/sec on 4 GPU(s): 49.2', 'samples/s = 7'
_AFTER = re.compile(
    rf"(?<![A-Za-z])(?P<unit>{_ITEMS}|{_STEPS}){_PER}{_SECOND}\b(?P<whose>[^:=\n]{{0,40}})[:=]\s*{_VALUE}",
    re.IGNORECASE,
)
# '12ms/step', '1.23s/it'
_INVERSE = re.compile(
    rf"(?<![\w.,]){_VALUE}\s*(?P<scale>us|ms|s|sec){_PER}(?P<unit>{_STEPS}){_END}", re.IGNORECASE
)
_SCALES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}
_ALL_OF_THEM = re.compile(
    r"\btotal\b|\ball (?:ranks|processes|workers|gpus|devices)\b|\bon \d+ \w+\(s\)|\boverall\b|\bglobal\b",
    re.IGNORECASE,
)
_ONE_OF_THEM = re.compile(
    r"\b(?:per|each|/)\s*(?:gpu|cpu|rank|process|worker|device|replica|core|tpu)\b"
    r"|/(?:gpu|cpu|rank|process|worker|device)\b",
    re.IGNORECASE,
)
_IS_STEPS = re.compile(_STEPS, re.IGNORECASE)
_PREFIX = re.compile(r"\[(\d+)\]<(?:stdout|stderr)>:")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Sighting:
    """One line of one rank that says a throughput."""

    rank: int
    value: float
    unit: str  # images, samples, steps, ...
    whose: str  # TOTAL, PER_RANK or UNSAID
    words: tuple[str, ...]  # of the line: lines with the same ones say the same thing again


@dataclass(frozen=True)
class Throughput:
    """What all ranks do per second together, and how that was found."""

    value: float
    unit: str
    how: str

    @property
    def unit_per_second(self) -> str:
        """'images/s'."""
        return f"{self.unit}/s"


def split_prefix(line: str) -> tuple[int | None, str]:
    """The rank that horovodrun put before a line, and the line itself."""
    match = _PREFIX.search(line)
    return (int(match[1]), line[match.end() :]) if match else (None, line)


def compile_pattern(text: str) -> re.Pattern[str]:
    """A user's pattern: its group `value`, or else its first one, is the number.

    Raises:
        ValueError: it is no regular expression, or has no group.
    """
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(
            f"expected a regular expression, found '{text}': {error.msg} at position {error.pos}"
        ) from None
    if pattern.groups == 0:
        raise ValueError(
            f"expected a regular expression with a group around the number, as in "
            f"'speed: ([0-9.]+)', found '{text}'"
        )
    return pattern


def sight(
    line: str, pattern: re.Pattern[str] | None = None, figure: str = "auto"
) -> Sighting | None:
    """The throughput that a line of horovodrun's output says, if any; of several, the last one."""
    rank, text = split_prefix(_ESCAPES.sub("", line))
    if rank is None:
        return None
    found = _with_pattern(text, pattern) if pattern is not None else _with_known_units(text)
    if found is None:
        return None
    value, unit, whose = found
    if not 0 < value < float("inf"):
        return None
    if figure != "auto":
        whose = figure
    return Sighting(rank, value, unit, whose, tuple(re.findall(r"[A-Za-z]+", text)))


def _with_pattern(text: str, pattern: re.Pattern[str]) -> tuple[float, str, str] | None:
    matches = list(pattern.finditer(text))
    if not matches:
        return None
    last = matches[-1]
    value = _number(last["value"] if "value" in pattern.groupindex else last[1])
    unit = last["unit"] if "unit" in pattern.groupindex and last["unit"] else "units"
    return None if value is None else (value, unit, _whose(text, unit))


def _with_known_units(text: str) -> tuple[float, str, str] | None:
    matches = [match for regex in (_AFTER, _BEFORE) for match in regex.finditer(text)]
    if matches:
        last = max(matches, key=lambda match: match.start("value"))
        value, unit = _number(last["value"]), _unit(last["unit"])
        return None if value is None else (value, unit, _whose(text, unit))
    inverse = list(_INVERSE.finditer(text))
    if not inverse:
        return None
    seconds = _number(inverse[-1]["value"])
    if not seconds:
        return None
    return 1 / (seconds * _SCALES[inverse[-1]["scale"].lower()]), "steps", _whose(text, "steps")


def _whose(text: str, unit: str) -> str:
    if _ALL_OF_THEM.search(text):
        return TOTAL
    # A rank counts its own steps; nobody prints the sum of all ranks' steps without saying so.
    return PER_RANK if unit == "steps" or _ONE_OF_THEM.search(text) else UNSAID


def _unit(word: str) -> str:
    word = word.lower()
    if _IS_STEPS.fullmatch(word):
        return "steps"
    singular = {"img": "image", "imgs": "image", "seq": "sequence", "seqs": "sequence"}
    return singular.get(word, word.removesuffix("s")) + "s"


def _number(text: str | None) -> float | None:
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def throughput_of(sightings: Sequence[Sighting], ranks: int) -> Throughput | None:
    """All ranks' throughput from all sightings of a job; None without any.

    A line that says it is a total is believed first, then lines that are of one rank, then those that
    do not say: the sum if several ranks print them, else a total. Of a line that comes again and
    again, the median counts, without the first quarter; of different lines, the one that comes last.
    """
    for whose in (TOTAL, PER_RANK, UNSAID):
        chosen = [sighting for sighting in sightings if sighting.whose == whose]
        if not chosen:
            continue
        last = chosen[-1]
        chosen = [s for s in chosen if (s.words, s.unit) == (last.words, last.unit)]
        per_rank = _settled(chosen)
        printed = len(per_rank)
        mean = fmean(per_rank.values())
        if whose == TOTAL:
            return Throughput(mean, last.unit, "the script's total")
        if printed == ranks:
            text = "as printed" if ranks == 1 else f"sum of {ranks} ranks' figures"
            return Throughput(sum(per_rank.values()), last.unit, text)
        if whose == PER_RANK or printed > 1:
            which = f"rank {last.rank}'s" if printed == 1 else f"{printed} ranks' mean"
            return Throughput(mean * ranks, last.unit, f"{which} figure x {ranks} ranks")
        return Throughput(mean, last.unit, f"rank {last.rank}'s line, taken as the total of all")
    return None


def _settled(sightings: Iterable[Sighting]) -> dict[int, float]:
    """The median of each rank's values, without the first ones."""
    values: dict[int, list[float]] = {}
    for sighting in sightings:
        values.setdefault(sighting.rank, []).append(sighting.value)
    return {rank: median(some[int(len(some) * WARM_UP_SHARE) :]) for rank, some in values.items()}
