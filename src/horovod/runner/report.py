"""Which failure was the first, and what the user is told about it."""

from __future__ import annotations

import signal
from typing import NamedTuple

INTERNAL_ERROR = "HorovodInternalError"
HEADING = (
    "Horovod detected that one or more processes exited with non-zero status, thus causing the job "
    "to be terminated. The first process to do so was:"
)


class Failure(NamedTuple):
    """A worker (or, without a rank, an agent) that failed."""

    rank: int | None
    host: str
    code: int  # as a shell reports it
    signum: int = 0
    text: str = ""  # what else is known


def culprit(failures: list[Failure], last_lines: dict[int, list[str]]) -> tuple[Failure, str]:
    """The failure to report, with the reason of the choice.

    `failures` stand in the order in which they were seen. A rank that fails because another one has
    failed says so in its last lines, and may be seen to end before the one that takes long to.
    """
    for failure in failures:
        lines = last_lines.get(failure.rank, []) if failure.rank is not None else []
        if not any(INTERNAL_ERROR in line for line in lines):
            return failure, "the first that did not fail because of another rank"
    return failures[0], "the first that was seen"


def describe(failure: Failure, last_lines: list[str]) -> str:
    """The last words of a job."""
    name = f"agent of {failure.host}" if failure.rank is None else str(failure.rank)
    text = [
        HEADING,
        f"Process name: {name}",
        f"Exit code: {failure.code}",
        _sentence(failure),
    ]
    if last_lines:
        text += [f"The last {len(last_lines)} line(s) of its output:", *last_lines]
    return "\n".join(text) + "\n"


def _sentence(failure: Failure) -> str:
    if failure.rank is None:
        return f"Host {failure.host}: {failure.text}."
    who = f"Rank {failure.rank} on host {failure.host}"
    if failure.signum:
        what = f"was killed by signal {failure.signum} ({_signal_name(failure.signum)})"
        return f"{who} {what}{': ' + failure.text if failure.text else ''}."
    if failure.text:
        return f"{who} could not be started: {failure.text}."
    return f"{who} exited with status {failure.code}."


def _signal_name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return "real-time signal"
