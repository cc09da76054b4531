"""The example scripts themselves, on a few made-up digits, alone and with two processes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_mnist_data import write_idx_files

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "pytorch"
HOROVODRUN = Path(sys.executable).with_name("horovodrun")


def run(script: str, *options: str, processes: int, folder: Path) -> str:
    launcher = [str(HOROVODRUN), "-np", str(processes)] if processes > 1 else []
    result = subprocess.run(
        [*launcher, sys.executable, str(EXAMPLES / script), *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def run_mnist(folder: Path, *options: str, processes: int = 1) -> str:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    write_idx_files(data, compress=True)
    batches = ("--batch-size", "3", "--epochs", "2")
    return run(
        "pytorch_mnist.py", "--data-dir", str(data), *batches, *options,
        processes=processes, folder=folder,
    )  # fmt: skip


def parameter_digest(output: str) -> str:
    found = re.search(r"parameters are equal on all \d rank\(s\): sha256 ([0-9a-f]{64})", output)
    assert found, output
    return found.group(1)


@pytest.mark.parametrize("processes", [1, 2])
def test_mnist_prints_each_epoch_once_and_writes_one_checkpoint(
    tmp_path: Path, processes: int
) -> None:
    output = run_mnist(tmp_path, "--checkpoint", "mnist.pt", processes=processes)
    epochs = re.findall(r"epoch (\d)/2: .* test accuracy \d+\.\d\d%, [\d,]+ images/s", output)
    assert epochs == ["1", "2"]
    assert f"{processes} process(es)" in output
    state = torch.load(tmp_path / "mnist.pt", weights_only=True)
    assert state["epoch"] == 2
    assert set(state) == {"epoch", "model", "optimizer"}


def test_mnist_with_the_same_seed_ends_with_the_same_bits(tmp_path: Path) -> None:
    first, second, other = (
        parameter_digest(run_mnist(tmp_path, "--checkpoint", "", "--seed", seed, processes=2))
        for seed in ("1", "1", "2")
    )
    assert first == second != other


@pytest.mark.parametrize("option", ["--fp16-allreduce", "--bf16-allreduce", "--no-lr-scaling"])
def test_mnist_options_keep_the_ranks_equal(tmp_path: Path, option: str) -> None:
    parameter_digest(run_mnist(tmp_path, "--checkpoint", "", option, processes=2))


def test_synthetic_benchmark_prints_rates_per_rank_and_in_total(tmp_path: Path) -> None:
    output = run(
        "pytorch_synthetic_benchmark.py",
        *("--model", "resnet50", "--image-size", "32", "--num-classes", "10", "--batch-size", "1"),
        *("--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2"),
        processes=2,
        folder=tmp_path,
    )
    assert re.search(r"Number of CPUs: 2$", output, re.M)
    assert len(re.findall(r"Iter #\d: \d+\.\d img/sec per CPU$", output, re.M)) == 2
    assert re.search(r"Img/sec per CPU: \d+\.\d \+-\d+\.\d$", output, re.M)
    assert re.search(r"Total img/sec on 2 CPU\(s\): \d+\.\d \+-\d+\.\d$", output, re.M)
