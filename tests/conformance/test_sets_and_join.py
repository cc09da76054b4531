"""Process sets, barrier, join: what a part of the ranks does, and what late ranks may leave out."""

from __future__ import annotations

import numpy as np
import pytest
from reference import check, reduced, values_of


@pytest.fixture
def added(hvd):
    """Add process sets, and remove them after the test, on all ranks alike."""
    sets = []

    def add(ranks):
        sets.append(hvd.add_process_set(ranks))
        return sets[-1]

    yield add
    for process_set in sets:
        assert hvd.remove_process_set(process_set)


def need(world, size):
    if world.size < size:
        pytest.skip(f"needs {size} ranks")


def test_collectives_within_overlapping_sets(door, hvd, world, added):
    need(world, 3)
    for members in ([0, 1], [1, 2], [0, world.size - 1]):
        process_set = added(members)
        assert process_set.ranks == members
        assert process_set.size() == len(members)
        assert process_set.included() == (world.rank in members)
        if world.rank not in members:
            continue
        parts = [values_of(rank, "float32", (5,)) for rank in members]
        tensor = door.tensor(values_of(world.rank, "float32", (5,)), "float32")
        me = members.index(world.rank)
        assert process_set.rank() == me
        average = hvd.allreduce(tensor, op=hvd.Average, process_set=process_set)
        check(door.values(average), reduced("Average", parts, "float32"), "float32", False)
        gathered = hvd.allgather(tensor, process_set=process_set)
        check(door.values(gathered), np.concatenate(parts), "float32", True)
        root = members[-1]
        copied = hvd.broadcast(tensor, root_rank=root, process_set=process_set)
        check(door.values(copied), parts[-1], "float32", True)
        share = hvd.reducescatter(tensor, op=hvd.Sum, process_set=process_set)
        first, rest = (0, 3), (3, 5)
        begin, end = first if me == 0 else rest
        check(door.values(share), reduced("Sum", parts, "float32")[begin:end], "float32", False)
        hvd.barrier(process_set=process_set)


def test_sets_work_side_by_side(door, hvd, world, added):
    need(world, 4)
    even, odd = added([0, 2]), added([1, 3])
    mine = even if world.rank % 2 == 0 else odd
    handles = [
        hvd.allreduce_async(
            door.tensor(np.full(100, world.rank + step), "int64"),
            op=hvd.Sum,
            name=f"step.{step}",
            process_set=mine,
        )
        for step in range(10)
    ]
    for step, handle in enumerate(handles):
        expected = sum(rank + step for rank in mine.ranks)
        assert (door.values(hvd.synchronize(handle)) == expected).all()


def test_a_rank_outside_a_set_is_refused(door, hvd, world, added):
    need(world, 2)
    process_set = added([0])
    tensor = door.tensor(np.ones(3), "float32")
    if world.rank == 0:
        assert door.values(hvd.allreduce(tensor, op=hvd.Sum, process_set=process_set)).sum() == 3
    else:
        with pytest.raises(ValueError, match="not a member"):
            hvd.allreduce(tensor, process_set=process_set)


def test_a_removed_set_is_refused(door, hvd, world):
    need(world, 2)
    process_set = hvd.add_process_set([0])
    assert hvd.remove_process_set(process_set)
    assert process_set.process_set_id is None
    with pytest.raises(ValueError, match="registered"):
        hvd.allreduce(door.tensor(np.ones(3), "float32"), process_set=process_set)


def test_a_set_may_exist_once(hvd, world, added):
    need(world, 3)
    added([0, 1])
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set([1, 0])
    with pytest.raises(ValueError, match="duplicate process set"):
        hvd.add_process_set(list(world.ranks))


def test_a_barrier_may_be_mixed_with_what_is_in_flight(door, hvd, world):
    handle = hvd.allreduce_async(door.tensor(np.ones(10), "float32"), op=hvd.Sum, name="pending")
    hvd.barrier()
    assert (door.values(hvd.synchronize(handle)) == world.size).all()


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_joined_ranks_contribute_zeros(door, hvd, world, dtype):
    # Rank r has r + 1 steps to do; nobody waits for those that are through.
    for step in range(world.rank + 1):
        tensor = door.tensor(np.full(50, 4.0), dtype)
        result = hvd.allreduce(tensor, op=hvd.Average, name=f"join.{dtype}.{step}")
        active = world.size - step
        expected = reduced(
            "Average",
            [np.full(50, 4.0 if i < active else 0.0, dtype) for i in world.ranks],
            dtype,
        )
        check(door.values(result), expected, dtype, exact=dtype == "int32")
    assert hvd.join() == world.size - 1


def test_join_can_be_used_again(door, hvd, world):
    for epoch in range(3):
        steps = 2 + (world.rank == epoch % world.size)
        for step in range(steps):
            hvd.allreduce(door.tensor(np.ones(4), "float32"), op=hvd.Sum, name=f"again.{step}")
        assert hvd.join() == epoch % world.size or world.size == 1


def test_other_collectives_fail_while_a_rank_has_joined(door, hvd, world):
    need(world, 2)
    if world.rank == 0:
        hvd.join()
    else:
        tensor = door.tensor(np.ones((world.size, 2)), "float32")
        for call in (
            lambda: hvd.allgather(tensor, name="late.gather"),
            lambda: hvd.broadcast(tensor, root_rank=1, name="late.broadcast"),
            lambda: hvd.alltoall(tensor, name="late.alltoall"),
            lambda: hvd.reducescatter(tensor, name="late.scatter"),
        ):
            with pytest.raises(hvd.HorovodInternalError, match="not supported with Join"):
                call()
        hvd.join()
    result = hvd.allreduce(door.tensor(np.ones(2), "float32"), op=hvd.Sum)
    assert (door.values(result) == world.size).all()
