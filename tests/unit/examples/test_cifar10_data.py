"""The reader of CIFAR-10's binary format, and the made-up data in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cifar10_data import (
    ARCHIVE_FOLDER,
    Pictures,
    load_cifar10,
    made_up_pictures,
    read_pictures,
    write_made_up,
    write_pictures,
)


def test_a_record_is_label_then_red_green_and_blue_row_by_row(tmp_path: Path) -> None:
    red = np.arange(1024) % 251
    record = np.concatenate([[7], red, np.full(1024, 8), np.full(1024, 9)]).astype(np.uint8)
    (tmp_path / "one.bin").write_bytes(record.tobytes())
    images, labels = read_pictures(tmp_path / "one.bin")
    assert images.shape == (1, 32, 32, 3)
    assert labels.tolist() == [7] and labels.dtype == np.int64
    assert np.array_equal(images[0, :, :, 0].ravel(), red)
    assert np.all(images[0, :, :, 1] == 8) and np.all(images[0, :, :, 2] == 9)


def test_pictures_come_back_as_written(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    images = random.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    written = Pictures(images, random.integers(0, 10, 6))
    write_pictures(tmp_path / "six.bin", written)
    assert (tmp_path / "six.bin").stat().st_size == 6 * 3073
    read = read_pictures(tmp_path / "six.bin")
    assert np.array_equal(read.images, written.images)
    assert np.array_equal(read.labels, written.labels)


@pytest.mark.parametrize("folder", [".", ARCHIVE_FOLDER])
def test_all_six_files_are_read_also_in_the_folder_of_the_archive(
    tmp_path: Path, folder: str
) -> None:
    write_made_up(tmp_path / folder, 50)
    train, test = load_cifar10(tmp_path)
    assert (len(train.labels), len(test.labels)) == (50, 10)


def test_missing_files_are_named_with_both_ways_out(tmp_path: Path) -> None:
    write_made_up(tmp_path, 5)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"data_batch_3\.bin not found.*cs\.toronto\.edu"
    ) as e:
        load_cifar10(tmp_path)
    assert "cifar10_data.py" in str(e.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    for content, text in (
        (b"", "has 0 bytes"),
        (bytes(3072), "has 3072 bytes"),
        (bytes([10]) + bytes(3072), "has the label 10"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=text):
            read_pictures(file)


def test_made_up_pictures_of_a_class_have_its_colour() -> None:
    images, labels = made_up_pictures(400, np.random.default_rng(0))
    spread = images.astype(float).std(axis=(1, 2))  # of each colour in each picture
    centres = np.array([spread[labels == label].mean(axis=0) for label in range(10)])
    nearest = np.abs(spread[:, np.newaxis] - centres).sum(axis=2).argmin(axis=1)
    assert np.mean(nearest == labels) > 0.7
