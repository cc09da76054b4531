"""A job that hangs in the way that its argument names; see test_launcher_stalls.py."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

import numpy as np

import horovod.numpy as hvd


def reduce(name: str) -> None:
    hvd.allreduce(np.ones(4), name=name)


def other_names() -> None:
    reduce("model/w" if hvd.rank() == 0 else "model_1/w")


def other_order() -> None:
    for name in ("a", "b") if hvd.rank() == 0 else ("b", "a"):
        reduce(name)


def kill_rank_1(signum: int) -> None:
    if hvd.rank() == 1:
        os.kill(os.getpid(), signum)
    reduce("x")


def evaluate() -> None:
    time.sleep(3600)


def on_rank_0_only() -> None:
    if hvd.rank() == 0:
        reduce("only_on_0")
    else:
        evaluate()


def native_code() -> None:
    if hvd.rank() == 0:
        reduce("only_on_0")
    else:
        ctypes.PyDLL(None).sleep(3600)  # with Python's lock held


def unequal_batches() -> None:
    for _ in range(3 if hvd.rank() == 0 else 2):
        reduce("gradient")
    reduce("metric")


def slow_rank() -> None:
    """Rank 1 needs half of each step longer than the others, who are blocked meanwhile."""
    for _ in range(100):
        time.sleep(0.04 if hvd.rank() == 1 else 0.02)
        reduce("gradient")


def wait_for_dump() -> None:
    """Sends itself the signal, and waits until the dump is there."""
    os.kill(os.getpid(), signal.SIGUSR2)
    while hvd.metrics()["flight_dumps"] == 0:
        time.sleep(0.01)


def dump_and_go_on() -> None:
    hvd.dump_flight_recorder()
    reduce("x")
    hvd.shutdown()
    print("goes on")


def own_handler() -> None:
    hvd.shutdown()
    signal.signal(signal.SIGUSR2, lambda number, _: print(f"own handler got {number}", flush=True))
    hvd.init()
    os.kill(os.getpid(), signal.SIGUSR2)


KINDS = {
    "names": other_names,
    "order": other_order,
    "dead": lambda: kill_rank_1(signal.SIGKILL),
    "stopped": lambda: kill_rank_1(signal.SIGSTOP),
    "rank0": on_rank_0_only,
    "native": native_code,
    "batches": unequal_batches,
    "slow": slow_rank,
    "signal": wait_for_dump,
    "call": dump_and_go_on,
    "own_handler": own_handler,
}

if __name__ == "__main__":
    hvd.init()
    reduce("warm")
    KINDS[sys.argv[1]]()
