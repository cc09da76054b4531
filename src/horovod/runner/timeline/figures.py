"""The figures of a report. Times in microseconds, sizes in bytes, shares from 0 to 1."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median_high


@dataclass(frozen=True)
class RankShare:
    """How one rank spent the time of the steps: compute + waiting + communicating = wall."""

    rank: int
    host: str
    wall: float
    compute: float
    waiting: float
    communicating: float
    hidden: float  # communication while no caller was blocked: a part of compute
    data_wait: float  # blocked in execution, until others' data had arrived: a part of waiting
    from_callers: bool  # whether it is known when callers were blocked

    def share(self, part: float) -> float:
        """A part of the wall time as a share of it."""
        return part / self.wall if self.wall > 0 else 0.0


@dataclass(frozen=True)
class Steps:
    """The steps that count."""

    numbers: list[int]
    bounds: list[float]  # begin of each, and the end of the last
    marked: bool  # False: there are no marks, the whole recording counts as one
    left_out: str = ""  # which were left out and why, as a sentence

    @property
    def durations(self) -> list[float]:
        """How long each step took."""
        return [end - begin for begin, end in pairwise(self.bounds)]

    @property
    def typical(self) -> float:
        """How long a step takes: the median."""
        return median_high(self.durations) if self.numbers else 0.0


@dataclass(frozen=True)
class Straggler:
    """How often one rank was the slowest of a step, and what that cost."""

    rank: int
    host: str
    steps: int
    share: float  # of all steps
    late: float  # how much later than the median rank in such a step; median
    cost: float | None  # how long another rank was blocked meanwhile, mean; None where not known


@dataclass(frozen=True)
class Lateness:
    """Who was late in which step."""

    ranks: dict[int, str]  # whose arrival is known: host
    matrix: list[array[float]]  # [step][rank]: how far behind the median rank, at most
    ranking: list[Straggler]  # most often first; only ranks that were slowest at least once
    nobody: int  # steps in which no rank was later than `threshold`
    threshold: float


@dataclass(frozen=True)
class TensorWait:
    """How long a tensor waited from its first rank's arrival to its last's."""

    name: str
    kind: str
    bytes: int
    times: int
    waited: float  # sum
    typical: float  # median
    longest: float
    last_rank: int | None  # who was last most often
    last_share: float
    last_host: str | None  # whose ranks were last most often
    last_host_share: float
    blocked: float | None  # callers blocked on it, sum over the ranks with a file


@dataclass(frozen=True)
class SizeClass:
    """Responses of one kind whose sizes are alike."""

    kind: str
    label: str
    responses: int
    bytes: int
    time: float  # executing, without waiting for data
    best: float  # bandwidth of the fastest response, bytes per second

    @property
    def bandwidth(self) -> float:
        """Algorithm bandwidth in bytes per second."""
        return self.bytes / self.time * 1e6 if self.time > 0 else 0.0


@dataclass(frozen=True)
class Fusion:
    """What was executed together."""

    responses: int
    tensors: int
    bytes: int
    by_count: list[tuple[str, int, int]]  # tensors per response, responses, bytes
    fused_tensors: int  # in responses of more than one
    fused_bytes: int
    typical_bytes: float  # of a response, median
    decision: float | None  # from the last rank's word until it was decided to execute; median


@dataclass(frozen=True)
class Pending:
    """A tensor that had not been executed when the recording ended."""

    name: str
    kind: str
    since: float  # for how long
    ready: list[int]
    silent: list[int]  # not heard of; of a process set perhaps no members


@dataclass
class Figures:
    """All of them, of one job."""

    size: int
    hosts: tuple[str, ...]
    present: list[int]  # ranks with a file
    reference: int  # the rank whose file says what was executed
    start: int  # epoch, microseconds
    steps: Steps
    shares: list[RankShare]
    lateness: Lateness
    tensors: list[TensorWait]
    sizes: list[SizeClass]
    fusion: Fusion
    pending: list[Pending]
    clock_error: float  # of the ranks whose own word about their readiness counts
    bad_clocks: list[int]  # ranks of which rank 0's word counts instead
    notes: list[str] = field(default_factory=list)

    @property
    def step(self) -> float:
        """The typical duration of a step."""
        return self.steps.typical

    @property
    def single(self) -> bool:
        """Whether there is one file of a job of several ranks."""
        return len(self.present) == 1 and self.size > 1
