"""One rank of `allreduce.py --huge`: the sum of one huge tensor, every element of it checked."""

from __future__ import annotations

import time
from typing import Any

import torch

import horovod.torch as hvd
from worker_link import serve

# Element i of rank r is i % PERIOD + r. The period divides no power of two, so a place that is wrong
# by 2^31 or 2^32 shows.
PERIOD = 61
CHUNK = PERIOD << 20  # elements that are written or checked at once


def reduce(request: dict[str, Any]) -> dict[str, Any]:
    """Sums a tensor in place; how many seconds that took."""
    dtype = getattr(torch, request["dtype"])
    tensor = torch.empty(request["bytes"] // dtype.itemsize, dtype=dtype)
    pattern = torch.arange(CHUNK, dtype=torch.int32) % PERIOD
    mine = (pattern + hvd.rank()).to(dtype)
    for chunk in tensor.split(CHUNK):
        chunk.copy_(mine[: len(chunk)])
    hvd.barrier()
    started = time.perf_counter()
    hvd.allreduce_(tensor, op=hvd.Sum, name=f"huge.{request['dtype']}")
    seconds = time.perf_counter() - started
    size = hvd.size()
    check(tensor, (pattern * size + size * (size - 1) // 2).to(dtype))
    return {"seconds": seconds, "elements": len(tensor)}


def check(tensor: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises ``ValueError`` with the first chunk in which an element is wrong."""
    for number, chunk in enumerate(tensor.split(CHUNK)):
        if not torch.equal(chunk, expected[: len(chunk)]):
            wrong = int((chunk != expected[: len(chunk)]).nonzero()[0])
            raise ValueError(
                f"element {number * CHUNK + wrong} of {len(tensor)} is {chunk[wrong].item()}, "
                f"expected {expected[wrong].item()}"
            )


def main() -> None:
    hvd.init()
    serve(hvd.rank(), {"reduce": reduce})
    hvd.shutdown()


if __name__ == "__main__":
    main()
