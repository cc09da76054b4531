"""The thread that tunes, on a simulated engine."""

from __future__ import annotations

import logging
import statistics
from pathlib import Path

import pytest
from autotune_surfaces import (
    START,
    SimulatedEngine,
    flat,
    hill_at_small_values,
    optimum,
    options,
    score_of,
)

from horovod.common.autotune.driver import Autotune, Driver
from horovod.common.autotune.log_file import HEADER, read_log
from horovod.common.autotune.measure import Stopped, measure
from horovod.common.autotune.options import Options
from horovod.common.autotune.space import Space
from horovod.common.autotune.tuner import Tuner

LIMIT = 60.0


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger("horovod")
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level(logging.INFO, logger="horovod")
    return caplog


def warnings(messages: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in messages.records if r.levelno == logging.WARNING]


def tune(engine: SimulatedEngine, chosen: Options, autotune: Autotune | None = None) -> Driver:
    driver = (autotune or Autotune()).start(chosen, 0, 2, engine)
    assert driver is not None
    assert driver.wait(LIMIT)
    return driver


def test_the_best_setting_is_applied_at_the_end_said_and_the_last_row(
    tmp_path: Path, messages: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.csv"
    engine = SimulatedEngine(hill_at_small_values, START, noise=0.02, cache_gain=1.1)
    tune(engine, options(most_samples=20, log_path=str(path)))
    winner = engine.applied[-1]
    assert winner.cache_enabled
    assert score_of(hill_at_small_values, winner) >= 0.95 * optimum(hill_at_small_values)
    samples = read_log(path)
    assert samples[-1].setting == winner
    assert samples[-1].score == pytest.approx(
        statistics.median(sample.score for sample in samples[-10:-1] if sample.setting == winner),
        rel=1e-5,
    )
    assert path.read_text().startswith(HEADER + "\n0,0,0,1,1,134217728,")
    (said,) = warnings(messages)
    assert said.startswith(
        f"Autotune has finished after {len(samples) - 1} samples. Chosen: fusion "
    )
    assert winner.describe() in said
    assert said.endswith(winner.variables())
    assert len([r for r in messages.records if r.levelno == logging.INFO]) == len(samples) - 1


def test_where_nothing_is_better_that_is_said(messages: pytest.LogCaptureFixture) -> None:
    engine = SimulatedEngine(lambda m, t: 100.0 + m - t, START, cache_gain=1.1)
    tune(engine, options(most_samples=5))
    assert engine.applied[-1] == START
    assert (
        "Nothing was clearly better than the starting values, which stay: fusion threshold 128 MiB"
        in (warnings(messages)[0])
    )


def test_the_same_seed_and_scores_give_the_same_log(tmp_path: Path) -> None:
    for name in ("a", "b"):
        engine = SimulatedEngine(hill_at_small_values, START, noise=0.05, seed=4)
        tune(engine, options(most_samples=8, seed=3, log_path=str(tmp_path / name)))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_log_that_cannot_be_written_does_not_stop_tuning(
    tmp_path: Path, messages: pytest.LogCaptureFixture
) -> None:
    engine = SimulatedEngine(hill_at_small_values, START)
    tune(engine, options(most_samples=5, log_path=str(tmp_path)))
    assert len([r for r in messages.records if r.levelno == logging.ERROR]) == 1
    assert warnings(messages)[0].startswith("Autotune has finished")


def test_a_stop_in_the_middle_says_what_was_best_so_far(messages: pytest.LogCaptureFixture) -> None:
    engine = SimulatedEngine(hill_at_small_values, START, steps_left=600)
    driver = Driver(Tuner(options(steps_per_sample=10)), engine)
    driver.start()
    assert engine.out_of_steps.wait(LIMIT)
    driver.stop()
    (said,) = warnings(messages)
    assert said.startswith(
        "Autotune was stopped before it had finished. Best of 8 samples so far: "
    )
    assert "HOROVOD_FUSION_THRESHOLD=" in said


def test_a_stop_in_the_warm_up_says_that_nothing_was_chosen(
    messages: pytest.LogCaptureFixture,
) -> None:
    engine = SimulatedEngine(hill_at_small_values, START, steps_left=20)
    driver = Driver(Tuner(options()), engine)
    driver.start()
    assert engine.out_of_steps.wait(LIMIT)
    driver.stop()
    assert "it has chosen nothing" in warnings(messages)[0]


def test_an_engine_that_ends_ends_tuning(messages: pytest.LogCaptureFixture) -> None:
    engine = SimulatedEngine(hill_at_small_values, START, steps_left=600)
    driver = Driver(Tuner(options()), engine)
    driver.start()
    assert engine.out_of_steps.wait(LIMIT)
    engine.end()
    assert driver.wait(LIMIT)
    assert [r for r in messages.records if r.levelno == logging.ERROR] == []


def test_an_engine_that_has_ended_already_is_no_error(messages: pytest.LogCaptureFixture) -> None:
    engine = SimulatedEngine(flat, START)
    engine.end()
    tune(engine, options())
    assert [r for r in messages.records if r.levelno == logging.ERROR] == []


def test_after_a_new_start_tuning_goes_on_with_what_was_learnt(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    chosen = options(most_samples=6, log_path=str(path))
    autotune = Autotune()
    first = SimulatedEngine(hill_at_small_values, START, steps_left=600)
    autotune.start(chosen, 0, 2, first)
    assert first.out_of_steps.wait(LIMIT)
    autotune.stop()
    learnt = path.read_text()
    assert learnt.count("\n") == 1 + 8
    second = SimulatedEngine(hill_at_small_values, START)
    tune(second, chosen, autotune)
    assert path.read_text().startswith(learnt)
    whole = tmp_path / "whole.csv"
    tune(SimulatedEngine(hill_at_small_values, START), options(most_samples=6, log_path=str(whole)))
    assert path.read_text() == whole.read_text()


def test_a_third_start_applies_the_winner_at_once() -> None:
    autotune = Autotune()
    first = SimulatedEngine(hill_at_small_values, START)
    tune(first, options(), autotune)
    second = SimulatedEngine(hill_at_small_values, START)
    tune(second, options(), autotune)
    assert second.applied == [first.applied[-1]]


def test_another_number_of_ranks_or_other_options_begin_anew() -> None:
    autotune = Autotune()
    tune(SimulatedEngine(hill_at_small_values, START), options(), autotune)
    for size, seed in ((3, 0), (2, 1)):
        engine = SimulatedEngine(hill_at_small_values, START)
        driver = autotune.start(options(seed=seed), 0, size, engine)
        assert driver is not None
        assert driver.wait(LIMIT)
        assert len(engine.applied) > 10


def test_only_rank_0_tunes_and_only_when_asked() -> None:
    engine = SimulatedEngine(flat, START)
    assert Autotune().start(options(), 1, 2, engine) is None
    assert Autotune().start(options(enabled=False), 0, 2, engine) is None
    assert engine.applied == []


def test_when_everything_is_fixed_that_is_said_and_nothing_is_tuned(
    messages: pytest.LogCaptureFixture,
) -> None:
    engine = SimulatedEngine(flat, START)
    fixed = Space(START, threshold_free=False, cycle_time_free=False, cache_free=False)
    assert Autotune().start(options(fixed), 0, 2, engine) is None
    assert "Autotune has nothing to tune" in warnings(messages)[0]
    assert engine.applied == []


def test_a_sample_is_the_median_of_five_scores_over_so_many_steps_each() -> None:
    class Scripted(SimulatedEngine):
        """Step s takes `times[s]` microseconds for 1000 bytes."""

        times = [50, *([1] * 3), *([2] * 3), *([1000] * 3), *([3] * 3), *([4] * 3)]

        def tuning_sample(self) -> dict[str, float]:
            passed = sum(self.times[: self._steps])
            return {"bytes": self._steps * 1e3, "steps": self._steps, "seconds": passed / 1e6}

    engine = Scripted(flat, START)
    assert measure(engine, 3, lambda: False) == pytest.approx(1000 / 3)
    assert engine.tuning_sample()["steps"] == 16  # one to settle, then five times three


@pytest.mark.parametrize("lag", [1, 2, -1, -3])
def test_a_counter_that_lags_or_runs_ahead_makes_no_empty_score(lag: int) -> None:
    class Lagging(SimulatedEngine):
        """Says after a wait that there were fewer steps than were waited for, or already more."""

        def tuning_sample(self) -> dict[str, float]:
            found = super().tuning_sample()
            return found | {"steps": max(found["steps"] - lag, 0)}

    assert measure(Lagging(flat, START), 1, lambda: False) == pytest.approx(700.0)


def test_measuring_stops_when_asked() -> None:
    engine = SimulatedEngine(flat, START, steps_left=7)
    with pytest.raises(Stopped):
        measure(engine, 3, engine.out_of_steps.is_set)
