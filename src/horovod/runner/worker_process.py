"""Starts one worker: its own session, pipes for its output, and death together with its agent."""

from __future__ import annotations

import errno
import os
import signal
import subprocess

from horovod.runner.processes import die_with_parent
from horovod.runner.protocol import STDERR, STDOUT, Worker

NOT_FOUND, NOT_EXECUTABLE = 127, 126


class CannotStart(Exception):
    """The command can't be executed; `code` is what a shell would exit with."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class WorkerProcess:
    """A running worker. `pid` is also its process group and session."""

    def __init__(self, worker: Worker, command: list[bytes], environment: dict[bytes, bytes]):
        process = _start(command, environment)
        assert process.stdout is not None and process.stderr is not None
        self.rank = worker.rank
        self.pid = process.pid
        self._files = {STDOUT: process.stdout, STDERR: process.stderr}
        self.streams = {file.fileno(): stream for stream, file in self._files.items()}
        for descriptor in self.streams:
            os.set_blocking(descriptor, False)
        process.returncode = 0  # the agent waits for the pid itself
        self._process = process

    def close(self) -> None:
        """Closes our ends of the pipes."""
        for file in self._files.values():
            file.close()


def _start(command: list[bytes], environment: dict[bytes, bytes]) -> subprocess.Popen[bytes]:
    try:
        return _spawn(command, environment)
    except OSError as error:
        name = os.fsdecode(command[0])
        match error.errno:
            case errno.ENOEXEC:  # a script without a first line: as every shell does
                return _spawn(
                    [b"/bin/sh", _locate(command[0], environment), *command[1:]], environment
                )
            case errno.ENOENT | errno.ENOTDIR:
                raise CannotStart(
                    NOT_FOUND,
                    f"the command '{name}', or the interpreter that its first line names, does not "
                    f"exist (working directory {os.getcwd()})",
                ) from None
            case errno.EACCES:
                raise CannotStart(
                    NOT_EXECUTABLE, f"the command '{name}' is not executable; see chmod +x"
                ) from None
            case _:
                raise CannotStart(
                    NOT_EXECUTABLE, f"the command '{name}' cannot be executed: {error.strerror}"
                ) from None


def _spawn(command: list[bytes], environment: dict[bytes, bytes]) -> subprocess.Popen[bytes]:
    agent = os.getpid()

    def in_child() -> None:
        # A background job of a shell ignores Ctrl-C; its workers must still hear ours.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        die_with_parent(signal.SIGKILL, agent)

    return subprocess.Popen(
        command,
        bufsize=0,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        preexec_fn=in_child,  # the agent has one thread
    )


def _locate(name: bytes, environment: dict[bytes, bytes]) -> bytes:
    if b"/" in name:
        return name
    candidates = [os.path.join(place, name) for place in environment.get(b"PATH", b"").split(b":")]
    return next((path for path in candidates if os.access(path, os.X_OK)), name)
