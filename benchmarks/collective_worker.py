"""One rank of one peer of the allreduce and latency benchmarks: `collective_worker.py PEER`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from worker_link import serve

Array = np.ndarray[Any, np.dtype[np.float32]]
Call = Callable[[], Any]
Result = Callable[[], Array]
Prepare = Callable[[Array], tuple[Call, Result]]


class Peer(NamedTuple):
    """How one library is used.

    Both ``prepare`` functions take the input array and return the call to be timed and a function
    that gives the sum; ``in_place`` calls overwrite the input with it.
    """

    rank: int
    size: int
    in_place: Prepare
    out_of_place: Prepare
    finish: Callable[[], None]


def horovod_torch() -> Peer:
    """`hvd.allreduce` and `hvd.allreduce_` on torch tensors."""
    import torch

    import horovod.torch as hvd

    hvd.init()

    def in_place(array: Array) -> tuple[Call, Result]:
        tensor, name = torch.from_numpy(array), f"bench.{array.nbytes}"
        return lambda: hvd.allreduce_(tensor, op=hvd.Sum, name=name), lambda: array

    def out_of_place(array: Array) -> tuple[Call, Result]:
        tensor, name = torch.from_numpy(array), f"bench.{array.nbytes}"

        def call() -> torch.Tensor:
            return hvd.allreduce(tensor, op=hvd.Sum, name=name)

        return call, lambda: call().numpy()

    return Peer(hvd.rank(), hvd.size(), in_place, out_of_place, hvd.shutdown)


def horovod_numpy() -> Peer:
    """`hvd.allreduce` and `hvd.allreduce_` on NumPy arrays."""
    import horovod.numpy as hvd

    hvd.init()

    def in_place(array: Array) -> tuple[Call, Result]:
        name = f"bench.{array.nbytes}"
        return lambda: hvd.allreduce_(array, op=hvd.Sum, name=name), lambda: array

    def out_of_place(array: Array) -> tuple[Call, Result]:
        name = f"bench.{array.nbytes}"

        def call() -> Array:
            return hvd.allreduce(array, op=hvd.Sum, name=name)

        return call, call

    return Peer(hvd.rank(), hvd.size(), in_place, out_of_place, hvd.shutdown)


def torch_gloo() -> Peer:
    """`torch.distributed.all_reduce` on its Gloo backend; it only knows in place."""
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting_point = f"file://{os.environ['BENCH_GLOO']}"
    dist.init_process_group("gloo", init_method=meeting_point, rank=rank, world_size=size)

    def in_place(array: Array) -> tuple[Call, Result]:
        tensor = torch.from_numpy(array)
        return lambda: dist.all_reduce(tensor), lambda: array

    return Peer(rank, size, in_place, in_place, dist.destroy_process_group)


def mpi() -> Peer:
    """`MPI_Allreduce` on NumPy arrays, in place, which is the faster form in all three libraries."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def in_place(array: Array) -> tuple[Call, Result]:
        return lambda: world.Allreduce(MPI.IN_PLACE, array), lambda: array

    return Peer(world.rank, world.size, in_place, in_place, lambda: None)


def memcpy() -> Peer:
    """Every rank copies its own array at the same time: what memory gives. No sum is formed."""

    def copy(array: Array) -> tuple[Call, Result]:
        target = np.empty_like(array)
        return lambda: np.copyto(target, array), lambda: target

    return Peer(int(os.environ["RANK"]), 1, copy, copy, lambda: None)


PEERS: dict[str, Callable[[], Peer]] = {
    "horovod-torch": horovod_torch,
    "horovod-numpy": horovod_numpy,
    "torch-gloo": torch_gloo,
    "mpi": mpi,
    "memcpy": memcpy,
}


def measure(peer: Peer, request: dict[str, Any]) -> dict[str, Any]:
    """Times ``iterations`` calls on ``bytes`` of float32, after checking one result."""
    count = request["bytes"] // 4
    array = np.full(count, 1.0, np.float32)
    prepare = peer.in_place if request["in_place"] else peer.out_of_place
    call, result = prepare(array)
    call()
    check_result(result(), peer.size)
    array[:] = 0.0  # sums of zeros stay zeros, however often they are formed in place
    for _ in range(request["warm_up"]):
        call()
    seconds = []
    for _ in range(request["iterations"]):
        if request["pause"]:
            compute_until_next_tick(request["pause"])
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds}


def check_result(array: Array, size: int) -> None:
    """Raises ``ValueError`` unless every element of the sum of ones is ``size``."""
    first, last = float(array.flat[0]), float(array.flat[-1])
    if not (first == last == size and array.min() == array.max()):
        raise ValueError(f"the sum of {size} ones came out as {array.min()} to {array.max()}")


def compute_until_next_tick(period: float) -> None:
    """Keeps this core busy until the next multiple of ``period`` on the clock that all ranks share."""
    until = (time.monotonic() // period + 1) * period
    while time.monotonic() < until:
        pass


def main() -> None:
    peer = PEERS[sys.argv[1]]()
    serve(peer.rank, {"measure": lambda request: measure(peer, request)})
    peer.finish()


if __name__ == "__main__":
    main()
