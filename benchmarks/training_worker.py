"""One rank of one way to train in `training.py`: `training_worker.py alone|in-step|ddp|horovod`."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from worker_link import serve

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "pytorch"))
from models import build_model

IMAGE_SIZE, CLASSES = 32, 10  # CIFAR-10
Optimizer = torch.optim.Optimizer


def make_model() -> tuple[torch.nn.Module, Optimizer]:
    """VGG-16 for CIFAR shapes: 33.6 million parameters, 134 MB of gradients."""
    torch.manual_seed(1)
    model = build_model("vgg16", IMAGE_SIZE, CLASSES)
    return model, torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


def alone() -> tuple[int, torch.nn.Module, Optimizer, Callable[[], None]]:
    """No communication at all."""
    model, optimizer = make_model()
    return int(os.environ["RANK"]), model, optimizer, lambda: None


def in_step() -> tuple[int, torch.nn.Module, Optimizer, Callable[[], None]]:
    """No gradients are exchanged, but before each update the ranks wait for each other."""
    import horovod.torch as hvd

    hvd.init()
    model, optimizer = make_model()
    token = torch.zeros(1)

    def meet(*_: Any) -> None:
        hvd.allreduce_(token, name="token")

    optimizer.register_step_pre_hook(meet)
    return hvd.rank(), model, optimizer, hvd.shutdown


def ddp() -> tuple[int, torch.nn.Module, Optimizer, Callable[[], None]]:
    """Torch's DistributedDataParallel on Gloo, with its defaults."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.environ['BENCH_GLOO']}",
        rank=rank,
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    model, optimizer = make_model()
    return rank, DistributedDataParallel(model), optimizer, dist.destroy_process_group


def horovod() -> tuple[int, torch.nn.Module, Optimizer, Callable[[], None]]:
    """The usual lines, with the defaults."""
    import horovod.torch as hvd

    hvd.init()
    model, optimizer = make_model()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    return hvd.rank(), model, optimizer, hvd.shutdown


def page_faults() -> int:
    """Of this process so far: pages that the kernel had to give it anew."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


WAYS = {"alone": alone, "in-step": in_step, "ddp": ddp, "horovod": horovod}


def main() -> None:
    torch.set_num_threads(1)
    rank, model, optimizer, finish = WAYS[sys.argv[1]]()

    def steps(request: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(100 + rank)
        images = torch.randn(request["batch"], 3, IMAGE_SIZE, IMAGE_SIZE)
        labels = torch.randint(CLASSES, (request["batch"],))
        seconds = []
        faults = -page_faults()
        for _ in range(request["count"]):
            started = time.perf_counter()
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
        faults += page_faults()
        return {"seconds": seconds, "page_faults": faults / request["count"]}

    def gradient_bytes(_: dict[str, Any]) -> dict[str, Any]:
        return {"bytes": sum(p.numel() * p.element_size() for p in model.parameters())}

    serve(rank, {"steps": steps, "gradient_bytes": gradient_bytes})
    finish()


if __name__ == "__main__":
    main()
