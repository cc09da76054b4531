"""How a setting is scored on a running engine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Protocol

SCORES_PER_SAMPLE = 5
# Longest single wait, so that a request to stop is seen; the wait for steps goes on after it.
WAIT_SECONDS = 0.1


class Engine(Protocol):
    """What tuning needs of the engine; the module `horovod._core` has it."""

    def tuning_sample(self) -> Mapping[str, float]:
        """`bytes` executed, `steps` begun, `seconds` on a clock: all only grow."""

    def wait_for_steps(self, count: int, timeout_seconds: float, /) -> bool:
        """Blocks until `steps` is at least `count`; False on timeout or when the engine ended."""

    def set_parameters(
        self, fusion_threshold_bytes: int, cycle_time_ms: float, cache_enabled: bool, /
    ) -> None:
        """Changes what all ranks use, from now on."""

    def is_running(self) -> bool:
        """False when the engine was shut down or the job aborted."""


class Stopped(Exception):
    """Tuning was asked to stop, or the engine has ended."""


def wait_for(engine: Engine, steps: int, is_stopped: Callable[[], bool]) -> None:
    """Returns when the engine has begun so many steps.

    Raises:
        Stopped: that will not happen.
    """
    while not is_stopped():
        if engine.wait_for_steps(steps, WAIT_SECONDS):
            return
        if not engine.is_running():
            break
    raise Stopped


def measure(engine: Engine, steps_per_score: int, is_stopped: Callable[[], bool]) -> float:
    """Scores what the engine does now: the median of five scores, in bytes per microsecond.

    Begins with the next step, so that the one under way, of which a part ran with another setting, does
    not count. The median forgives two pauses, such as a validation or a checkpoint.

    Args:
        engine: with the setting that is to be measured.
        steps_per_score: training steps of each score.
        is_stopped: asked at least every 100 ms.

    Raises:
        Stopped: tuning was stopped, or the engine ended.
    """
    target = int(engine.tuning_sample()["steps"]) + 1
    wait_for(engine, target, is_stopped)
    before = engine.tuning_sample()
    scores = []
    for _ in range(SCORES_PER_SAMPLE):
        # The counter may lag behind what was waited for, and run ahead when this thread comes late.
        target = max(target, int(before["steps"])) + steps_per_score
        wait_for(engine, target, is_stopped)
        after = engine.tuning_sample()
        microseconds = (after["seconds"] - before["seconds"]) * 1e6
        scores.append((after["bytes"] - before["bytes"]) / max(microseconds, 1e-3))
        before = after
    return statistics.median(scores)
