"""The CSV log of autotune: one row per sample, then the winner as the last row; and its reader."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from typing import TextIO

from horovod.common.autotune.space import Setting
from horovod.common.autotune.tuner import Sample
from horovod.common.log import logger

# Horovod 0.28's header. The first three are choices that this engine does not have: always 0.
COLUMNS = (
    "hierarchical_allreduce",
    "hierarchical_allgather",
    "torus_allreduce",
    "cache_enabled",
    "cycle_time_ms",
    "tensor_fusion_threshold",
    "score",
)
HEADER = ",".join(COLUMNS)
LONGEST_QUOTE = 80  # characters of a bad file that an error shows


def row(sample: Sample) -> str:
    """One line without its end: threshold in bytes, score in bytes per microsecond."""
    setting = sample.setting
    return (
        f"0,0,0,{int(setting.cache_enabled)},{setting.cycle_time_ms:g},"
        f"{setting.threshold_bytes},{sample.score:.6g}"
    )


class LogFile:
    """Writes rows as they come. A file that can't be written is one error; tuning goes on."""

    def __init__(self, path: str | None, history: Iterable[Sample] = ()) -> None:
        """Begins the file anew with the header and the samples that there are already.

        Args:
            path: None writes nothing.
            history: samples of an earlier engine of this process.
        """
        self._path = path
        self._file: TextIO | None = None
        if path is None:
            return
        try:
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by close
        except OSError as error:
            self._report(error)
            return
        self._write([HEADER, *map(row, history)])

    def add(self, sample: Sample) -> None:
        """Writes one row; it is in the file when this returns."""
        self._write([row(sample)])

    def close(self) -> None:
        """Closes the file; harmless when it is closed."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._report(error)

    def _write(self, lines: Sequence[str]) -> None:
        if self._file is None:
            return
        try:
            self._file.write("".join(f"{line}\n" for line in lines))
            self._file.flush()
        except OSError as error:
            self._report(error)
            with contextlib.suppress(OSError):  # it tries to write the rest, and fails likewise
                self._file.close()
            self._file = None

    def _report(self, error: OSError) -> None:
        logger.error(
            "The log of autotune, %s (HOROVOD_AUTOTUNE_LOG), can't be written: %s. Tuning and training "
            "go on without it.",
            self._path,
            error.strerror or error,
        )


class AutotuneLogError(ValueError):
    """A log can't be read; the text names file and line."""


def read_log(path: str | os.PathLike[str]) -> list[Sample]:
    """Reads a log; the last sample is the winner if tuning had finished.

    Args:
        path: the CSV file.

    Raises:
        AutotuneLogError: the file can't be opened, or is not such a log; names file and line.
    """
    name = os.fspath(path)
    samples: list[Sample] = []
    number = 0
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if number == 1:
                    _check_header(line, f"{name}:1")
                else:
                    samples.append(_parse_row(line, f"{name}:{number}"))
    except OSError as error:
        raise AutotuneLogError(f"{name}: {error.strerror or error}") from error
    if number == 0:
        raise AutotuneLogError(f"{name}:1: the file is empty; expected the header {HEADER}")
    return samples


def _shown(line: bytes) -> str:
    text = line.decode("utf-8", errors="replace").rstrip("\r\n")
    return repr(text if len(text) <= LONGEST_QUOTE else text[:LONGEST_QUOTE] + "...")


def _check_header(line: bytes, place: str) -> None:
    if line.rstrip(b"\r\n") != HEADER.encode():
        raise AutotuneLogError(f"{place}: expected the header {HEADER}, not {_shown(line)}")


def _parse_row(line: bytes, place: str) -> Sample:
    if not line.endswith(b"\n"):
        raise AutotuneLogError(f"{place}: the file ends within a row: {_shown(line)}")
    cells = line.decode("utf-8", errors="replace").rstrip("\r\n").split(",")
    if len(cells) != len(COLUMNS):
        raise AutotuneLogError(
            f"{place}: expected {len(COLUMNS)} values with commas between them, found {len(cells)}: "
            f"{_shown(line)}"
        )
    numbers = []
    for column, cell in zip(COLUMNS, cells, strict=True):
        try:
            number = float(cell)
        except ValueError:
            shown = _shown(cell.encode())
            raise AutotuneLogError(f"{place}: {column} is {shown}, not a number") from None
        if not math.isfinite(number) or number < 0:
            raise AutotuneLogError(f"{place}: {column} is {cell}; expected a number >= 0")
        numbers.append(number)
    for column, number in zip(COLUMNS[:4], numbers[:4], strict=True):
        if number not in (0.0, 1.0):
            raise AutotuneLogError(f"{place}: {column} is {number:g}; expected 0 or 1")
    *_, cache, cycle_time_ms, threshold_bytes, score = numbers
    return Sample(Setting(int(threshold_bytes), cycle_time_ms, bool(cache)), score)
