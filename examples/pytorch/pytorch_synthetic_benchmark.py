"""Measures training speed on random images with Horovod.

horovodrun -np 2 python examples/pytorch/pytorch_synthetic_benchmark.py --model resnet50
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from models import MODELS, build_model

import horovod.torch as hvd


def main() -> None:
    args = parse_arguments()
    hvd.init()
    device = choose_device(args.no_cuda)

    model = build_model(args.model, args.image_size, args.num_classes).to(device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=choose_compression(args),
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    labels = torch.randint(args.num_classes, (args.batch_size,), device=device)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    kind = "GPU" if device.type == "cuda" else "CPU"
    gradient_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    say(f"Model: {args.model}")
    say(f"Batch size: {args.batch_size}")
    say(f"Image size: {args.image_size}")
    say(f"Gradients: {gradient_bytes / 1e6:.1f} MB")
    say(f"Number of {kind}s: {hvd.size()}")

    say("Running warmup...")
    for _ in range(args.num_warmup_batches):
        step()

    say("Running benchmark...")
    rates = measure(step, kind, args)
    report(rates, kind)
    hvd.shutdown()


def measure(step: Callable[[], None], kind: str, args: argparse.Namespace) -> list[float]:
    """Images per second of this rank in each of ``--num-iters`` runs; rank 0 prints them."""
    rates = []
    for iteration in range(args.num_iters):
        started = time.perf_counter()
        for _ in range(args.num_batches_per_iter):
            step()
        if kind == "GPU":
            torch.cuda.synchronize()
        rates.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - started))
        say(f"Iter #{iteration}: {rates[-1]:.1f} img/sec per {kind}")
    return rates


def report(rates: list[float], kind: str) -> None:
    """Means with 95 % of a normal distribution around them, per rank and for all ranks."""
    mean, spread = statistics.fmean(rates), 1.96 * statistics.pstdev(rates)
    # The ranks run in step, but each has its own clock: the total is the sum of what all measured.
    total = hvd.allreduce(torch.tensor(mean, dtype=torch.float64), op=hvd.Sum, name="rate").item()
    say(f"Img/sec per {kind}: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {hvd.size()} {kind}(s): {total:.1f} +-{hvd.size() * spread:.1f}")


def choose_device(no_cuda: bool) -> torch.device:
    """The GPU of this local rank if there is one, else the CPU."""
    if no_cuda or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank())
    return torch.device("cuda", hvd.local_rank())


def choose_compression(args: argparse.Namespace) -> type:
    """How gradients travel: as they are, or as 16-bit floats."""
    if args.fp16_allreduce:
        return hvd.Compression.fp16
    return hvd.Compression.bf16 if args.bf16_allreduce else hvd.Compression.none


def say(text: str) -> None:
    """Prints on rank 0 only."""
    if hvd.rank() == 0:
        print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Synthetic training benchmark for PyTorch",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--model", default="resnet50", choices=sorted(MODELS), help="network to train")
    add("--batch-size", type=int, default=32, help="images per rank and step")
    add("--image-size", type=int, default=224, help="32 for CIFAR, 224 or 299 for ImageNet shapes")
    add("--num-classes", type=int, default=1000, help="outputs of the network")
    add("--num-warmup-batches", type=int, default=10, help="steps before the measurement")
    add("--num-batches-per-iter", type=int, default=10, help="steps per printed figure")
    add("--num-iters", type=int, default=10, help="printed figures")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    bits = parser.add_mutually_exclusive_group()
    bits.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    bits.add_argument("--bf16-allreduce", action="store_true", help="send gradients as bfloat16")
    return parser.parse_args()


if __name__ == "__main__":
    main()
