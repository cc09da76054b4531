"""What a rank's flight recorder wrote, as values: operations, blocked callers, who and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FORMAT = "horovod-flight-recorder"
VERSION = 1
STATES = ("submitted", "announced", "executing", "done", "failed")
REASONS = ("abort", "stall", "signal", "call")
# Kinds that move tensors; the others are calls about the job itself.
DATA_KINDS = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
KINDS = (*DATA_KINDS, "join", "barrier", "add_process_set", "remove_process_set")


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one rank.

    Attributes:
        serial: number among all operations of the rank, from 0.
        process_set: id of the process set; 0 is all ranks.
        set_serial: number among the rank's operations of that set, from 0.
        name: the name by which ranks pair their operations, e.g. "allreduce.g".
        kind: one of KINDS.
        dtype: e.g. "float32"; empty for kinds without tensors.
        shape: of this rank's input.
        op: reduction operator in small letters; without meaning for kinds that reduce nothing.
        root: global rank that a broadcast sends from; -1 for other kinds.
        group: name of the group that the operation is a member of; empty for none.
        bytes: of this rank's input.
        state: one of STATES.
        submitted: when, in seconds of the rank's own clock (`Dump.monotonic`).
        agreed: when all ranks were known to have submitted it; None: not yet.
        started: when its execution began; None: not yet.
        finished: when it was done or had failed; None: not yet.
        response: number of the response that it was executed in, equal on all ranks; None: not yet.
        error: why it failed; empty if it has not.
    """

    serial: int
    process_set: int
    set_serial: int
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    op: str
    root: int
    group: str
    bytes: int
    state: str
    submitted: float
    agreed: float | None = None
    started: float | None = None
    finished: float | None = None
    response: int | None = None
    error: str = ""

    @property
    def is_settled(self) -> bool:
        """True when the ranks had agreed on it: all of them had submitted it."""
        return self.state in ("executing", "done") or self.agreed is not None

    @property
    def reduces(self) -> bool:
        """True for kinds that have a reduction operator."""
        return self.kind in ("allreduce", "reducescatter")

    def describe(self) -> str:
        """Returns kind, dtype, shape, operator and root as words, e.g. "allreduce of float32 [3, 4], sum"."""
        if self.kind not in DATA_KINDS:
            return self.kind
        text = f"{self.kind} of {self.dtype} {list(self.shape)}"
        if self.reduces:
            text += f", {self.op}"
        if self.kind == "broadcast" and self.root >= 0:
            text += f", root rank {self.root}"
        return text


@dataclass(frozen=True, slots=True)
class Blocked:
    """A caller that waits for an operation.

    Attributes:
        name: of the operation.
        since: seconds of the rank's own clock.
    """

    name: str
    since: float


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank.

    Attributes:
        source: the file that it was read from.
        reason: one of REASONS.
        text: why the dump was written, for people.
        time: seconds since the epoch when it was written.
        monotonic: the rank's own clock at that moment, which all times in the dump are of.
        capacity: how many operations the recorder keeps.
        recorded: how many it has ever recorded.
        operations: the last ones, oldest first.
        blocked: callers that were waiting.
        stacks: Python stacks of all threads as text, or empty.
        process_sets: ranks of the process sets that the rank knew of; may be empty.
    """

    source: str
    rank: int
    size: int
    host: str
    hosts: tuple[str, ...]
    pid: int
    reason: str
    text: str
    time: float
    monotonic: float
    capacity: int
    recorded: int
    operations: tuple[Operation, ...]
    blocked: tuple[Blocked, ...]
    stacks: str
    process_sets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """True when nothing has been overwritten: the dump begins with the rank's first operation."""
        return not self.recorded or bool(self.operations and self.operations[0].serial == 0)

    def at(self, moment: float) -> float:
        """Returns a moment of the rank's clock as seconds since the epoch."""
        return self.time - (self.monotonic - moment)
