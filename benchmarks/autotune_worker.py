"""One rank of `autotune.py`: `autotune_worker.py MODEL` trains when it is told to."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import horovod.torch as hvd
from worker_link import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "pytorch"))
from models import build_model

IMAGE_SIZE, CLASSES = 32, 10  # CIFAR-10


def is_tuned() -> bool:
    """False on rank 0 as long as autotune has not chosen; True on the others, where nothing tunes."""
    return all(thread.name != "horovod-autotune" for thread in threading.enumerate())


def main() -> None:
    torch.set_num_threads(1)
    hvd.init()
    torch.manual_seed(1)
    model = build_model(sys.argv[1], IMAGE_SIZE, CLASSES)
    plain = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(plain, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    def steps(request: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(100 + hvd.rank())
        images = torch.randn(request["batch"], 3, IMAGE_SIZE, IMAGE_SIZE)
        labels = torch.randint(CLASSES, (request["batch"],))
        seconds = []
        for _ in range(request["count"]):
            started = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
        return {"seconds": seconds, "is_tuned": is_tuned()}

    def gradients(_: dict[str, Any]) -> dict[str, Any]:
        sizes = [p.numel() * p.element_size() for p in model.parameters()]
        return {"bytes": sum(sizes), "tensors": len(sizes)}

    serve(hvd.rank(), {"steps": steps, "gradients": gradients})
    hvd.shutdown()


if __name__ == "__main__":
    main()
