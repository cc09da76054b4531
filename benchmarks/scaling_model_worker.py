"""One rank of the check of the scaling model: training steps whose computing is sleep."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

import horovod.numpy as hvd
from worker_link import serve


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each step. Gradients become ready one after the other while it "computes".

    `tensors`: (bytes, seconds from the step's start); `compute`: seconds of a step.
    """
    arrays = [np.zeros(size // 4, np.float32) for size, _ in request["tensors"]]
    seconds = []
    for step in range(-request["warm_up"], request["steps"]):
        hvd.barrier()
        started = time.perf_counter()
        handles = []
        for index, (array, (_, ready)) in enumerate(zip(arrays, request["tensors"], strict=True)):
            sleep_until(started + ready)
            name = f"gradient.{array.nbytes}.{index}"
            handles.append(hvd.allreduce_async_(array, op=hvd.Sum, name=name))
        sleep_until(started + request["compute"])
        for handle in handles:
            hvd.synchronize(handle)
        if step >= 0:
            seconds.append(time.perf_counter() - started)
    return {"seconds": seconds}


def reduce(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds of each of some blocking calls, one after the other."""
    array = np.zeros(request["bytes"] // 4, np.float32)
    seconds = []
    for call in range(-2, request["calls"]):
        started = time.perf_counter()
        hvd.allreduce_(array, op=hvd.Sum, name=f"reduce.{array.nbytes}")
        if call >= 0:
            seconds.append(time.perf_counter() - started)
    return {"seconds": seconds}


def sleep_until(moment: float) -> None:
    """Computing on a GPU leaves the CPU free; so does sleeping."""
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)


def main() -> None:
    hvd.init()
    serve(hvd.rank(), {"measure": measure, "reduce": reduce})
    hvd.shutdown()


if __name__ == "__main__":
    main()
