"""What goes wrong is said at once to those concerned, and everything else goes on."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def still_usable(door, hvd, world):
    """After every error, an ordinary operation must work."""
    yield
    result = hvd.allreduce(door.tensor(np.ones(3), "float32"), op=hvd.Sum, name="afterwards")
    assert (door.values(result) == world.size).all()


@pytest.fixture
def several(world):
    if world.size < 2:
        pytest.skip("needs ranks that can disagree")


def odd_one_out(world):
    return world.rank == world.size - 1


def tensor_of(door, shape=(4,), dtype="float32"):
    return door.tensor(np.ones(shape), dtype)


def test_shapes_differ(door, hvd, world, several):
    shape = (5,) if odd_one_out(world) else (4,)
    with pytest.raises(
        hvd.HorovodInternalError, match="Mismatched ALLREDUCE tensor shapes"
    ) as error:
        hvd.allreduce(tensor_of(door, shape), name="shapes")
    assert "shapes" in str(error.value)


def test_dtypes_differ(door, hvd, world, several):
    dtype = "float64" if odd_one_out(world) else "float32"
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched data types") as error:
        hvd.allreduce(tensor_of(door, dtype=dtype), name="dtypes")
    assert "float64" in str(error.value)
    assert "float32" in str(error.value)


def test_reduction_operators_differ(door, hvd, world, several):
    op = hvd.Max if odd_one_out(world) else hvd.Min
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched reduction operation"):
        hvd.allreduce(tensor_of(door), op=op, name="operators")


def test_factors_differ(door, hvd, world, several):
    factor = 2.0 if odd_one_out(world) else 1.0
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched prescale and/or postscale"):
        hvd.allreduce(tensor_of(door), op=hvd.Sum, prescale_factor=factor, name="factors")


def test_roots_differ(door, hvd, world, several):
    root = 1 if odd_one_out(world) else 0
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched BROADCAST root ranks"):
        hvd.broadcast(tensor_of(door), root_rank=root, name="roots")


def test_dimensions_of_an_allgather_differ(door, hvd, world, several):
    shape = (2, 5) if odd_one_out(world) else (2, 4)
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLGATHER tensor shapes"):
        hvd.allgather(tensor_of(door, shape), name="dimensions")


def test_a_mismatch_does_not_stop_the_others(door, hvd, world, several):
    good = hvd.allreduce_async(tensor_of(door), op=hvd.Sum, name="good")
    shape = (5,) if odd_one_out(world) else (4,)
    bad = hvd.allreduce_async(tensor_of(door, shape), op=hvd.Sum, name="bad")
    also_good = hvd.allreduce_async(tensor_of(door), op=hvd.Sum, name="also good")
    assert (door.values(hvd.synchronize(good)) == world.size).all()
    with pytest.raises(hvd.HorovodInternalError):
        hvd.synchronize(bad)
    assert (door.values(hvd.synchronize(also_good)) == world.size).all()


def test_a_name_in_flight_twice(door, hvd, world, several):
    if world.rank == 0:
        # Nobody else has submitted it, so it is certainly in flight.
        handle = hvd.allreduce_async(tensor_of(door), op=hvd.Sum, name="twice")
        with pytest.raises(ValueError, match="same name as another tensor"):
            hvd.allreduce_async(tensor_of(door), op=hvd.Sum, name="twice")
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(tensor_of(door), op=hvd.Sum, name="twice")
    assert (door.values(hvd.synchronize(handle)) == world.size).all()


def test_an_operation_is_not_done_before_all_have_submitted_it(door, hvd, world, several):
    if world.rank == 0:
        handle = hvd.allreduce_async(tensor_of(door), op=hvd.Sum, name="late")
        assert not hvd.poll(handle)
        hvd.barrier()
    else:
        hvd.barrier()
        handle = hvd.allreduce_async(tensor_of(door), op=hvd.Sum, name="late")
    assert (door.values(hvd.synchronize(handle)) == world.size).all()
    assert hvd.synchronize(handle) is None


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        (lambda size: [1] * (size + 1), "Number of entries in splits"),
        (lambda size: [3] * size, "Sum of splits entries"),
        (lambda size: [[1] * size], "1D splits"),
    ],
)
def test_splits_that_do_not_fit(door, hvd, world, splits, text):
    wrong = door.tensor(np.array(splits(world.size)), "int32")
    with pytest.raises(ValueError, match=text):
        hvd.alltoall(tensor_of(door, (world.size, 2)), splits=wrong)


def test_rows_that_cannot_be_divided(door, hvd, world, several):
    with pytest.raises(ValueError, match="not an even multiple"):
        hvd.alltoall(tensor_of(door, (world.size + 1,)))


@pytest.mark.parametrize("root", [-1, 99])
def test_a_root_that_does_not_exist(door, hvd, world, root):
    with pytest.raises(ValueError, match="root rank"):
        hvd.broadcast(tensor_of(door), root_rank=root)


@pytest.mark.parametrize("call", ["allgather", "alltoall", "reducescatter"])
def test_scalars_are_refused_where_a_first_dimension_is_needed(door, hvd, world, call):
    with pytest.raises((ValueError, RuntimeError)):
        getattr(hvd, call)(tensor_of(door, ()))


def test_average_and_op_exclude_each_other(door, hvd, world):
    with pytest.raises(ValueError, match="op parameter supersedes average"):
        hvd.allreduce(tensor_of(door), average=True, op=hvd.Sum)


def test_adasum_is_not_there_yet(door, hvd, world):
    with pytest.raises(NotImplementedError):
        hvd.allreduce(tensor_of(door), op=hvd.Adasum)
