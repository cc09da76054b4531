"""What is tuned: settings, the axes on which they lie, and which of them are fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEBIBYTE = 1024 * 1024

# (MiB, milliseconds) that every search begins with, after the starting values.
TEST_POINTS = ((4.0, 5.0), (32.0, 50.0), (16.0, 25.0), (8.0, 10.0))


@dataclass(frozen=True, slots=True)
class Setting:
    """One choice of what is tuned.

    Attributes:
        threshold_bytes: fusion threshold; 0 means no fusion.
        cycle_time_ms: milliseconds.
        cache_enabled: whether the response cache is used.
    """

    threshold_bytes: int
    cycle_time_ms: float
    cache_enabled: bool

    def describe(self) -> str:
        """The setting for people: `fusion threshold 4 MiB, cycle time 5 ms, response cache on`."""
        cache = "on" if self.cache_enabled else "off"
        return (
            f"fusion threshold {self.threshold_bytes / MEBIBYTE:g} MiB, "
            f"cycle time {self.cycle_time_ms:g} ms, response cache {cache}"
        )

    def variables(self) -> str:
        """The environment variables that give this setting, as words of a shell command."""
        words = [
            f"HOROVOD_FUSION_THRESHOLD={self.threshold_bytes}",
            f"HOROVOD_CYCLE_TIME={self.cycle_time_ms:g}",
        ]
        if not self.cache_enabled:
            words.append("HOROVOD_CACHE_CAPACITY=0")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, and its map to 0..1.

    The map goes by the square root: a millisecond more matters much at 1 ms and little at 100 ms,
    and the same holds for a megabyte. Linear coordinates would leave hardly any room to the small
    values, logarithmic ones hardly any to the large ones.
    """

    low: float
    high: float
    quantum: float  # values are multiples of it

    def coordinate(self, value: float) -> float:
        """0 for `low`, 1 for `high`; beyond for values outside."""
        bottom = math.sqrt(self.low)
        return (math.sqrt(value) - bottom) / (math.sqrt(self.high) - bottom)

    def value(self, coordinate: float) -> float:
        """The value at a coordinate, clipped to 0..1 and rounded to the quantum."""
        bottom = math.sqrt(self.low)
        inside = min(max(coordinate, 0.0), 1.0)
        exact = (bottom + inside * (math.sqrt(self.high) - bottom)) ** 2
        rounded = round(exact / self.quantum) * self.quantum
        return min(max(round(rounded, 6), self.low), self.high)


THRESHOLD_AXIS = Axis(low=0.0, high=64.0, quantum=1 / 16)  # MiB
CYCLE_TIME_AXIS = Axis(low=1.0, high=100.0, quantum=0.01)  # milliseconds

Coordinates = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Space:
    """All settings that may be chosen.

    Attributes:
        start: the values the engine starts with; where something is fixed, it is fixed to these.
        threshold_free: whether the fusion threshold may be changed.
        cycle_time_free: whether the cycle time may be changed.
        cache_free: whether the response cache may be switched.
    """

    start: Setting
    threshold_free: bool = True
    cycle_time_free: bool = True
    cache_free: bool = True

    @property
    def anything_free(self) -> bool:
        """False when there is nothing to tune."""
        return self.threshold_free or self.cycle_time_free or self.cache_free

    @property
    def dimensions(self) -> int:
        """How many numbers, besides the choices, are tuned: 0 to 2."""
        return self.threshold_free + self.cycle_time_free

    def cache_choices(self) -> tuple[bool, ...]:
        """What the cache may be, the starting choice first."""
        own = self.start.cache_enabled
        return (own, not own) if self.cache_free else (own,)

    def coordinates(self, setting: Setting) -> Coordinates:
        """Where a setting lies: one number for each free axis, 0..1 within the tuned range."""
        found = []
        if self.threshold_free:
            found.append(THRESHOLD_AXIS.coordinate(setting.threshold_bytes / MEBIBYTE))
        if self.cycle_time_free:
            found.append(CYCLE_TIME_AXIS.coordinate(setting.cycle_time_ms))
        return tuple(found)

    def setting(self, coordinates: Coordinates, cache_enabled: bool) -> Setting:
        """The setting at these coordinates; what is fixed has its starting value."""
        left = list(coordinates)
        threshold_bytes, cycle_time_ms = self.start.threshold_bytes, self.start.cycle_time_ms
        if self.threshold_free:
            threshold_bytes = int(THRESHOLD_AXIS.value(left.pop(0)) * MEBIBYTE)
        if self.cycle_time_free:
            cycle_time_ms = CYCLE_TIME_AXIS.value(left.pop(0))
        return Setting(threshold_bytes, cycle_time_ms, cache_enabled)

    def first_settings(self, cache_enabled: bool) -> list[Setting]:
        """What a search measures before it has anything to reason from, without repetitions."""
        found = [Setting(self.start.threshold_bytes, self.start.cycle_time_ms, cache_enabled)]
        for mebibytes, milliseconds in TEST_POINTS:
            setting = Setting(
                int(mebibytes * MEBIBYTE) if self.threshold_free else self.start.threshold_bytes,
                milliseconds if self.cycle_time_free else self.start.cycle_time_ms,
                cache_enabled,
            )
            if setting not in found:
                found.append(setting)
        return found
