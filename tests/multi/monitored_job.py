"""A worker for tests of --monitor: writes much output in every manner, and trains a little if asked.

monitored_job.py lines COUNT       numbered lines on both streams, with pieces, bars and colours between
monitored_job.py hang              writes a line and sleeps
monitored_job.py train SECONDS     allreduces in steps through the NumPy door
"""

from __future__ import annotations

import os
import random
import sys
import time

RANK = int(os.environ.get("HVD_AS_RANK") or os.environ["HOROVOD_RANK"])


def lines(count: int) -> None:
    choose = random.Random(RANK)
    for number in range(count):
        stream = sys.stdout if number % 2 else sys.stderr
        text = f"line {number} of rank {RANK} " + "x" * choose.randrange(100)
        cut = choose.randrange(len(text))
        stream.write(text[:cut])
        stream.flush()
        stream.write(f"{text[cut:]}\n")
        stream.flush()
        if number % 50 == 0:
            sys.stderr.write(f"\rbar {number}\r")
            sys.stderr.flush()


def train(seconds: float) -> None:
    import numpy as np

    import horovod.numpy as hvd

    hvd.init()
    end = time.monotonic() + seconds
    step = 0
    go_on = True
    while go_on:
        hvd.allreduce(np.ones(100_000, np.float32), name="gradient")
        # All ranks leave in the same step.
        mine = np.array([time.monotonic() < end], np.int32)
        go_on = bool(hvd.allreduce(mine, name="go_on", op=hvd.Min)[0])
        step += 1
        if step % 200 == 0:
            print(f"step {step}", flush=True)
        time.sleep(0.002)
    hvd.shutdown()


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "lines":
        lines(int(rest[0]))
    elif what == "hang":
        print("hanging", flush=True)
        time.sleep(1000)
    else:
        train(float(rest[0]))
