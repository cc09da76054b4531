"""Process sets: objects, registration, errors."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
from fake_core import FakeCore

from horovod.common import engine
from horovod.common.dtypes import Collective
from horovod.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    register_at_init,
    remove_process_set,
)

Become = Callable[[int, int], FakeCore]


def test_ranks_are_sorted_whatever_iterable_they_come_in() -> None:
    assert ProcessSet(reversed(range(3))).ranks == [0, 1, 2]
    assert ProcessSet([2, 0]).ranks == [0, 2]


@pytest.mark.parametrize("ranks", [["a"], [0.5], None, 3])
def test_what_is_no_list_of_ranks_is_an_error(ranks: object) -> None:
    with pytest.raises(ValueError):
        ProcessSet(ranks)  # type: ignore[arg-type]


def test_the_text_of_a_set() -> None:
    process_set = ProcessSet([1, 0])
    assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[0, 1], mpi_comm=None)"
    assert str(global_process_set).startswith("ProcessSet(process_set_id=0, ranks=")


def test_an_unregistered_set_knows_little(world: Become) -> None:
    world(1, 2)
    process_set = ProcessSet([0])
    assert (process_set.size(), process_set.rank()) == (None, None)
    assert process_set.included() is False


def test_before_init_there_is_an_error(core: FakeCore) -> None:
    for call in (global_process_set.size, global_process_set.rank, ProcessSet([0]).included):
        with pytest.raises(ValueError, match="Horovod has not been initialized"):
            call()
    with pytest.raises(ValueError, match="not been initialized"):
        add_process_set([0])


def test_sets_of_init_get_ids_in_the_order_of_the_list(world: Become) -> None:
    core = world(1, 4)
    even, odd = ProcessSet([0, 2]), ProcessSet([1, 3])
    register_at_init([even, odd])
    assert (even.process_set_id, odd.process_set_id) == (1, 2)
    assert (even.size(), odd.size(), odd.rank()) == (2, 2, 0)
    assert [s["ranks"] for s in core.submissions] == [[0, 2], [1, 3]]
    with pytest.raises(ValueError, match=r"Process is not part of provided process set\."):
        even.rank()


@pytest.mark.parametrize("duplicate", [[1, 0], [3, 2, 1, 0]])
def test_a_duplicate_at_init_registers_nothing_and_a_corrected_list_works(
    world: Become, duplicate: list[int]
) -> None:
    core = world(0, 4)
    sets = [ProcessSet([0, 1]), ProcessSet(duplicate)]
    with pytest.raises(
        ValueError,
        match="could not be initialized because process_sets entry number 1 is a duplicate: "
        r"ProcessSet\(process_set_id=None",
    ):
        register_at_init(sets)
    assert core.submissions == []
    register_at_init(sets[:1])
    assert sets[0].process_set_id == 1


def test_init_again_finds_the_sets_that_exist(world: Become) -> None:
    core = world(0, 4)
    register_at_init([ProcessSet([0, 1])])
    again = ProcessSet([1, 0])
    register_at_init([again, ProcessSet([2, 3])])
    assert again.process_set_id == 1
    assert len(core.submissions) == 2


def test_add_and_remove_and_add_again(world: Become) -> None:
    core = world(0, 4)
    process_set = add_process_set([0, 1])
    assert process_set.process_set_id == 1
    with pytest.raises(ValueError, match="Attempted to add a duplicate process set: Proc"):
        add_process_set([1, 0])
    assert remove_process_set(process_set) is True
    assert process_set.process_set_id is None
    assert (core.submissions[-1]["kind"], core.submissions[-1]["root"]) == (
        Collective.REMOVE_PROCESS_SET,
        1,
    )
    assert remove_process_set(process_set) is False
    assert add_process_set(process_set) is process_set
    names = [s["names"][0] for s in core.submissions]
    assert len(set(names)) == 3, "names say which of the changes it is, whatever the ranks"


def test_the_global_set_cannot_be_removed(world: Become) -> None:
    world(0, 2)
    assert remove_process_set(global_process_set) is False


def test_without_dynamic_sets_nothing_can_be_added(world: Become) -> None:
    world(0, 2)
    engine.state.dynamic_sets = False
    with pytest.raises(ValueError, match="Set HOROVOD_DYNAMIC_PROCESS_SETS=1 to allow adding"):
        add_process_set([0])


def test_while_the_job_ends_nothing_can_be_added(world: Become) -> None:
    world(0, 2).running = False
    with pytest.raises(ValueError, match=r"Horovod is shutting down\."):
        add_process_set([0])


@pytest.mark.parametrize("ranks", [[0, 0], [2], [-1, 0], []])
def test_wrong_ranks_are_an_error_at_the_call(world: Become, ranks: list[int]) -> None:
    core = world(0, 2)
    with pytest.raises(ValueError, match="distinct ranks between 0 and 1"):
        add_process_set(ranks)
    assert core.submissions == []


def test_copies_of_what_holds_a_set_hold_the_same_set() -> None:
    process_set = ProcessSet([0])
    assert copy.deepcopy({"set": process_set})["set"] is process_set
    assert pickle.loads(pickle.dumps(global_process_set)) is global_process_set
    assert pickle.loads(pickle.dumps(process_set)).ranks == [0]
