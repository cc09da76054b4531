"""The prediction: plays a step of the program against the cost of its exchanges. Pure.

One rank stands for all. Tensors become ready, are fused as the coordinator fuses them, and are exchanged
one response after the other, while the rank computes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist, median

from horovod.runner.scaling.cluster import EXCHANGES, Cluster, Cost, Exchange, negotiation_seconds
from horovod.runner.scaling.programs import Program, Submit

# Below this share of the step nothing but computing is worth naming.
_NEGLIGIBLE = 0.03
COMPUTE = "computing"
BANDWIDTH = "bandwidth between hosts"
LATENCY = "latency between hosts"
LOCAL = "transfers within hosts"
NEGOTIATION = "negotiation and cycle time"
STRAGGLERS = "the slowest rank of each step"


@dataclass(frozen=True)
class Options:
    """What the engine is told: bytes, seconds; `jitter`: spread of a rank's step time, as a share."""

    threshold: float = 128 * 2**20
    cycle: float = 0.001
    jitter: float = 0.0


@dataclass(frozen=True)
class Prediction:
    """A step on a cluster: seconds, and what they go to."""

    step: float
    compute: float  # of a rank alone
    limit: str
    responses: int
    exchange: float  # seconds in which responses are exchanged, hidden ones included

    @property
    def efficiency(self) -> float:
        """Throughput of N ranks / (N x throughput of one alone)."""
        return self.compute / self.step if self.step > 0 else 1.0


@dataclass
class _Engine:
    """The coordinator's batch and the executor's queue, in the time of the step."""

    cluster: Cluster
    exchange: Exchange
    options: Options
    batch: list[tuple[str, float]] = field(default_factory=list)
    batch_since: float = 0.0
    batch_bytes: float = 0.0
    free_at: float = 0.0
    done: dict[str, float] = field(default_factory=dict)
    costs: list[Cost] = field(default_factory=list)
    delays: float = 0.0  # waiting for others to fuse with, and for the decision

    def submit(self, name: str, size: float, now: float) -> None:
        if not self.batch:
            self.batch_since = now
        self.batch.append((name, size))
        self.batch_bytes += size
        if self.batch_bytes >= self.options.threshold:
            self.flush(now)

    def advance(self, now: float) -> None:
        """Flushes what has waited for a cycle by now."""
        if self.batch and self.batch_since + self.options.cycle <= now:
            self.flush(self.batch_since + self.options.cycle)

    def wait(self, name: str | None, now: float) -> float:
        """When the tensor is there, or all. Somebody is blocked on it, so it is flushed at once."""
        pending = [one for one, _ in self.batch]
        if pending and (name is None or name in pending):
            self.flush(now)
        if name is not None:
            return max(now, self.done.get(name, now))
        return max([now, *self.done.values()])

    def flush(self, now: float) -> None:
        known = now + negotiation_seconds(self.cluster)
        for response in fuse([size for _, size in self.batch], self.options.threshold):
            cost = self.exchange(sum(self.batch[i][1] for i in response), self.cluster)
            begin = max(known, self.free_at)
            self.delays += max(0.0, known - max(self.free_at, self.batch_since))
            self.free_at = begin + cost.busy
            self.costs.append(cost)
            for index in response:
                self.done[self.batch[index][0]] = begin + cost.total
        self.batch, self.batch_bytes = [], 0.0


def fuse(sizes: Sequence[float], threshold: float) -> list[list[int]]:
    """The batch as responses, by the rule of core/engine/fusion.h: indices, in the order of execution.

    A tensor that does not fit is skipped, and later ones are looked at as long as fused and skipped
    bytes together stay within the threshold.
    """
    responses: list[list[int]] = []
    rest = list(range(len(sizes)))
    while rest:
        head, *others = rest
        response, skipped, looked_at = [head], [], sizes[head]
        for place, index in enumerate(others):
            looked_at += sizes[index]
            if looked_at > threshold or threshold <= 0:
                skipped += others[place:]
                break
            response.append(index)
        responses.append(response)
        rest = skipped
    return responses


def play(
    program: Program, cluster: Cluster, exchange: Exchange, options: Options = Options()
) -> Prediction:
    """Predicts one step. `exchange`: see EXCHANGES."""
    slowness = 1 + options.jitter * expected_slowest(cluster.size)
    engine = _Engine(cluster, exchange, options)
    clock = 0.0
    for action in program.actions:
        clock += action.gap * slowness
        engine.advance(clock)
        if isinstance(action, Submit):
            # Names may come twice in a step, e.g. of a metric.
            engine.submit(action.name, action.size, clock)
        else:
            clock = engine.wait(action.name, clock)
    step = engine.wait(None, clock) + program.tail * slowness
    stragglers = program.compute * (slowness - 1)
    return Prediction(
        step,
        program.compute,
        _limit(step, program.compute, stragglers, engine),
        len(engine.costs),
        sum(cost.total for cost in engine.costs),
    )


def predict(
    programs: Sequence[Program], cluster: Cluster, exchange: Exchange, options: Options = Options()
) -> Prediction:
    """The median over recorded steps, of step time and of compute time."""
    steps = [play(program, cluster, exchange, options) for program in programs]
    middle = sorted(steps, key=lambda one: one.step)[len(steps) // 2]
    return replace(
        middle,
        step=median(one.step for one in steps),
        compute=median(one.compute for one in steps),
    )


def expected_slowest(ranks: int) -> float:
    """Of `ranks` independent normal deviates the greatest, on average (Blom 1958)."""
    if ranks <= 1:
        return 0.0
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))


def _limit(step: float, compute: float, stragglers: float, engine: _Engine) -> str:
    if step - compute <= _NEGLIGIBLE * step:
        return COMPUTE
    exposed = step - compute - stragglers
    if stragglers > exposed:
        return STRAGGLERS
    shares = {
        BANDWIDTH: sum(cost.bandwidth for cost in engine.costs),
        LATENCY: sum(cost.latency for cost in engine.costs),
        LOCAL: sum(cost.local for cost in engine.costs),
        NEGOTIATION: engine.delays,
    }
    return max(shares, key=lambda name: shares[name])


__all__ = [
    "EXCHANGES",
    "Cluster",
    "Options",
    "Prediction",
    "expected_slowest",
    "fuse",
    "play",
    "predict",
]
