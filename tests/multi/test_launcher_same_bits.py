"""Training ends with the same bits: on all ranks, in every run, and however tensors were fused."""

from __future__ import annotations

import functools

import pytest
from launcher_process import launch
from launcher_training import Ending, command, endings, environment

OTHER_SETTINGS = [
    {},  # once more
    {"HOROVOD_FUSION_THRESHOLD": "0"},
    {"HOROVOD_FUSION_THRESHOLD": "1000"},
    {"HOROVOD_CYCLE_TIME": "5"},
    {"HOROVOD_CACHE_CAPACITY": "0"},
]
TWO_HOSTS = ("-np", "4", "-H", "localhost:2,127.0.0.1:2")


def ending_of_all_ranks(options: tuple[str, ...], **variables: str) -> Ending:
    """Trains; how all ranks ended, which must be the same."""
    done = launch(*options, *command(), env=environment(**variables))
    assert done.returncode == 0, done.stderr.decode()
    found = endings(done.stdout, int(options[1]))
    assert len(set(found)) == 1, found
    return found[0]


@functools.cache
def default_ending(ranks: int) -> Ending:
    return ending_of_all_ranks(("-np", str(ranks)))


@pytest.mark.parametrize("variables", OTHER_SETTINGS, ids=str)
@pytest.mark.parametrize("ranks", [2, 3])
def test_on_one_host_runs_and_settings_do_not_change_a_bit(ranks: int, variables) -> None:
    assert ending_of_all_ranks(("-np", str(ranks)), **variables) == default_ending(ranks)


def test_on_two_hosts_equal_settings_give_equal_bits() -> None:
    assert ending_of_all_ranks(TWO_HOSTS) == ending_of_all_ranks(TWO_HOSTS)


def test_the_number_of_ranks_does_change_the_bits() -> None:
    assert default_ending(2) != default_ending(3)  # or the tests above would see nothing
