"""The whole of one tuning: warm-up, a search for each choice of the cache, then a final.

`Tuner` decides and touches nothing: `ask` for the next setting, measure it, `tell` the score. What it has
learnt outlives the engine, so tuning goes on after `hvd.shutdown()` and `hvd.init()`.

The final measures the best of each search and the starting values again, in turn. The highest of many
noisy scores is partly luck, and a machine is not equally fast at all times; in the final every contender
has the same chances. So the winner scored at least as high as the starting values in the same minutes.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from horovod.common.autotune.options import Options
from horovod.common.autotune.search import Search
from horovod.common.autotune.space import Setting

ROUNDS_OF_THE_FINAL = 3
# The starting values stay unless another setting scored higher by this share: less is within what the same
# setting differs by from one minute to the next.
LEAST_ADVANTAGE = 0.01


@dataclass(frozen=True, slots=True)
class Sample:
    """One setting and its score in bytes per microsecond."""

    setting: Setting
    score: float


@dataclass(slots=True)
class Final:
    """Measures few contenders in turn, starting with another one in each round.

    Attributes:
        contenders: the first are the starting values, which have to be beaten clearly.
        scores: of each contender, by round.
    """

    contenders: list[Setting]
    scores: dict[Setting, list[float]] = field(default_factory=dict)

    def ask(self) -> Setting | None:
        """The contender to measure next, or None when all rounds are over."""
        rounds = ROUNDS_OF_THE_FINAL if len(self.contenders) > 1 else 1
        for round_number in range(rounds):
            first = round_number % len(self.contenders)
            for setting in self.contenders[first:] + self.contenders[:first]:
                if len(self.scores.get(setting, ())) <= round_number:
                    return setting
        return None

    def tell(self, setting: Setting, score: float) -> None:
        """Takes the result of a sample."""
        self.scores.setdefault(setting, []).append(score)

    def score(self, setting: Setting) -> float:
        """The median over the rounds."""
        return statistics.median(self.scores[setting])

    def winner(self) -> Sample:
        """The contender with the highest median, or the first if that is hardly less."""
        first = self.contenders[0]
        best = max(self.contenders, key=self.score)
        if self.score(best) < (1.0 + LEAST_ADVANTAGE) * self.score(first):
            best = first
        return Sample(best, self.score(best))


@dataclass(slots=True)
class Tuner:
    """What has been learnt, and what to do next.

    Attributes:
        options: how to tune; `options.space` must have something free.
        warmup_left: samples that are still to be discarded.
        history: all samples in order, without those of the warm-up.
        final: None until the searches have ended.
    """

    options: Options
    warmup_left: int = field(init=False)
    history: list[Sample] = field(default_factory=list)
    final: Final | None = None
    _searches: list[Search] = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        self.warmup_left = options.warmup_samples
        self._searches = [
            Search(options.space, choice, options.most_samples, options.most_noise, options.seed)
            for choice in options.space.cache_choices()
        ]

    @property
    def start(self) -> Setting:
        """The values the engine started with."""
        return self.options.space.start

    def ask(self) -> Setting | None:
        """The setting to measure next, or None when the winner is known."""
        if self.warmup_left > 0:
            return self.start
        if self.final is None:
            for search in self._searches:
                if (setting := search.ask()) is not None:
                    return setting
            best = [search.best()[0] for search in self._searches]
            self.final = Final(list(dict.fromkeys([self.start, *best])))
        return self.final.ask()

    def tell(self, setting: Setting, score: float) -> bool:
        """Takes the result of a sample; returns False when it was one of the warm-up."""
        if self.warmup_left > 0:
            self.warmup_left -= 1
            return False
        self.history.append(Sample(setting, score))
        if self.final is not None:
            self.final.tell(setting, score)
        else:
            for search in self._searches:
                if search.cache_enabled == setting.cache_enabled:
                    search.tell(setting, score)
        return True

    def resume(self) -> None:
        """A new engine will be measured: what is in its caches has to grow anew, for one sample."""
        if self.final is None or self.final.ask() is not None:
            self.warmup_left = max(self.warmup_left, min(1, self.options.warmup_samples))

    def winner(self) -> Sample:
        """The best setting and its score. Call when `ask` has returned None."""
        assert self.final is not None, "the final has not begun"
        return self.final.winner()

    def score_of_start(self) -> float:
        """What the starting values scored in the final. Call when `ask` has returned None."""
        assert self.final is not None, "the final has not begun"
        return self.final.score(self.start)

    def best_so_far(self) -> Sample | None:
        """The sample with the highest score, or None when there is none."""
        return max(self.history, key=lambda sample: sample.score, default=None)
