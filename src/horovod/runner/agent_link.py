"""The driver's end of one agent: its process, and the frames in both directions."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import horovod
from horovod.runner.protocol import PREAMBLE, FrameReader, HostFacts, Job, encode
from horovod.runner.ssh import (
    FAILED,
    LOST_SECONDS,
    explain,
    is_hopeless,
    remote_agent,
)

READ_BYTES = 256 << 10
WORDS_BYTES = 64 << 10  # of what a remote shell says on standard error
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0


class AgentLink:
    """An agent that runs as a child of this process, in a session of its own; here or behind ssh."""

    is_remote = False

    def __init__(self, host: str) -> None:
        self.host = host
        self.pids: set[int] = set()
        self.live: set[int] = set()  # ranks
        self.facts: HostFacts | None = None
        self.done = False
        self.retry_at: float | None = None  # remote: when the next attempt is due
        self._start()

    def _start(self) -> None:
        self._reader = FrameReader(PREAMBLE)
        self._process = self._spawn()
        assert self._process.stdin is not None and self._process.stdout is not None
        self.pid = self._process.pid
        self._to, self._from = self._process.stdin, self._process.stdout

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            # -P: a module of the user's that lies here must not hide one of Python's.
            [sys.executable, "-P", "-m", "horovod.runner.agent", "--parent", str(os.getpid())],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )

    def fileno(self) -> int:
        """Readable when the agent has said something."""
        return self._from.fileno()

    def send_job(self, job: Job) -> None:
        """The first frame; waits until the agent has taken it."""
        self.live = {worker.rank for worker in job.workers}
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
        yield from self._reader.feed(piece)

    def why_ended(self) -> str:
        """After it has hung up without having said that it is done: what is known."""
        return "its agent ended unexpectedly, and its workers with it"

    def wants_another_try(self) -> bool:
        """After it has hung up: True when `retry_at` says when to call `retry`."""
        return False

    def retry(self) -> None:
        """Starts the agent once more."""
        self.retry_at = None
        self._start()

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


class RemoteAgentLink(AgentLink):
    """An agent on another host; the child of this process is ssh."""

    is_remote = True

    def __init__(self, host: str, there: Callable[[str, Sequence[str]], list[str]]) -> None:
        """`there(host, command)` is what runs a command there: ssh with its options, or srun."""
        self._command = there(host, remote_agent(package_root()))
        self._pause = FIRST_PAUSE
        self._words: Any = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        super().__init__(host)

    def _spawn(self) -> subprocess.Popen[bytes]:
        self._words.seek(0)
        self._words.truncate()
        try:
            return subprocess.Popen(
                self._command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise ValueError(
                f"host '{self.host}' is not this machine, and the program '{self._command[0]}', by which "
                "others are reached, is not installed here"
            ) from None

    def said(self) -> str:
        """What came on standard error: of ssh, the remote shell and the agent itself."""
        size = os.fstat(self._words.fileno()).st_size
        # ssh writes where this file's position is, so it is read without moving that.
        tail = os.pread(self._words.fileno(), WORDS_BYTES, max(0, size - WORDS_BYTES))
        return tail.decode(errors="replace")

    def wants_another_try(self) -> bool:
        """True unless it has spoken before, or ssh said that it is of no use."""
        # Before its first word: a name that does not resolve yet, a host that is still starting.
        if self.facts is not None or self._exit_code() != FAILED or is_hopeless(self.said()):
            return False
        self._to.close()
        self._from.close()
        self.retry_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True

    def why_ended(self) -> str:
        """What ssh and the other side have said."""
        code = self._exit_code()
        if self.facts is None:
            return explain(self.host, code, self.said(), self._program())
        said = " ".join(self.said().split()[-60:])
        return (
            f"the connection to its agent broke ({self._program()} ended with status {code}"
            f"{': ' + said if said else ''}): the host or the network between may be down"
        )

    def _program(self) -> str:
        return os.path.basename(self._command[0])

    def _exit_code(self) -> int:
        """Of ssh, which has closed its output and is about to end."""
        try:
            return self._process.wait(LOST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def end(self, seconds: float) -> bool:
        """Hangs up, as of an agent here."""
        orderly = super().end(seconds)
        self._words.close()
        return orderly


def package_root() -> str | None:
    """Where this package lies, if that is no place where Python looks by itself."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(horovod.__file__)))
    return None if root in site.getsitepackages() else root


def _environment() -> dict[str, str]:
    """Our own, and a way to find this package where it isn't installed."""
    environment = dict(os.environ)
    root = package_root()
    if root is not None:
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{before}{os.pathsep}{root}" if before else root
    return environment
