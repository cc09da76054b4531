"""What the tests of other launchers run: two rounds of collectives, with a line of results from each."""

from __future__ import annotations

import json
import os
import sys

import numpy as np

import horovod.numpy as hvd


def one_round(number: int) -> None:
    hvd.init()
    total = hvd.allreduce(np.full(5, hvd.rank() + 1.0), op=hvd.Sum)
    gathered = hvd.allgather(np.array([[hvd.rank(), os.getpid()]]))
    facts = {
        "round": number,
        "rank": hvd.rank(),
        "size": hvd.size(),
        "local": [hvd.local_rank(), hvd.local_size()],
        "cross": [hvd.cross_rank(), hvd.cross_size()],
        "sum": total.tolist(),
        "ranks": gathered[:, 0].tolist(),
        "processes": len(set(gathered[:, 1].tolist())),
    }
    sys.stdout.write("facts " + json.dumps(facts) + "\n")  # in one piece: launchers mix the lines
    sys.stdout.flush()
    if number == 1 and "--die" in sys.argv and hvd.rank() == 1:
        os._exit(3)
    if number == 1 and "--raise" in sys.argv and hvd.rank() == 1:
        raise RuntimeError("rank 1 has had enough")
    if number == 1 and "--leave" in sys.argv and hvd.rank() == 1:
        sys.exit(0)
    hvd.allreduce(np.ones(1))
    hvd.shutdown()


for number in range(2):
    one_round(number)
