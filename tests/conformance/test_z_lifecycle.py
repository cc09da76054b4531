"""Use before init and after shutdown; starting again. Named to run last: it restarts the job."""

from __future__ import annotations

import numpy as np
import pytest


def works(door, hvd, size):
    result = hvd.allreduce(door.tensor(np.ones(3), "float32"), op=hvd.Sum)
    assert (door.values(result) == size).all()


def wrong_operator(door, hvd):
    hvd.allreduce(door.tensor(np.ones(3), "float32"), average=True, op=hvd.Sum)


def wrong_dtype(door, hvd):
    hvd.allreduce(door.tensor(np.ones(3), "complex64"), op=hvd.Max)


def wrong_tensor(door, hvd):
    hvd.allreduce(door.unsupported(), op=hvd.Sum)


def wrong_splits(door, hvd):
    splits = door.tensor(np.ones(1), "float32")
    hvd.alltoall(door.tensor(np.ones(4), "float32"), splits=splits)


@pytest.mark.parametrize("fail", [wrong_operator, wrong_dtype, wrong_tensor, wrong_splits])
def test_generated_names_pair_up_after_an_error_on_one_rank(door, hvd, world, fail):
    if world.size < 2:
        pytest.skip("needs another rank")
    if door.name == "tensorflow":
        pytest.skip("unnamed eager ops are named after their kind, so two cannot be in flight")
    if world.rank == world.size - 1:
        with pytest.raises((ValueError, TypeError)):
            fail(door, hvd)
    else:
        hvd.allreduce_async(door.tensor(np.ones(3), "float32"), op=hvd.Sum)  # nobody joins in
    result = hvd.allreduce(door.tensor(np.full(3, 2.0), "float32"), op=hvd.Sum)
    assert (door.values(result) == 2 * world.size).all()
    restart(hvd, world)  # ends what is still in flight


def restart(hvd, world):
    hvd.shutdown()
    hvd.init(process_sets="dynamic")
    assert hvd.rank() == world.rank
    assert hvd.size() == world.size


def test_shutdown_ends_what_is_in_flight_and_init_starts_anew(door, hvd, world):
    for _ in range(3):
        works(door, hvd, world.size)
        if world.size > 1 and world.rank == 0:
            pending = hvd.allreduce_async(door.tensor(np.ones(3), "float32"), name="never")
        hvd.barrier()  # or the others may shut down before it is submitted
        hvd.shutdown()
        assert not hvd.is_initialized()
        if world.size > 1 and world.rank == 0:
            # The shut-down error, or nothing when the handle was released with the job.
            try:
                assert hvd.synchronize(pending) is None
            except hvd.HorovodInternalError as error:
                assert "shut down" in str(error)
        with pytest.raises(
            ValueError, match=r"Horovod has not been initialized; use hvd\.init\(\)\."
        ):
            hvd.rank()
        with pytest.raises(ValueError, match="has not been initialized"):
            hvd.allreduce(door.tensor(np.ones(3), "float32"))
        restart(hvd, world)
    works(door, hvd, world.size)


def test_a_second_init_changes_nothing(door, hvd, world):
    hvd.init()
    works(door, hvd, world.size)


def test_the_doors_share_one_engine(world):
    import horovod.numpy as numpy_door
    import horovod.torch as torch_door

    assert numpy_door.is_initialized()
    assert torch_door.is_initialized()
    assert numpy_door.rank() == torch_door.rank() == world.rank
    assert numpy_door.global_process_set is torch_door.global_process_set
