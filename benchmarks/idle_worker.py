"""One rank of `idle.py`: initialises, does one allreduce, and then has nothing to do."""

from __future__ import annotations

from typing import Any

import numpy as np

import horovod.numpy as hvd
from horovod import _core
from worker_link import serve


def main() -> None:
    hvd.init()
    hvd.allreduce(np.ones(1, np.float32), name="once")

    def counters(_: dict[str, Any]) -> dict[str, Any]:
        return {"counters": _core.counters()}

    serve(hvd.rank(), {"counters": counters})
    hvd.shutdown()


if __name__ == "__main__":
    main()
