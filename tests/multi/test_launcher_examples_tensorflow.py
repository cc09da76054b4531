"""The examples of TensorFlow and Keras, with two processes on tiny made-up data."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import launcher_process  # noqa: F401 - makes PYTHONPATH absolute
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MAIN = Path(sys.executable)
TENSORFLOW1 = ROOT / ".venv-tensorflow1" / "bin" / "python"
LIMIT_SECONDS = 240

pytestmark = pytest.mark.timeout(2 * LIMIT_SECONDS + 20)

needs_tensorflow1 = pytest.mark.skipif(
    not TENSORFLOW1.exists(),
    reason="the environment .venv-tensorflow1 is absent; `make test` makes it",
)
IN_BOTH = [
    pytest.param(MAIN, id="main"),
    pytest.param(TENSORFLOW1, id="tensorflow1", marks=needs_tensorflow1),
]


def start(
    script: str,
    *options: str,
    python: Path = MAIN,
    folder: Path,
    processes: int = 2,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs an example under the launcher of an environment to its end."""
    return subprocess.run(
        [
            *(str(python), "-m", "horovod.runner", "-np", str(processes)),
            *(str(python), "-W", "ignore", str(EXAMPLES / script), *options),
        ],
        cwd=folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def run(script: str, *options: str, **arguments) -> str:
    """The same for one that must succeed; what it has written to standard output."""
    done = start(script, *options, **arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with IDX files: bars whose place is the digit, 400 to train on and 100 to test."""
    folder = tmp_path_factory.mktemp("digits")
    random = np.random.default_rng(1)
    for prefix, count in (("train", 400), ("t10k", 100)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = random.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 2 + 2 * label : 6 + 2 * label] += 180
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return str(folder)


def weights_are_equal(output: str) -> str:
    """What an example says when it has compared the weights of all ranks; the digest of the weights."""
    found = re.findall(r"weights are equal on all 2 rank\(s\)(?:: sha256 (\w{64}))?$", output, re.M)
    assert len(found) == 1, output
    return found[0]


def test_tensorflow2_mnist(digits: str, tmp_path: Path) -> None:
    options = ("--data-dir", digits, "--batch-size", "20", "--checkpoint", "mnist.keras")
    output = run("tensorflow2/tensorflow2_mnist.py", *options, "--epochs", "2", folder=tmp_path)
    epochs = re.findall(r"epoch (\d)/2: .* test accuracy \d+\.\d\d%, [\d,]+ images/s", output)
    assert epochs == ["1", "2"]
    weights_are_equal(output)
    assert os.listdir(tmp_path) == ["mnist.keras"]


def test_tensorflow2_mnist_compiled_by_xla_for_a_few_steps(digits: str, tmp_path: Path) -> None:
    options = ("--data-dir", digits, "--batch-size", "20", "--steps", "3", "--jit-compile")
    output = run("tensorflow2/tensorflow2_mnist.py", *options, folder=tmp_path)
    assert output.count("epoch 1/2: ") == 1 and "epoch 2/2" not in output
    weights_are_equal(output)


def test_too_few_images_are_an_error_with_a_way_out(digits: str, tmp_path: Path) -> None:
    options = ("--data-dir", digits, "--limit", "30")
    done = start("tensorflow2/tensorflow2_mnist.py", *options, folder=tmp_path)
    assert done.returncode == 1
    assert "30 training images are fewer than one batch of 64" in done.stderr
    assert "lower --batch-size" in done.stderr


@pytest.mark.parametrize("python", IN_BOTH)
def test_tensorflow2_keras_mnist(python: Path, digits: str, tmp_path: Path) -> None:
    options = ("--data-dir", digits, "--batch-size", "20", "--checkpoint", "mnist.keras")
    script = "tensorflow2/tensorflow2_keras_mnist.py"
    output = run(script, *options, "--epochs", "2", python=python, folder=tmp_path)
    assert len(re.findall(r"val_accuracy: \S+ - val_loss: \S+ - lr: |lr: \S+", output)) == 2
    assert "finished gradual learning rate warmup to 0.002" in output
    weights_are_equal(output)
    assert os.listdir(tmp_path) == ["mnist.keras"]


def test_tensorflow2_synthetic_benchmark(tmp_path: Path) -> None:
    output = run(
        "tensorflow2/tensorflow2_synthetic_benchmark.py",
        *("--model", "MobileNet", "--image-size", "32", "--num-classes", "10", "--batch-size", "2"),
        *("--num-warmup-batches", "1", "--num-batches-per-iter", "1", "--num-iters", "2"),
        folder=tmp_path,
    )
    assert re.search(r"Number of CPUs: 2$", output, re.M)
    assert len(re.findall(r"Iter #\d: \d+\.\d img/sec per CPU$", output, re.M)) == 2
    assert re.search(r"Img/sec per CPU: \d+\.\d \+-\d+\.\d$", output, re.M)
    assert re.search(r"Total img/sec on 2 CPU\(s\): \d+\.\d \+-\d+\.\d$", output, re.M)


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_keras_mnist_advanced_and_how_it_goes_on(backend: str, digits: str, tmp_path: Path) -> None:
    options = ("--data-dir", digits, "--batch-size", "20", "--warmup-epochs", "1")
    options += ("--checkpoint-dir", "checkpoints")
    arguments = {"folder": tmp_path, "KERAS_BACKEND": backend}
    script = "keras/keras_mnist_advanced.py"
    output = run(script, *options, "--epochs", "1", **arguments)
    assert f"on {backend}, epochs 1 to 1" in output
    first = weights_are_equal(output)
    if backend == "jax":  # the same code as for torch, and slow to start
        return
    output = run(script, *options, "--epochs", "2", **arguments)
    assert f"on {backend}, epochs 2 to 2" in output
    assert weights_are_equal(output) != first
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["mnist-01.keras", "mnist-02.keras"]


@pytest.mark.parametrize("python", IN_BOTH)
def test_tensorflow_mnist_shares_the_steps(python: Path, digits: str, tmp_path: Path) -> None:
    options = ("--data-dir", digits, "--batch-size", "20", "--steps", "20", "--log-interval", "5")
    options += ("--checkpoint-dir", "checkpoints")
    output = run("tensorflow/tensorflow_mnist.py", *options, python=python, folder=tmp_path)
    assert re.findall(r"step (\d+)/10: loss \S+, [\d,]+ images/s", output) == ["5", "10"]
    assert len(re.findall(r"final test accuracy: \d", output)) == 1
    weights_are_equal(output)
    # Of one rank: two would have written two files of events.
    files = os.listdir(tmp_path / "checkpoints")
    assert "model.ckpt-10.index" in files
    assert len([name for name in files if name.startswith("events.")]) == 1


@needs_tensorflow1
def test_cifar10_estimator(tmp_path: Path) -> None:
    made = subprocess.run(
        [MAIN, EXAMPLES / "tensorflow" / "cifar10_data.py", "data", "--images", "50"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert made.stdout == "data: 50 training and 10 test images\n", made.stderr
    options = ("--data-dir", "data", "--model_name", "resnet_v2_50", "--batch-size", "2")
    options += ("--steps", "8", "--log-interval", "1", "--eval-steps", "2", "--model-dir", "model")
    script = "tensorflow/cifar10_estimator.py"
    output = run(script, *options, python=TENSORFLOW1, folder=tmp_path, TMPDIR=str(tmp_path))
    assert "resnet_v2_50 on 2 process(es), 4 steps each" in output
    benchmark = r"benchmark: average examples/sec: \S+, current examples/sec: \S+, step: \d$"
    assert len(re.findall(benchmark, output, re.M)) >= 2
    assert len(re.findall(r"step 4: test loss \S+, test accuracy \S+%$", output, re.M)) == 1
    assert "model.ckpt-4.index" in os.listdir(tmp_path / "model")
    # What other ranks had to have instead of a folder is gone.
    assert sorted(name for name in os.listdir(tmp_path) if name != "model") == ["data"]


@needs_tensorflow1
def test_cifar10_estimator_says_what_is_wrong_with_the_data(tmp_path: Path) -> None:
    script = "tensorflow/cifar10_estimator.py"
    arguments = {"python": TENSORFLOW1, "folder": tmp_path, "processes": 1}
    done = start(script, "--data-dir", "nowhere", **arguments)
    assert done.returncode == 1
    assert "data_batch_1.bin" in done.stderr and "cifar10_data.py nowhere" in done.stderr


def test_cifar10_estimator_says_which_tensorflow_it_needs(tmp_path: Path) -> None:
    done = start("tensorflow/cifar10_estimator.py", folder=tmp_path, processes=1)
    assert done.returncode == 1
    assert "needs TensorFlow 2.15" in done.stderr and "pip install" in done.stderr


@pytest.mark.parametrize(
    ("python", "method"),
    [
        pytest.param(MAIN, "fresh", id="main-fresh"),
        pytest.param(TENSORFLOW1, "prune", id="tensorflow1-prune", marks=needs_tensorflow1),
    ],
)
def test_frozen_graph_runs_without_horovod(
    python: Path, method: str, digits: str, tmp_path: Path
) -> None:
    options = ("--data-dir", digits, "--output-dir", "frozen", "--method", method)
    options += ("--steps", "5", "--batch-size", "20")
    output = run("tensorflow/freeze_for_inference.py", *options, python=python, folder=tmp_path)
    assert re.search(r"training graph: [1-9]\d* of \d+ nodes are Horovod's", output)
    assert re.search(r"frozen graph: 0 of \d+ nodes are Horovod's", output)
    assert "the same scores for 100 images without Horovod" in output
    assert (tmp_path / "frozen" / "frozen.pb").stat().st_size > 320_000  # 80,202 constants
