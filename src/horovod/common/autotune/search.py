"""One Bayesian optimisation: which setting to measure next, given what was measured.

`Search` is a pure function of its observations and the seed: asked twice it answers the same.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from horovod.common.autotune.gaussian_process import GaussianProcess
from horovod.common.autotune.space import Coordinates, Setting, Space

CANDIDATES = 200  # random ones for each proposal
REFINEMENTS = (0.1, 0.05, 0.02, 0.01)  # steps of the pattern search around the best candidate
# After so many samples the setting is measured of which least is known, whatever it promises: a search
# that only goes where the gain beckons stays on the first hill that it finds.
EXPLORATIONS = (6, 9)
# `best` looks at so many of the highest scores: a fit that smooths too much must not pick a bad one.
CONTENDERS = 5
# The search may end before its last sample when nothing promises more than this share of the best.
LEAST_GAIN = 0.0005
SAMPLES_BEFORE_AN_EARLY_END = 10


def expected_improvement(mean: float, deviation: float, best: float) -> float:
    """Expected value of max(score - best, 0) when the score is normal (Mockus, 1978)."""
    if deviation <= 0.0:
        return max(mean - best, 0.0)
    z = (mean - best) / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return (mean - best) * 0.5 * math.erfc(-z / math.sqrt(2.0)) + deviation * density


@dataclass(slots=True)
class Search:
    """Finds a good setting for one combination of the categorical choices.

    Attributes:
        space: what may be chosen.
        cache_enabled: the choice that this search is for.
        most_samples: it asks for at most so many.
        most_noise: noise variance over signal variance that scores have at most, 0..1.
        seed: with the same scores, the same seed gives the same settings.
        settings: what was measured.
        scores: with which result.
    """

    space: Space
    cache_enabled: bool
    most_samples: int
    most_noise: float
    seed: int
    settings: list[Setting] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def ask(self) -> Setting | None:
        """The setting to measure next, or None when the search has ended."""
        measured = len(self.settings)
        if measured >= self.most_samples:
            return None
        first = self.space.first_settings(self.cache_enabled)
        if measured < len(first):
            return first[measured]
        if self.space.dimensions == 0:
            return None
        return self._propose()

    def tell(self, setting: Setting, score: float) -> None:
        """Takes the result of a sample."""
        self.settings.append(setting)
        self.scores.append(score)

    def best(self) -> tuple[Setting, float]:
        """The measured setting of which most is expected, and that expectation.

        The expectation is the process's mean there, not the score: among many noisy scores the highest
        is likely to be one that was lucky. At least one sample must have been taken.
        """
        if self.space.dimensions == 0:
            return self.settings[0], sum(self.scores) / len(self.scores)
        process, points = self._fit()
        by_score = sorted(range(len(points)), key=lambda i: -self.scores[i])
        means = {i: process.predict(points[i])[0] for i in by_score[:CONTENDERS]}
        chosen = max(means, key=means.__getitem__)
        return self.settings[chosen], means[chosen]

    def _fit(self) -> tuple[GaussianProcess, list[Coordinates]]:
        points = [self.space.coordinates(setting) for setting in self.settings]
        return GaussianProcess(points, self.scores, self.most_noise), points

    def _propose(self) -> Setting | None:
        process, points = self._fit()
        best = max(process.predict(point)[0] for point in points)

        explore = len(points) in EXPLORATIONS

        def gain(point: Coordinates) -> float:
            mean, deviation = process.predict(point)
            return deviation if explore else expected_improvement(mean, deviation, best)

        measured = set(self.settings)
        chosen, promised = None, -math.inf
        for point in self._candidates(points):
            if (setting := self.space.setting(point, self.cache_enabled)) in measured:
                continue
            if (value := gain(self.space.coordinates(setting))) > promised:
                chosen, promised = setting, value
        if chosen is None:
            return None
        for step in REFINEMENTS:
            for point in _neighbours(self.space.coordinates(chosen), step):
                setting = self.space.setting(point, self.cache_enabled)
                value = gain(self.space.coordinates(setting))
                if setting not in measured and value > promised:
                    chosen, promised = setting, value
        enough = len(self.settings) >= SAMPLES_BEFORE_AN_EARLY_END
        return None if enough and promised < LEAST_GAIN * best else chosen

    def _candidates(self, points: list[Coordinates]) -> list[Coordinates]:
        """Random points of the whole range, the corners, and some near the best so far."""
        dimensions = self.space.dimensions
        # A text as a seed gives the same numbers on every machine and version of Python.
        source = random.Random(f"{self.seed} {self.cache_enabled} {len(points)}")  # noqa: S311
        found = [tuple(source.random() for _ in range(dimensions)) for _ in range(CANDIDATES)]
        found += [
            tuple(float(corner >> axis & 1) for axis in range(dimensions))
            for corner in range(1 << dimensions)
        ]
        centre = points[max(range(len(points)), key=self.scores.__getitem__)]
        found += [
            tuple(x + source.gauss(0.0, 0.05) for x in centre) for _ in range(CANDIDATES // 5)
        ]
        return found


def _neighbours(point: Coordinates, step: float) -> list[Coordinates]:
    """Points one step away along each axis, within the range."""
    found = []
    for axis, value in enumerate(point):
        for moved in (value - step, value + step):
            found.append((*point[:axis], min(max(moved, 0.0), 1.0), *point[axis + 1 :]))
    return found
