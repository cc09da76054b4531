"""What is wrong with a timeline file, and where in it."""

from __future__ import annotations

from pathlib import Path


class TimelineError(ValueError):
    """A file, or a list of files, from which no timeline can be read; the text says where and why."""


def at(path: Path, line: int | None, column: int | None, text: str) -> TimelineError:
    """An error at a place in a file; lines and columns count from 1."""
    place = str(path)
    if line is not None:
        place += f": line {line}"
    if column is not None:
        place += f", column {column}"
    return TimelineError(f"{place}: {text}")
