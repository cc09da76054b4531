"""A job for test_launcher_timeline.py: some steps of collectives with difficult names."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time

import numpy as np

import horovod.numpy as hvd

NAMES = [
    'quote"d',
    "new\nline",
    "control\x01\x1f",
    "back\\slash",
    "Gewicht/ß/重み/🙂",
    "",
    "x" * 300,
]


def step(number: int) -> None:
    handles = [
        hvd.allreduce_async(np.ones(10 + number, np.float32), name=f"{name}.{index}")
        for index, name in enumerate(NAMES)
    ]
    for handle in handles:
        hvd.synchronize(handle)


def steps() -> None:
    for number in range(5):
        step(number % 2)
    hvd.allgather(np.ones((2, 3)), name="rows")
    hvd.broadcast(np.ones(3, np.int32), 0, name="root's")
    hvd.alltoall(np.ones(hvd.size() * 2), name="all to all")
    hvd.reducescatter(np.ones(hvd.size() * 2), name="scatter")
    hvd.barrier()
    with contextlib.suppress(hvd.HorovodInternalError):
        hvd.allreduce(np.ones(1 + hvd.rank()), name="mismatch")
    hvd.join()


def for_ever() -> None:
    print("training", flush=True)
    while True:
        step(0)


def train_until_killed(file: str, started: int) -> None:
    """Body of a child that its parent kills."""
    os.environ["HOROVOD_TIMELINE"] = file
    hvd.init()
    os.write(started, b"!")
    while True:
        step(0)
        time.sleep(0.001)


def killed(folder: str, count: str, seed: str) -> None:
    """Children, one after the other, each killed at a random moment of its training."""
    chance = random.Random(int(seed))
    for number in range(int(count)):
        seen, started = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                train_until_killed(f"{folder}/{number}.json", started)
            finally:
                os._exit(1)
        assert os.read(seen, 1) == b"!"
        time.sleep(chance.random() * 0.15)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        os.close(seen)
        os.close(started)


def dynamic(path: str) -> None:
    """Rank 1 begins and ends it; both ranks begin one at the same time; and one that can't be written."""
    step(0)
    if hvd.rank() == 1:
        hvd.start_timeline(f"{path}/first.json", mark_cycles=True)
    hvd.barrier()
    step(0)
    if hvd.rank() == 1:
        hvd.stop_timeline()
    hvd.barrier()
    step(1)
    hvd.start_timeline(f"{path}/second.json")  # the same from all ranks: once
    step(1)
    try:
        hvd.start_timeline(path)
        raise SystemExit("a directory was accepted")
    except ValueError as error:
        print(f"refused: {error}", flush=True)
    step(1)
    hvd.barrier()
    hvd.start_timeline(f"{path}/rank{hvd.rank()}.json")  # out of step: one after the other
    hvd.barrier()
    hvd.stop_timeline()
    hvd.stop_timeline()
    step(0)


def slow_disk(path: str) -> None:
    """Goes on until the disk is full and beyond."""
    for number in range(2000):
        step(number % 2)
    time.sleep(0.3)
    step(0)
    print("training goes on", flush=True)


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    if kind == "killed":  # the children initialise
        killed(*rest)
        sys.exit()
    hvd.init()
    {"steps": steps, "for_ever": for_ever, "dynamic": dynamic, "slow_disk": slow_disk}[kind](*rest)
    hvd.shutdown()
