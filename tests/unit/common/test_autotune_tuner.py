"""The whole tuning as a pure object: warm-up, searches, final, and going on after a new start."""

from __future__ import annotations

import random

import pytest
from autotune_surfaces import START, Surface, flat, hill_at_small_values, options, score_of

from horovod.common.autotune.options import Options, options_from_environment
from horovod.common.autotune.space import MEBIBYTE, Setting, Space
from horovod.common.autotune.tuner import Final, Tuner


def finish(
    tuner: Tuner,
    surface: Surface,
    cache_gain: float = 1.0,
    noise: float = 0.0,
    samples: int = 1000,
) -> list[Setting]:
    """Answers the tuner until it has a winner, or so often; returns what was measured."""
    source = random.Random(1)
    measured: list[Setting] = []
    while len(measured) < samples and (setting := tuner.ask()) is not None:
        measured.append(setting)
        tuner.tell(setting, score_of(surface, setting, cache_gain) * (1 + source.gauss(0, noise)))
    return measured


def test_warm_up_samples_are_taken_with_the_starting_values_and_discarded() -> None:
    tuner = Tuner(options())
    for _ in range(3):
        assert tuner.ask() == START
        assert tuner.tell(START, 1e9) is False
    assert tuner.history == []
    setting = tuner.ask()
    assert setting is not None
    assert tuner.tell(setting, 700.0) is True
    assert [sample.score for sample in tuner.history] == [700.0]


def test_each_choice_of_the_cache_gets_a_search_and_then_the_final_comes() -> None:
    measured = finish(Tuner(options(warmup_samples=0)), hill_at_small_values, cache_gain=1.1)
    assert [setting.cache_enabled for setting in measured[:12]] == [True] * 6 + [False] * 6
    assert len(measured) == 12 + 3 * 3  # the starting values and the best of each search


@pytest.mark.parametrize("cache_gain", [1.2, 0.8])
def test_the_better_choice_of_the_cache_wins(cache_gain: float) -> None:
    tuner = Tuner(options(most_samples=12))
    finish(tuner, hill_at_small_values, cache_gain, noise=0.01)
    assert tuner.winner().setting.cache_enabled is (cache_gain > 1)


def test_a_cache_that_the_user_set_is_not_switched() -> None:
    off = Setting(START.threshold_bytes, START.cycle_time_ms, False)
    measured = finish(Tuner(options(Space(off, cache_free=False))), hill_at_small_values)
    assert {setting.cache_enabled for setting in measured} == {False}


def test_only_the_cache_free_is_a_comparison_of_two() -> None:
    space = Space(START, threshold_free=False, cycle_time_free=False)
    tuner = Tuner(options(space, warmup_samples=0))
    measured = finish(tuner, flat, cache_gain=0.9)
    assert len(measured) == 2 + 2 * 3
    assert tuner.winner().setting == Setting(START.threshold_bytes, START.cycle_time_ms, False)


@pytest.mark.parametrize("seed", range(6))
def test_the_winner_scored_at_least_as_much_as_the_starting_values(seed: int) -> None:
    tuner = Tuner(options(seed=seed, most_samples=5))
    finish(tuner, flat, noise=0.2)
    assert tuner.winner().score >= tuner.score_of_start()


def test_where_nothing_is_better_the_starting_values_stay() -> None:
    tuner = Tuner(options())
    finish(tuner, lambda mebibytes, milliseconds: 100.0 + mebibytes - milliseconds)
    assert tuner.winner().setting == START


def test_a_final_of_one_is_one_sample() -> None:
    final = Final([START])
    assert final.ask() == START
    final.tell(START, 5.0)
    assert final.ask() is None
    assert (final.winner().setting, final.winner().score) == (START, 5.0)


def test_contenders_of_a_final_are_measured_in_turn_and_another_one_begins_each_round() -> None:
    a, b = START, Setting(0, 1.0, True)
    final = Final([a, b])
    order = []
    while (setting := final.ask()) is not None:
        order.append(setting)
        final.tell(setting, 3.0)
    assert order == [a, b, b, a, a, b]
    assert final.winner().setting == a  # a tie goes to the first


@pytest.mark.parametrize(("score", "wins"), [(100.9, False), (101.1, True)])
def test_the_starting_values_stay_unless_another_setting_is_clearly_better(
    score: float, wins: bool
) -> None:
    a, b = START, Setting(0, 1.0, True)
    final = Final([a, b])
    while (setting := final.ask()) is not None:
        final.tell(setting, score if setting == b else 100.0)
    assert final.winner().setting == (b if wins else a)


def test_a_tuning_that_was_interrupted_goes_on_where_it_was() -> None:
    whole = Tuner(options())
    expected = finish(whole, hill_at_small_values)
    for pause in (2, 7, 12, 20):
        tuner = Tuner(options())
        measured = finish(tuner, hill_at_small_values, samples=pause)
        left = tuner.warmup_left
        tuner.resume()
        assert tuner.ask() == START if left else tuner.warmup_left == 1
        if not left:
            tuner.tell(START, 0.0)  # the one sample in which the new engine warms up
        measured += finish(tuner, hill_at_small_values)
        assert measured == expected
        assert tuner.winner() == whole.winner()


def test_a_finished_tuning_has_nothing_to_measure_on_a_new_engine() -> None:
    tuner = Tuner(options())
    finish(tuner, hill_at_small_values)
    tuner.resume()
    assert tuner.ask() is None


def test_without_a_warm_up_a_new_engine_needs_none_either() -> None:
    tuner = Tuner(options(warmup_samples=0))
    tuner.resume()
    assert tuner.warmup_left == 0


def test_options_have_the_documented_defaults() -> None:
    assert options_from_environment({}) == options(enabled=False, most_samples=20)


def test_values_in_the_environment_are_fixed_and_empty_ones_are_not() -> None:
    found = options_from_environment(
        {
            "HOROVOD_AUTOTUNE": "1",
            "HOROVOD_AUTOTUNE_LOG": "/tmp/log.csv",
            "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0",
            "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "9",
            "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0.25",
            "HOROVOD_AUTOTUNE_SEED": "7",
            "HOROVOD_FUSION_THRESHOLD": "1048576",
            "HOROVOD_CYCLE_TIME": "",
            "HOROVOD_CACHE_CAPACITY": "0",
        }
    )
    start = Setting(MEBIBYTE, 1.0, False)
    space = Space(start, threshold_free=False, cycle_time_free=True, cache_free=False)
    assert found == Options(True, space, 0, 2, 9, 0.25, 7, "/tmp/log.csv")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "1.1"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "-0.1"),
        ("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", "0"),
        ("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", "0"),
        ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "-1"),
        ("HOROVOD_AUTOTUNE", "maybe"),
    ],
)
def test_illegal_values_are_refused_with_the_variable_in_the_text(
    variable: str, value: str
) -> None:
    with pytest.raises(ValueError, match=f"{variable}='{value}'"):
        options_from_environment({variable: value})
