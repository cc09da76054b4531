"""Reads the binary version of CIFAR-10, and writes a small made-up data set in the same format.

    python examples/tensorflow/cifar10_data.py DIR --images 1000

The format (https://www.cs.toronto.edu/~kriz/cifar.html): records of 3073 bytes, the first one the label, then
1024 bytes each of red, green and blue, row by row. Training images are in data_batch_1.bin to
data_batch_5.bin, test images in test_batch.bin.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SIZE = 32
CLASSES = 10
RECORD_BYTES = 1 + 3 * SIZE * SIZE
TRAIN_FILES = [f"data_batch_{number}.bin" for number in range(1, 6)]
TEST_FILE = "test_batch.bin"
ARCHIVE_FOLDER = "cifar-10-batches-bin"  # as the archive of the original unpacks


class Pictures(NamedTuple):
    """``images``: (n, 32, 32, 3) uint8; ``labels``: (n,) int64, 0 to 9."""

    images: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, np.dtype[np.int64]]


def load_cifar10(directory: Path) -> tuple[Pictures, Pictures]:
    """Returns (training pictures, test pictures) from the files in ``directory``.

    Raises ``FileNotFoundError`` or ``ValueError`` with what to do.
    """
    folder = directory / ARCHIVE_FOLDER if (directory / ARCHIVE_FOLDER).is_dir() else directory
    missing = [name for name in (*TRAIN_FILES, TEST_FILE) if not (folder / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{', '.join(missing)} not found in {folder}. Unpack cifar-10-binary.tar.gz of "
            "https://www.cs.toronto.edu/~kriz/cifar.html there, or write a made-up data set with "
            f"`python examples/tensorflow/cifar10_data.py {directory}`."
        )
    parts = [read_pictures(folder / name) for name in TRAIN_FILES]
    train = Pictures(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return train, read_pictures(folder / TEST_FILE)


def read_pictures(path: Path) -> Pictures:
    """Reads one file. Raises ``ValueError`` when it is not in the format."""
    data = np.fromfile(path, np.uint8)
    if data.size == 0 or data.size % RECORD_BYTES:
        raise ValueError(
            f"{path} has {data.size} bytes, which are no records of {RECORD_BYTES} bytes; it is damaged or "
            "is not the binary version of CIFAR-10."
        )
    records = data.reshape(-1, RECORD_BYTES)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= CLASSES:
        raise ValueError(f"{path} has the label {labels.max()}; CIFAR-10 has labels 0 to 9.")
    planes = records[:, 1:].reshape(-1, 3, SIZE, SIZE)
    return Pictures(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)


def write_pictures(path: Path, pictures: Pictures) -> None:
    """Writes one file."""
    planes = pictures.images.transpose(0, 3, 1, 2).reshape(len(pictures.labels), -1)
    labels = pictures.labels.astype(np.uint8)[:, np.newaxis]
    np.concatenate([labels, planes], axis=1).tofile(path)


def made_up_pictures(count: int, random: np.random.Generator) -> Pictures:
    """Stripes whose direction and colour depend on the label, under noise: easy to learn."""
    labels = random.integers(0, CLASSES, count)
    rows, columns = np.mgrid[:SIZE, :SIZE] / SIZE
    angle = labels[:, np.newaxis, np.newaxis] * (np.pi / CLASSES)
    phase = random.uniform(0, 2 * np.pi, (count, 1, 1))
    waves = np.sin(8 * np.pi * (rows * np.sin(angle) + columns * np.cos(angle)) + phase)
    colours = np.random.default_rng(0).uniform(30, 90, (CLASSES, 3))[labels]
    images = 128 + waves[..., np.newaxis] * colours[:, np.newaxis, np.newaxis]
    images += random.normal(0, 20, images.shape)
    return Pictures(images.clip(0, 255).astype(np.uint8), labels)


def write_made_up(directory: Path, count: int, seed: int = 42) -> None:
    """Writes ``count`` training pictures and a fifth as many test pictures into the six files."""
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(seed)
    for name in (*TRAIN_FILES, TEST_FILE):
        write_pictures(directory / name, made_up_pictures(max(1, count // 5), random))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write a small made-up data set in the format of CIFAR-10",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("directory", type=Path, help="folder for the six files")
    parser.add_argument("--images", type=int, default=1000, help="number of training images")
    parser.add_argument("--seed", type=int, default=42, help="seed of everything random")
    args = parser.parse_args()
    existing = [n for n in (*TRAIN_FILES, TEST_FILE) if (args.directory / n).exists()]
    if existing:
        parser.error(
            f"{args.directory} has {', '.join(existing)} already; they are not overwritten"
        )
    write_made_up(args.directory, args.images, args.seed)
    train, test = load_cifar10(args.directory)
    print(f"{args.directory}: {len(train.labels)} training and {len(test.labels)} test images")


if __name__ == "__main__":
    main()
