"""The driver's end of one agent: its process, and the frames in both directions."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import horovod
from horovod.runner.protocol import FrameReader, Job, encode

READ_BYTES = 256 << 10


class AgentLink:
    """An agent that runs as a child of this process, in a session of its own."""

    def __init__(self, host: str, ranks: list[int]) -> None:
        self.host = host
        self.ranks = ranks
        self.pids: set[int] = set()
        self.live = set(ranks)
        self.heard = False
        self.done = False
        self._reader = FrameReader()
        self._process = subprocess.Popen(
            # -P: a module of the user's that lies here must not hide one of Python's.
            [sys.executable, "-P", "-m", "horovod.runner.agent", "--parent", str(os.getpid())],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self.pid = self._process.pid
        self._to, self._from = self._process.stdin, self._process.stdout

    def fileno(self) -> int:
        """Readable when the agent has said something."""
        return self._from.fileno()

    def send_job(self, job: Job) -> None:
        """The first frame; waits until the agent has taken it."""
        try:
            frame = memoryview(encode(job.to_message()))
            while frame:
                frame = frame[os.write(self._to.fileno(), frame) :]
            os.set_blocking(self._to.fileno(), False)
        except BrokenPipeError:
            return  # the agent has died; the end of its frames tells

    def send(self, message: list[Any]) -> None:
        """A short command. Safe in a signal handler: it never waits."""
        try:
            os.write(self._to.fileno(), encode(message))
        except (BrokenPipeError, BlockingIOError, ValueError):
            return  # dead, stuck or closed; `end` deals with that

    def receive(self) -> Iterator[list[Any]]:
        """What the agent has said; an empty list as last message means that it has hung up."""
        piece = os.read(self._from.fileno(), READ_BYTES)
        if not piece:
            yield []
        self.heard = True
        yield from self._reader.feed(piece)

    def end(self, seconds: float) -> bool:
        """Hangs up, which ends the agent's workers, and waits; False when it had to be killed."""
        self._to.close()
        self._from.close()  # else an agent with much to say would wait for us
        try:
            self._process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False


def _environment() -> dict[str, str]:
    """Our own, and a way to find this package where it isn't installed."""
    environment = dict(os.environ)
    root = os.path.dirname(os.path.dirname(os.path.abspath(horovod.__file__)))
    if root not in site.getsitepackages():
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{before}{os.pathsep}{root}" if before else root
    return environment
