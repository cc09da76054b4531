"""Made-up engines for the tests of autotune: a score for every setting, and an engine that has it."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable

from horovod.common.autotune.options import Options
from horovod.common.autotune.space import MEBIBYTE, Setting, Space

Surface = Callable[[float, float], float]  # (MiB, milliseconds) -> bytes per microsecond


def bump(value: float, centre: float, width: float) -> float:
    return math.exp(-0.5 * ((value - centre) / width) ** 2)


def hill_at_small_values(mebibytes: float, milliseconds: float) -> float:
    along = bump(math.log2(mebibytes + 0.25), 3.0, 1.5)
    return 500.0 + 500.0 * along * bump(math.log(milliseconds), math.log(4.0), 0.8)


def hill_at_large_values(mebibytes: float, milliseconds: float) -> float:
    away = ((mebibytes - 45.0) / 15.0) ** 2 + ((milliseconds - 70.0) / 20.0) ** 2
    return 400.0 + 600.0 * math.exp(-away)


def sharp_ridge_of_cycle_time(mebibytes: float, milliseconds: float) -> float:
    return (
        1000.0 / (1.0 + abs(milliseconds - 12.0) / 25.0) * (1.0 - 0.5 * math.exp(-mebibytes / 8.0))
    )


def best_without_fusion_and_waiting(mebibytes: float, milliseconds: float) -> float:
    return 1000.0 / (1.0 + mebibytes / 30.0) / (1.0 + milliseconds / 40.0)


def product_of_both(mebibytes: float, milliseconds: float) -> float:
    return 300.0 + 700.0 * bump(math.log((mebibytes + 0.5) * milliseconds), math.log(150.0), 1.0)


def training_step(mebibytes: float, milliseconds: float) -> float:
    """134 MB of gradients: a cost per message, a last message that nothing overlaps, waiting."""
    piece = max(mebibytes, 0.5)
    messages = 134.0 / piece * 0.6
    tail = min(milliseconds, 60.0) * 0.4 + piece / 5.0
    return 134e3 / (100.0 + max(0.0, messages - 60.0) + tail)


def flat(mebibytes: float, milliseconds: float) -> float:
    return 700.0


SURFACES: list[Surface] = [
    hill_at_small_values,
    hill_at_large_values,
    sharp_ridge_of_cycle_time,
    best_without_fusion_and_waiting,
    product_of_both,
    training_step,
    flat,
]


def optimum(surface: Surface) -> float:
    """The highest score within the tuned range, by trying a grid."""
    return max(
        surface(halves / 2.0, float(milliseconds))
        for halves in range(64 * 2 + 1)
        for milliseconds in range(1, 101)
    )


def score_of(surface: Surface, setting: Setting, cache_gain: float = 1.0) -> float:
    gain = cache_gain if setting.cache_enabled else 1.0
    return gain * surface(setting.threshold_bytes / MEBIBYTE, setting.cycle_time_ms)


START = Setting(128 * MEBIBYTE, 1.0, True)


def options(space: Space | None = None, **changes: object) -> Options:
    values: dict[str, object] = {
        "enabled": True,
        "space": space or Space(START),
        "warmup_samples": 3,
        "steps_per_sample": 10,
        "most_samples": 6,
        "most_noise": 0.8,
        "seed": 0,
        "log_path": None,
    }
    return Options(**(values | changes))  # type: ignore[arg-type]


class SimulatedEngine:
    """An engine whose clock is a number: steps pass when somebody waits for them.

    Attributes:
        applied: all settings that were applied, in order.
        steps_left: after so many steps the script stops making steps.
    """

    BYTES_PER_STEP = 1e6

    def __init__(
        self,
        surface: Surface,
        start: Setting,
        noise: float = 0.0,
        cache_gain: float = 1.0,
        seed: int = 0,
        steps_left: int = 10**9,
    ) -> None:
        self.applied: list[Setting] = []
        self.steps_left = steps_left
        self.out_of_steps = threading.Event()
        self._surface = surface
        self._setting = start
        self._noise = noise
        self._cache_gain = cache_gain
        self._random = random.Random(seed)
        self._steps = 0
        self._seconds = 0.0
        self._running = True

    def tuning_sample(self) -> dict[str, float]:
        self._require_running()
        return {
            "bytes": self._steps * self.BYTES_PER_STEP,
            "steps": self._steps,
            "cycles": self._steps,
            "seconds": self._seconds,
        }

    def wait_for_steps(self, count: int, timeout_seconds: float) -> bool:
        while self._steps < count:
            if not self._running:
                return False
            if self.steps_left == 0:
                self.out_of_steps.set()
                return False
            self._step()
        return True

    def set_parameters(
        self, fusion_threshold_bytes: int, cycle_time_ms: float, cache_enabled: bool
    ) -> None:
        self._require_running()
        self._setting = Setting(fusion_threshold_bytes, cycle_time_ms, cache_enabled)
        self.applied.append(self._setting)

    def is_running(self) -> bool:
        return self._running

    def end(self) -> None:
        self._running = False

    def _step(self) -> None:
        score = score_of(self._surface, self._setting, self._cache_gain)
        score *= 1.0 + self._random.gauss(0.0, self._noise)
        self._seconds += self.BYTES_PER_STEP / score / 1e6
        self._steps += 1
        self.steps_left -= 1

    def _require_running(self) -> None:
        if not self._running:
            raise ValueError("Horovod has not been initialized; use hvd.init().")
