"""Training ends with the same bits: on all ranks, in every run, and however tensors were fused."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import pytest
from launcher_process import launch
from launcher_training import Ending, endings, environment

OTHER_SETTINGS = [
    {"HOROVOD_FUSION_THRESHOLD": "0"},
    {"HOROVOD_FUSION_THRESHOLD": "1000"},
    {"HOROVOD_CYCLE_TIME": "5"},
    {"HOROVOD_CACHE_CAPACITY": "0"},
]
TWO_HOSTS = ("-np", "4", "-H", "localhost:2,127.0.0.1:2")

# Trains once with each of several settings; a job reads its settings when it is initialized.
TRAIN_WITH_EACH = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from launcher_training import train
for variables in json.loads(sys.argv[2]):
    os.environ.update(variables)
    train()
    for name in variables:
        del os.environ[name]
"""


def endings_of_all_ranks(options: tuple[str, ...], settings: list[dict[str, str]]) -> list[Ending]:
    """Trains with each of `settings` in one launch; how all ranks ended, which must be the same."""
    folder = str(Path(__file__).parent)
    command = [sys.executable, "-c", TRAIN_WITH_EACH, folder, json.dumps(settings)]
    done = launch(*options, *command, env=environment())
    assert done.returncode == 0, done.stderr.decode()
    size = int(options[1])
    # The lines of one rank are in order; those of different ranks arrive as they like.
    lines = [line for line in done.stdout.splitlines(keepends=True) if b": loss " in line]
    lines.sort(key=lambda line: line.partition(b" of ")[0])
    runs = [lines[run :: len(settings)] for run in range(len(settings))]
    return [one_ending(endings(b"".join(run), size)) for run in runs]


def one_ending(found: list[Ending]) -> Ending:
    assert len(set(found)) == 1, found
    return found[0]


@functools.cache
def ending_of_defaults(ranks: int, run: int) -> Ending:
    """Runs that differ in `run` have nothing in common, not even the processes."""
    del run
    return endings_of_all_ranks(("-np", str(ranks)), [{}])[0]


@functools.cache
def endings_with_other_settings(ranks: int) -> list[Ending]:
    return endings_of_all_ranks(("-np", str(ranks)), OTHER_SETTINGS)


@pytest.mark.parametrize("ranks", [2, 3])
def test_on_one_host_another_run_does_not_change_a_bit(ranks: int) -> None:
    assert ending_of_defaults(ranks, run=1) == ending_of_defaults(ranks, run=2)


@pytest.mark.parametrize("setting", OTHER_SETTINGS, ids=str)
@pytest.mark.parametrize("ranks", [2, 3])
def test_on_one_host_settings_do_not_change_a_bit(ranks: int, setting: dict[str, str]) -> None:
    ending = endings_with_other_settings(ranks)[OTHER_SETTINGS.index(setting)]
    assert ending == ending_of_defaults(ranks, run=1)


def test_on_two_hosts_equal_settings_give_equal_bits() -> None:
    first, second = (endings_of_all_ranks(TWO_HOSTS, [{}]) for _ in range(2))
    assert first == second


def test_the_number_of_ranks_does_change_the_bits() -> None:
    # Or the tests above would see nothing.
    assert ending_of_defaults(2, run=1) != ending_of_defaults(3, run=1)
