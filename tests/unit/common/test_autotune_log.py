"""The CSV log: what is written when, what happens when it can't be, and what the reader refuses."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from horovod.common.autotune.log_file import HEADER, AutotuneLogError, LogFile, read_log
from horovod.common.autotune.space import MEBIBYTE, Setting
from horovod.common.autotune.tuner import Sample

A = Sample(Setting(4 * MEBIBYTE, 5.0, True), 812.25)
B = Sample(Setting(0, 99.99, False), 0.5)


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(logging.getLogger("horovod"), "propagate", True)
    return caplog


def test_the_header_is_that_of_horovod() -> None:
    assert HEADER == (
        "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
        "cycle_time_ms,tensor_fusion_threshold,score"
    )


def test_rows_are_in_the_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log_file = LogFile(str(path))
    assert path.read_text() == HEADER + "\n"
    log_file.add(A)
    assert path.read_text() == HEADER + "\n0,0,0,1,5,4194304,812.25\n"
    log_file.add(B)
    assert path.read_text().splitlines()[-1] == "0,0,0,0,99.99,0,0.5"
    log_file.close()
    log_file.close()


def test_what_was_learnt_before_stands_at_the_beginning_of_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("something else")
    log_file = LogFile(str(path), [A])
    log_file.add(B)
    log_file.close()
    assert read_log(path) == [A, B]


def test_without_a_path_nothing_is_written() -> None:
    log_file = LogFile(None)
    log_file.add(A)
    log_file.close()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("{tmp}", "Is a directory"),
        ("{tmp}/absent/log.csv", "No such file or directory"),
        ("/dev/full", "No space left on device"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_error(
    path: str, reason: str, tmp_path: Path, messages: pytest.LogCaptureFixture
) -> None:
    chosen = path.format(tmp=tmp_path)
    log_file = LogFile(chosen)
    log_file.add(A)
    log_file.add(B)
    log_file.close()
    (error,) = [record.getMessage() for record in messages.records]
    assert error == (
        f"The log of autotune, {chosen} (HOROVOD_AUTOTUNE_LOG), can't be written: {reason}. Tuning "
        "and training go on without it."
    )


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (b"", 1, "the file is empty"),
        (b"cycle_time_ms,score\n", 1, "expected the header hierarchical_allreduce,"),
        (b"\x89PNG\r\n\x1a\n\0\0", 1, "expected the header"),
        (b"x" * 5000, 1, "x..."),
        (
            b"%s\n0,0,0,1,5,4194304,812\n0,0,0,1,5\n",
            3,
            "expected 7 values with commas between them",
        ),
        (b"%s\n0,0,0,1,5,4194304,812\n0,0,0,1,5,41943", 3, "the file ends within a row"),
        (b"%s\n0,0,0,1,fast,4194304,812\n", 2, "cycle_time_ms is 'fast', not a number"),
        (b"%s\n0,0,0,1,5,4194304,nan\n", 2, "score is nan; expected a number >= 0"),
        (b"%s\n0,0,0,1,5,-4,812\n", 2, "tensor_fusion_threshold is -4; expected a number >= 0"),
        (b"%s\n0,0,0,2,5,4194304,812\n", 2, "cache_enabled is 2; expected 0 or 1"),
        (b"%s\n0,0,0,1,5,\xff\xfe,812\n", 2, "tensor_fusion_threshold is"),
        (b"%s\n\n", 2, "expected 7 values"),
    ],
)
def test_a_bad_file_is_refused_with_file_and_line(
    content: bytes, line: int, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(content.replace(b"%s", HEADER.encode()))
    with pytest.raises(AutotuneLogError) as raised:
        read_log(path)
    text = str(raised.value)
    assert text.startswith(f"{path}:{line}: ")
    assert problem in text
    assert len(text) < len(os.fspath(path)) + 300


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AutotuneLogError, match=r"absent\.csv: No such file"):
        read_log(tmp_path / "absent.csv")


def test_a_log_with_ends_of_lines_of_another_system_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(f"{HEADER}\r\n0,0,0,1,5,4194304,812.25\r\n".encode())
    assert read_log(path) == [A]
