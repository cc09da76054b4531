"""Whether all ranks still have the same parameters: checksums, compared every so many optimizer steps.

`HOROVOD_CHECK_CONSISTENCY_STEPS=K` asks for it. A door makes a `ConsistencyCheck` for each optimizer, or
none, once; after a step that changed parameters it asks `is_due()`, and if so hands over fingerprints. First
one number for all parameters is compared; only if that differs do ranks exchange the single ones, all of
them, so that all raise the same error.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from horovod.common import collectives, engine, objects
from horovod.common.dtypes import Collective, DataType, Max
from horovod.common.exceptions import HorovodConsistencyError
from horovod.common.knobs import value_of
from horovod.common.log import logger
from horovod.common.process_sets import ProcessSet

VARIABLE = "HOROVOD_CHECK_CONSISTENCY_STEPS"
ADVICE = (
    "Parameters that begin equal and get equal gradients stay equal, so look for a missing broadcast at the "
    "start (hvd.broadcast_parameters, BroadcastGlobalVariablesCallback), for a change outside of the "
    "optimizer (clipping, a checkpoint that one rank loads), and for a condition on the rank or on its data."
)
JOINED_TEXT = (
    "ranks have different parameters; which ones cannot be told, because a rank has joined and takes no part "
    "in the exchange that would tell."
)
_LISTED_RANKS = 16
_LISTED_GROUPS = 4
_NUMBERS = struct.Struct("=7q")
_TOP = 2**62


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is compared of one parameter.

    Attributes:
        name: of the parameter.
        dtype: name of its data type, e.g. "float32".
        shape: of it.
        checksum: of its bytes in logical order, so equal for NaNs of equal bits and not for 0.0 and -0.0.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: int


def fingerprint(name: str, dtype: str, shape: Iterable[int], *data: Any) -> Fingerprint:
    """Makes the fingerprint of a parameter.

    Args:
        name: of the parameter.
        dtype: name of its data type.
        shape: of it.
        data: its values as contiguous buffers, several for one that is stored in parts.
    """
    checksum = 0
    for buffer in data:
        checksum = zlib.crc32(buffer, checksum)
    return Fingerprint(name, dtype, tuple(shape), checksum)


def fingerprint_of_array(name: str, array: Any) -> Fingerprint:
    """Makes the fingerprint of a NumPy array of any data type and strides."""
    return fingerprint(name, array.dtype.name, array.shape, array.ravel().view("uint8"))


def make_check(
    name: str, process_set: ProcessSet, names_matter: bool = True, first: int = 1
) -> ConsistencyCheck | None:
    """Returns the check of an optimizer; None if none is asked for or there is nobody to compare with.

    Args:
        name: of its operations, equal on all ranks and for one optimizer only.
        process_set: the ranks that have the same parameters.
        names_matter: the parameters' names must be equal on all ranks.
        first: the first step that may be compared after; 2 where the broadcast comes after a step.

    Raises:
        ValueError: the variable has an illegal value.
    """
    every = value_of(VARIABLE)
    if not every or not process_set.included() or (process_set.size() or 1) < 2:
        return None
    return ConsistencyCheck(every, name, process_set, names_matter, first)


class ConsistencyCheck:
    """Counts the steps of one optimizer, and compares parameters.

    Args:
        every: compare after every so many steps.
        name: of the operations.
        process_set: the ranks that take part; this rank is one of them.
        names_matter: the parameters' names must be equal on all ranks.
        first: the first step that may be compared after.

    Attributes:
        steps: steps so far.
        calls_per_step: calls of `is_due` that make one step, where an optimizer accumulates by itself.
    """

    def __init__(
        self,
        every: int,
        name: str,
        process_set: ProcessSet,
        names_matter: bool = True,
        first: int = 1,
    ) -> None:
        self.steps = 0
        self.calls_per_step = 1
        self._calls = 0
        self._every = every
        self._name = name
        self._process_set = process_set
        self._names_matter = names_matter
        self._first = first
        self._excused = False

    def is_due(self) -> bool:
        """Counts a step; tells whether parameters have to be compared after it."""
        self._calls += 1
        if self._calls % self.calls_per_step:
            return False
        self.steps += 1
        return self.steps >= self._first and self.steps % self._every == 0

    def compare(self, fingerprints: Sequence[Fingerprint]) -> None:
        """Compares parameters over the ranks. Collective over the process set.

        Args:
            fingerprints: of this rank's parameters, in the order of the optimizer.

        Raises:
            HorovodConsistencyError: on all ranks, if some differ.
            HorovodInternalError: the job was aborted.
        """
        equal, complete = self._agree(_digest(self.steps, fingerprints, self._names_matter))
        if equal:
            return
        if not complete:
            raise HorovodConsistencyError(
                f"After optimizer step {self.steps} {JOINED_TEXT} {ADVICE}"
            )
        mine = [(f.name, f.dtype, f.shape, f.checksum) for f in fingerprints]
        everything = objects.allgather_object(
            (self.steps, mine), f"{self._name}.parameters", self._process_set
        )
        ranks = engine.registered_set(self._process_set.process_set_id or 0).ranks
        by_rank = {
            rank: (steps, [Fingerprint(*values) for values in parameters])
            for rank, (steps, parameters) in zip(ranks, everything, strict=True)
        }
        raise HorovodConsistencyError(difference(by_rank, self._names_matter))

    def excuse(self, reason: str) -> None:
        """Says, once and on one rank, that the check that was asked for cannot be made here."""
        if not self._excused:
            self._excused = True
            if self._process_set.rank() != 0:
                return
            logger.warning("%s is set, but parameters are not compared: %s", VARIABLE, reason)

    def _agree(self, numbers: tuple[int, int, int]) -> tuple[bool, bool]:
        """Compares numbers from 1 to _TOP - 1 over the ranks: their highest must be their lowest.

        A rank that has joined contributes zeros, which are below everything that is sent here but the last.

        Returns:
            Whether they are equal on all ranks that have not joined, and whether none has.
        """
        data = bytearray(_NUMBERS.pack(*numbers, *(_TOP - number for number in numbers), -1))
        pointer = ctypes.addressof(ctypes.c_char.from_buffer(data))
        tensor = (pointer, DataType.INT64, (7,))
        handle = collectives.submit(
            Collective.ALLREDUCE,
            (tensor,),
            (tensor,),
            name=self._name,
            op=Max,
            process_set=self._process_set,
            urgent=True,
            finish=lambda _: None,
            keep_alive=data,
        )
        collectives.synchronize(handle)
        *reduced, last = _NUMBERS.unpack(data)
        pairs = zip(reduced[:3], reduced[3:], strict=True)
        return all(high == _TOP - low for high, low in pairs), last == -1


def _digest(
    steps: int, fingerprints: Sequence[Fingerprint], names_matter: bool
) -> tuple[int, int, int]:
    """Returns the number of steps, and two numbers that stand for all parameters; each fits `_agree`."""
    digest = hashlib.blake2b(digest_size=16)
    for f in fingerprints:
        digest.update(repr((f.name if names_matter else "", f.dtype, f.shape, f.checksum)).encode())
    first, second = struct.unpack("=QQ", digest.digest())
    return steps + 1, (first >> 3) + 1, (second >> 3) + 1


# --- what differs -------------------------------------------------------------------------------------


def difference(
    by_rank: Mapping[int, tuple[int, Sequence[Fingerprint]]], names_matter: bool = True
) -> str:
    """Returns the text that says how ranks differ.

    Args:
        by_rank: steps and parameters of every rank, in the order of the optimizer.
        names_matter: the parameters' names must be equal on all ranks.
    """
    steps = {rank: found[0] for rank, found in by_rank.items()}
    parameters = {rank: found[1] for rank, found in by_rank.items()}
    if len(set(steps.values())) > 1:
        said = _by_value(steps, lambda value: f"step {value}")
        return (
            f"Ranks compare their parameters after different numbers of optimizer steps: {said}. {VARIABLE} "
            "and the number of steps must be equal on all ranks."
        )
    step = next(iter(steps.values()))
    return f"After optimizer step {step} " + (
        _different_lists(parameters, names_matter) or _different_values(parameters)
    )


def _different_lists(
    parameters: Mapping[int, Sequence[Fingerprint]], names_matter: bool
) -> str | None:
    """Says where ranks have other parameters, if they do."""
    counts = {rank: len(found) for rank, found in parameters.items()}
    for i in range(max(counts.values())):
        kinds = {
            rank: (found[i].name, found[i].dtype, found[i].shape) if i < len(found) else None
            for rank, found in parameters.items()
        }
        compared = {kind if names_matter or kind is None else kind[1:] for kind in kinds.values()}
        if len(compared) == 1:
            continue
        amounts = ""
        if len(set(counts.values())) > 1:
            amounts = f" ({_by_value(counts, str)})"
        return (
            f"ranks have different parameters{amounts}: number {i + 1} is "
            f"{_by_value(kinds, _described)}. Build the same model in the same order on all ranks."
        )
    return None


def _described(kind: tuple[str, str, tuple[int, ...]] | None) -> str:
    return "none" if kind is None else f"'{kind[0]}' ({kind[1]}, shape {list(kind[2])})"


def _different_values(parameters: Mapping[int, Sequence[Fingerprint]]) -> str:
    first = next(iter(parameters.values()))
    differing = [
        i
        for i in range(len(first))
        if len({found[i].checksum for found in parameters.values()}) > 1
    ]
    i = differing[0]
    checksums = {rank: found[i].checksum for rank, found in parameters.items()}
    left = len(differing) - 1
    more = f"So {'does' if left == 1 else 'do'} {left} more. " if left else "No other does. "
    return (
        f"parameter '{first[i].name}' ({first[i].dtype}, shape {list(first[i].shape)}, number {i + 1} of "
        f"{len(first)}) differs: its checksum is {_by_value(checksums, '{:08x}'.format)}. {more}{ADVICE}"
    )


def _by_value(values: Mapping[int, Any], text: Callable[[Any], str]) -> str:
    """Returns which ranks have which value, the largest group first."""
    groups: dict[Any, list[int]] = {}
    for rank, value in sorted(values.items()):
        groups.setdefault(value, []).append(rank)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[1][0]))
    parts = [f"{text(value)} on {_ranks(ranks)}" for value, ranks in ordered[:_LISTED_GROUPS]]
    left = sum(len(ranks) for _, ranks in ordered[_LISTED_GROUPS:])
    return "; ".join(parts) + (f"; others on {left} more ranks" if left else "")


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed = ", ".join(map(str, ranks[:_LISTED_RANKS]))
    left = len(ranks) - _LISTED_RANKS
    return f"ranks {listed}" + (f" and {left} more" if left > 0 else "")
