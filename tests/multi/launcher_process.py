"""Starts horovodrun for a test and finds every process that belongs to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

MARK = "HVD_TEST_JOB"
DEADLINE_SECONDS = 60.0
# Tests change the working directory; a relative path to the package would be lost.
os.environ["PYTHONPATH"] = os.pathsep.join(
    os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path
)
COMMAND = [sys.executable, "-m", "horovod.runner"]


def launch(*arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Runs horovodrun to its end."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, timeout=DEADLINE_SECONDS, **options
    )


def python(code: str) -> list[str]:
    """A worker's command."""
    return [sys.executable, "-c", code]


def wait_until(condition: Callable[[], bool]) -> None:
    """Fails when the condition does not come true."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


class RunningJob:
    """horovodrun in the background; leaving the block kills whatever is left of it."""

    def __init__(self, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: self.mark},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):  # it ended with the one before
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()

    def wait_for_lines(self, text: str, count: int) -> list[str]:
        """The first `count` lines of standard output with `text`."""
        assert self.process.stdout is not None
        found: list[str] = []
        while len(found) < count:
            line = self.process.stdout.readline().decode()
            assert line, f"the job ended after {found}"
            if text in line:
                found.append(line.rstrip("\n"))
        return found

    def finish(self) -> tuple[int, str, str]:
        """Exit code, rest of standard output, standard error."""
        out, err = self.process.communicate(timeout=DEADLINE_SECONDS)
        return self.process.returncode, out.decode(), err.decode()

    def pids(self, command_part: str = "") -> list[int]:
        """All processes of the job, also those that left their session; or those with such a command."""
        needle = f"{MARK}={self.mark}".encode()
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if needle in environment and command_part in command:
                found.append(int(entry.name))
        return found

    def survivors(self) -> list[int]:
        """Processes that are still there when everything should have ended long ago."""
        deadline = time.monotonic() + 15.0
        while (left := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left
