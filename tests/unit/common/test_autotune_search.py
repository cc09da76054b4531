"""Settings, axes and the search: what is measured next, and how good what is found is."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from autotune_surfaces import START, SURFACES, Surface, optimum, score_of

from horovod.common.autotune import space as sp
from horovod.common.autotune.search import Search, expected_improvement
from horovod.common.autotune.space import MEBIBYTE, Setting, Space


def run(
    surface: Surface,
    space: Space,
    noise: float = 0.0,
    seed: int = 0,
    samples: int = 20,
) -> Search:
    """A whole search; each sample is a median of five noisy scores, as on an engine."""
    source = random.Random(seed)
    search = Search(space, True, samples, most_noise=0.8, seed=seed)
    while (setting := search.ask()) is not None:
        true = score_of(surface, setting)
        scores = [true * (1 + source.gauss(0, noise)) for _ in range(5)]
        search.tell(setting, statistics.median(scores))
    return search


@pytest.mark.parametrize(("noise", "seed"), [(0.0, 1), (0.03, 2)])
@pytest.mark.parametrize("surface", SURFACES)
def test_twenty_samples_come_within_five_percent_of_the_optimum(
    surface: Surface, noise: float, seed: int
) -> None:
    search = run(surface, Space(START), noise, seed)
    assert len(search.scores) <= 20
    assert score_of(surface, search.best()[0]) >= 0.95 * optimum(surface)


def test_the_same_seed_and_scores_give_the_same_settings_and_another_seed_others() -> None:
    first = run(SURFACES[0], Space(START), 0.02, seed=5, samples=9)
    again = run(SURFACES[0], Space(START), 0.02, seed=5, samples=9)
    other = run(SURFACES[0], Space(START), 0.02, seed=6, samples=9)
    assert first.settings == again.settings
    assert first.settings != other.settings


def test_asking_twice_gives_the_same_answer() -> None:
    search = run(SURFACES[0], Space(START), samples=7)
    search.most_samples = 8
    assert search.ask() == search.ask() is not None


def test_the_first_samples_are_the_starting_values_and_the_four_test_points() -> None:
    found = run(SURFACES[0], Space(START), samples=5).settings
    assert [(s.threshold_bytes // MEBIBYTE, s.cycle_time_ms) for s in found] == [
        (128, 1.0),
        (4, 5.0),
        (32, 50.0),
        (16, 25.0),
        (8, 10.0),
    ]


def test_all_settings_are_within_the_range_and_none_comes_twice() -> None:
    search = run(SURFACES[1], Space(START), 0.03)
    assert len(set(search.settings)) == len(search.settings) == 20
    for setting in search.settings[1:]:
        assert 0 <= setting.threshold_bytes <= 64 * MEBIBYTE
        assert setting.threshold_bytes % (MEBIBYTE // 16) == 0
        assert 1.0 <= setting.cycle_time_ms <= 100.0
        assert setting.cycle_time_ms == round(setting.cycle_time_ms, 2)


def test_what_is_fixed_keeps_its_value() -> None:
    start = Setting(3 * MEBIBYTE + 17, 0.123, True)
    search = run(SURFACES[0], Space(start, threshold_free=False), samples=12)
    assert {s.threshold_bytes for s in search.settings} == {start.threshold_bytes}
    assert len({s.cycle_time_ms for s in search.settings}) > 5
    search = run(SURFACES[0], Space(start, cycle_time_free=False), samples=12)
    assert {s.cycle_time_ms for s in search.settings} == {0.123}
    assert len({s.threshold_bytes for s in search.settings}) > 5


def test_one_free_axis_is_tuned_as_well_as_two() -> None:
    surface = SURFACES[0]
    start = Setting(8 * MEBIBYTE, 1.0, True)
    search = run(surface, Space(start, threshold_free=False), 0.02, samples=15)
    highest = max(surface(8.0, 1.0 + tenths / 10.0) for tenths in range(991))
    assert score_of(surface, search.best()[0]) >= 0.95 * highest


def test_without_a_free_axis_one_sample_is_enough() -> None:
    search = run(SURFACES[0], Space(START, threshold_free=False, cycle_time_free=False))
    assert search.settings == [START]
    assert search.best() == (START, score_of(SURFACES[0], START))


@pytest.mark.parametrize("samples", [1, 3])
def test_fewer_samples_than_test_points_are_possible(samples: int) -> None:
    search = run(SURFACES[0], Space(START), samples=samples)
    assert len(search.scores) == samples
    assert search.best()[0] in search.settings


def test_a_search_that_can_gain_nothing_ends_early() -> None:
    assert len(run(lambda mebibytes, milliseconds: 700.0, Space(START)).scores) < 20


def test_scores_of_zero_are_no_error() -> None:
    assert run(lambda mebibytes, milliseconds: 0.0, Space(START), samples=12).best()[1] == 0.0


@pytest.mark.parametrize(
    ("mean", "deviation", "best"), [(1.0, 2.0, 1.5), (5.0, 0.5, 4.0), (0, 1, 3)]
)
def test_expected_improvement_is_the_mean_gain_of_a_normal_variable(
    mean: float, deviation: float, best: float
) -> None:
    width = deviation / 1000
    integral = 0.0
    for i in range(-8000, 8000):
        x = mean + (i + 0.5) * width
        density = (
            math.exp(-0.5 * ((x - mean) / deviation) ** 2) / deviation / math.sqrt(2 * math.pi)
        )
        integral += max(x - best, 0.0) * density * width
    assert expected_improvement(mean, deviation, best) == pytest.approx(integral, rel=1e-4)


def test_without_doubt_the_improvement_is_the_difference() -> None:
    assert expected_improvement(3.0, 0.0, 1.0) == 2.0
    assert expected_improvement(1.0, 0.0, 3.0) == 0.0


@pytest.mark.parametrize("axis", [sp.THRESHOLD_AXIS, sp.CYCLE_TIME_AXIS])
def test_an_axis_maps_its_range_to_zero_to_one_and_back(axis: sp.Axis) -> None:
    assert axis.coordinate(axis.low) == 0.0
    assert axis.coordinate(axis.high) == 1.0
    assert axis.value(-1.0) == axis.low
    assert axis.value(2.0) == axis.high
    for value in (4.0, 25.0, 64.0):
        assert axis.value(axis.coordinate(value)) == pytest.approx(value, abs=axis.quantum)


def test_a_setting_is_described_for_people_and_as_variables() -> None:
    setting = Setting(int(12.25 * MEBIBYTE), 4.7, False)
    assert setting.describe() == (
        "fusion threshold 12.25 MiB, cycle time 4.7 ms, response cache off"
    )
    assert setting.variables() == (
        "HOROVOD_FUSION_THRESHOLD=12845056 HOROVOD_CYCLE_TIME=4.7 HOROVOD_CACHE_CAPACITY=0"
    )
