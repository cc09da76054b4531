"""allgather, broadcast, alltoall: they only move data, of every type."""

from __future__ import annotations

import numpy as np
import pytest
from doors import DTYPES
from reference import check, values_of


@pytest.fixture(params=DTYPES)
def dtype(request, door):
    if request.param not in door.dtypes:
        pytest.skip(f"{door.name} has no {request.param}")
    return request.param


def test_allgather_of_uneven_first_dimensions(door, hvd, world, dtype):
    for key, rest in enumerate([(), (3,), (2, 2)]):
        for rows in (lambda rank: rank + 1, lambda rank: 2 * (rank % 2), lambda rank: 3):
            parts = [values_of(rank, dtype, (rows(rank), *rest), key) for rank in world.ranks]
            result = hvd.allgather(door.tensor(parts[world.rank], dtype))
            assert door.dtype_of(result) == dtype
            check(door.values(result), np.concatenate(parts), dtype, exact=True)


def test_broadcast_from_every_root(door, hvd, world, dtype):
    for root in world.ranks:
        for shape in [(), (0,), (5,), (2, 3)]:
            mine = values_of(world.rank, dtype, shape, 1)
            tensor = door.tensor(mine, dtype)
            result = hvd.broadcast(tensor, root_rank=root)
            assert door.dtype_of(result) == dtype
            check(door.values(result), values_of(root, dtype, shape, 1), dtype, exact=True)
            check(door.values(tensor), mine, dtype, exact=True, what="the input stays as it was")


def splits_of(sender: int, size: int) -> list[int]:
    return [(sender + receiver) % 3 for receiver in range(size)]


def test_alltoall_with_splits(door, hvd, world, dtype):
    sent = {
        sender: values_of(sender, dtype, (sum(splits_of(sender, world.size)), 2))
        for sender in world.ranks
    }
    splits = door.tensor(np.array(splits_of(world.rank, world.size), np.int32), "int32")
    result, received = hvd.alltoall(door.tensor(sent[world.rank], dtype), splits=splits)
    blocks = []
    for sender in world.ranks:
        edges = np.cumsum([0, *splits_of(sender, world.size)])
        blocks.append(sent[sender][edges[world.rank] : edges[world.rank + 1]])
    check(door.values(result), np.concatenate(blocks), dtype, exact=True)
    assert door.values(received).tolist() == [len(block) for block in blocks]
    assert door.dtype_of(received) == "int32"


def test_alltoall_without_splits_divides_evenly(door, hvd, world, dtype):
    sent = [values_of(sender, dtype, (2 * world.size, 3)) for sender in world.ranks]
    result = hvd.alltoall(door.tensor(sent[world.rank], dtype))
    begin = 2 * world.rank
    expected = np.concatenate([values[begin : begin + 2] for values in sent])
    check(door.values(result), expected, dtype, exact=True)


def test_large_tensors_move_unchanged(door, hvd, world):
    rows = 200_001
    parts = [values_of(rank, "float64", (rows + rank,), rank) for rank in world.ranks]
    tensor = door.tensor(parts[world.rank], "float64")
    check(door.values(hvd.allgather(tensor)), np.concatenate(parts), "float64", exact=True)
    root = world.size - 1
    tensor = door.tensor(parts[world.rank][:rows], "float64")
    result = hvd.broadcast(tensor, root_rank=root)
    check(door.values(result), parts[root][:rows], "float64", exact=True)


def test_grouped_allgather(door, hvd, world):
    shapes = [lambda rank: (rank, 2), lambda rank: (3,), lambda rank: (0,)]
    parts = [
        [values_of(rank, "int64", shape(rank), key) for rank in world.ranks]
        for key, shape in enumerate(shapes)
    ]
    results = hvd.grouped_allgather([door.tensor(part[world.rank], "int64") for part in parts])
    for part, result in zip(parts, results, strict=True):
        check(door.values(result), np.concatenate(part), "int64", exact=True)


def test_the_same_allgather_with_a_dimension_that_changes_on_one_rank(door, hvd, world):
    for step in range(8):
        rows = [2 + (step if rank == world.size - 1 else 0) % 3 for rank in world.ranks]
        parts = [values_of(rank, "float32", (rows[rank],), step) for rank in world.ranks]
        result = hvd.allgather(door.tensor(parts[world.rank], "float32"), name="changing")
        check(door.values(result), np.concatenate(parts), "float32", exact=True)


def test_non_contiguous_tensors_move(door, hvd, world):
    parts = [values_of(rank, "float32", (4, 3)) for rank in world.ranks]
    tensor = door.strided(door.tensor(parts[world.rank], "float32"))
    check(door.values(hvd.allgather(tensor)), np.concatenate(parts), "float32", exact=True)
    check(door.values(hvd.broadcast(tensor, root_rank=0)), parts[0], "float32", exact=True)


def test_broadcast_in_place(door, hvd, world):
    if not hasattr(hvd, "broadcast_"):
        pytest.skip(f"{door.name} has no in-place form")
    tensor = door.tensor(values_of(world.rank, "float32", (5,)), "float32")
    assert hvd.broadcast_(tensor, root_rank=0) is tensor
    check(door.values(tensor), values_of(0, "float32", (5,)), "float32", exact=True)


def test_objects(door, hvd, world):
    thing = {"rank": world.rank, "list": list(range(world.rank))}
    assert hvd.broadcast_object(thing, root_rank=0) == {"rank": 0, "list": []}
    gathered = hvd.allgather_object(thing)
    assert [entry["rank"] for entry in gathered] == list(world.ranks)
