"""init, shutdown and who am I, for a job of one process with a stand-in core."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from fake_core import FakeCore

from horovod.common import basics, collectives, engine
from horovod.common.basics import HorovodBasics
from horovod.common.process_sets import ProcessSet, global_process_set


@pytest.fixture
def alone(core: FakeCore, monkeypatch: pytest.MonkeyPatch) -> Iterator[HorovodBasics]:
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_", "PMI_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    hvd = HorovodBasics(__file__, "mpi_lib")
    yield hvd
    hvd.shutdown()


def test_a_process_alone_is_rank_zero_of_one(alone: HorovodBasics, core: FakeCore) -> None:
    alone.init()
    assert alone.is_initialized()
    assert (alone.rank(), alone.local_rank(), alone.cross_rank()) == (0, 0, 0)
    assert (alone.size(), alone.local_size(), alone.cross_size()) == (1, 1, 1)
    assert alone.is_homogeneous()
    assert global_process_set.ranks == [0]
    assert core.started["topology"]["hosts"] == [[0]]


def test_all_objects_stand_for_one_engine(alone: HorovodBasics) -> None:
    alone.init()
    assert HorovodBasics().is_initialized()


def test_before_init_there_is_an_error(alone: HorovodBasics) -> None:
    calls = (
        alone.rank,
        alone.size,
        alone.local_rank,
        alone.is_homogeneous,
        alone.mpi_threads_supported,
        alone._get_process_set_ids_and_ranks,
    )
    for call in calls:
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value) == "Horovod has not been initialized; use hvd.init()."


def test_init_again_does_nothing_and_shutdown_twice_neither(
    alone: HorovodBasics, core: FakeCore
) -> None:
    alone.init()
    alone.init()
    assert engine.state.rounds == 1
    alone.shutdown()
    alone.shutdown()
    assert not alone.is_initialized()
    with pytest.raises(ValueError, match="not been initialized"):
        alone.rank()


def test_init_after_an_abort_starts_anew(alone: HorovodBasics, core: FakeCore) -> None:
    alone.init()
    core.running = False
    alone.init()
    assert engine.state.rounds == 2
    assert core.running


def test_a_hundred_rounds_leak_nothing(alone: HorovodBasics) -> None:
    alone.init()
    alone.shutdown()
    before, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(100):
        alone.init()
        alone.shutdown()
    assert len(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads


@pytest.mark.parametrize("comm", ["world", 3, ["a"], {0}])
def test_a_wrong_comm_is_an_error(alone: HorovodBasics, comm: object) -> None:
    with pytest.raises(ValueError, match="Invalid type of argument comm"):
        alone.init(comm=comm)


def test_a_communicator_needs_mpi(alone: HorovodBasics) -> None:
    class Comm:
        def Get_rank(self) -> int:
            return 0

    with pytest.raises(ValueError, match="needs the MPI backend"):
        alone.init(comm=Comm())


def test_an_empty_comm_means_all_ranks(alone: HorovodBasics) -> None:
    alone.init(comm=[])
    assert alone.size() == 1


def test_dynamic_process_sets_can_be_asked_for(
    alone: HorovodBasics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "0")
    alone.init(process_sets="Dynamic")
    assert os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] == "1"
    assert engine.state.dynamic_sets


@pytest.mark.parametrize("sets", ["static", [[0]]])
def test_wrong_process_sets_are_an_error(alone: HorovodBasics, sets: object) -> None:
    with pytest.raises(ValueError, match="expected a list of ProcessSet"):
        alone.init(process_sets=sets)  # type: ignore[arg-type]
    assert not alone.is_initialized()


def test_a_duplicate_leaves_the_engine_running_for_a_corrected_list(alone: HorovodBasics) -> None:
    with pytest.raises(ValueError, match="entry number 0 is a duplicate"):
        alone.init(process_sets=[ProcessSet([0])])
    assert alone.is_initialized()
    alone.init(process_sets=[])


def test_a_wrong_variable_is_an_error_and_nothing_starts(
    alone: HorovodBasics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "soon")
    with pytest.raises(ValueError, match="HOROVOD_CYCLE_TIME='soon'"):
        alone.init()
    assert not alone.is_initialized()


def test_an_affinity_list_that_is_too_short_is_an_error(
    alone: HorovodBasics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_THREAD_AFFINITY", "0")
    alone.init()
    with pytest.raises(ValueError, match="HOROVOD_THREAD_AFFINITY names 1 core"):
        engine.check_affinity([0], local_size=2)


def test_what_is_there_and_what_is_not(alone: HorovodBasics) -> None:
    assert alone.gloo_built() and alone.gloo_enabled()
    assert not any((alone.mpi_built(), alone.mpi_enabled(), alone.cuda_built(), alone.rocm_built()))
    assert (alone.nccl_built(), alone.ddl_built(), alone.ccl_built()) == (0, False, False)


def test_the_numbers_of_the_operators_are_visible(alone: HorovodBasics) -> None:
    ops = (alone.Average, alone.Sum, alone.Adasum, alone.Min, alone.Max, alone.Product)
    assert ops == (0, 1, 2, 3, 4, 5)


def test_the_numbers_of_process_set_errors_are_visible() -> None:
    names = ("INIT", "DYNAMIC", "UNKNOWN_SET", "FOREIGN_SET", "SHUTDOWN", "EXISTING_SET")
    for i, name in enumerate(names, start=1):
        assert getattr(HorovodBasics, f"HOROVOD_PROCESS_SET_ERROR_{name}") == -i


def test_an_unknown_variable_is_said_once(
    alone: HorovodBasics, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIMES", "1")
    monkeypatch.setattr(basics, "_reviewed", False)
    alone.init()
    alone.shutdown()
    alone.init()
    text = "HOROVOD_CYCLE_TIMES is ignored. Did you mean HOROVOD_CYCLE_TIME?"
    assert capsys.readouterr().err.count(text) == 1


def test_a_forked_child_keeps_its_hands_off(alone: HorovodBasics) -> None:
    alone.init()
    handle_numbers = collectives._handles
    child = os.fork()
    if child == 0:  # no pytest in the child: the exit status tells
        before = os.environ.copy()
        ok = not alone.is_initialized() and alone.rank() == 0
        try:
            alone.init()
            ok = False
        except ValueError as error:
            ok = ok and "was forked after hvd.init()" in str(error)
        alone.shutdown()
        os._exit(0 if ok and before == os.environ.copy() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert alone.is_initialized()
    assert collectives._handles is handle_numbers
