"""The hosts that `horovodrun doctor` asks: this one, and others through ssh."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import IO, Any

import horovod
from horovod.runner.agent_link import package_root
from horovod.runner.doctor_checks.finding import FAILED, OK, Finding
from horovod.runner.doctor_probe import MARK, answer
from horovod.runner.ssh import CONNECT_SECONDS, SshOptions, explain, over_ssh, remote_python
from horovod.runner.ssh import FAILED as SSH_FAILED

START_SECONDS = CONNECT_SECONDS + 15
END_SECONDS = 2
LINE_BYTES = 1 << 20
WORDS_BYTES = 16 << 10
_MISSING_MODULE = re.compile(r"No module named '?([\w.]+)")


class ProbeError(Exception):
    """A host that does not answer; the text says why."""


class LocalHost:
    """This host: what is asked is done here."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ask(self, _seconds: float, **request: Any) -> dict[str, Any]:
        """The answer to a request of doctor_probe.py; the caller limits the time."""
        return answer(request)


class RemoteHost:
    """Another host; the child of this process is ssh."""

    def __init__(self, target: str, options: SshOptions, environment: Mapping[str, str]) -> None:
        self.name = target
        self._options = options
        self._environment = environment
        self._numbers = itertools.count()
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._words: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`

    def open(self) -> Finding:
        """Starts the probe there; the finding about ssh."""
        command = over_ssh(self.name, remote_probe(), self._options, self._environment)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._words,
                start_new_session=True,
            )
        except OSError as error:
            found = f"{command[0]} can't be started: {error.strerror}"
            return Finding("ssh", self.name, FAILED, found, "install OpenSSH's client here")
        started = time.monotonic()
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        try:
            hello = self._answers.get(timeout=START_SECONDS)
        except queue.Empty:
            return Finding(
                "ssh",
                self.name,
                FAILED,
                f"no answer within {START_SECONDS} s ({self._said()})",
                f"see what 'ssh {self.name} true' waits for: a start file of the shell, a file system",
            )
        if hello is None:
            return ssh_finding(self.name, self._exit_code(), self._said(), self._options.port)
        took = time.monotonic() - started
        return Finding("ssh", self.name, OK, f"works, the probe was up in {took:.1f} s")

    def ask(self, seconds: float, **request: Any) -> dict[str, Any]:
        """The answer to a request of doctor_probe.py; ProbeError if none comes in time."""
        number = next(self._numbers)
        process = self._process
        if process is None or process.stdin is None:
            raise ProbeError("the connection is closed")
        try:
            process.stdin.write(json.dumps({"id": number, **request}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise ProbeError(f"the connection broke ({error.strerror})") from None
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                reply = self._answers.get(timeout=left)
            except queue.Empty:
                break
            if reply is None:
                self._answers.put(None)  # for whoever asks next
                raise ProbeError(f"the connection broke ({self._said() or 'ssh said nothing'})")
            if reply.get("id") == number:
                if "refused" in reply:
                    raise ProbeError(str(reply["refused"]))
                return reply
        raise ProbeError(f"no answer within {seconds:g} s")

    def hang_up(self) -> None:
        """Closes the probe's standard input, which ends it."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # what was not sent matters no more
                self._process.stdin.close()

    def close(self) -> None:
        """Hangs up and waits for ssh to end; kills it if it does not."""
        self.hang_up()
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._words.close()

    def _read(self, stream: IO[bytes]) -> None:
        """Runs in a thread of its own: what follows the mark is an answer, all else is noise."""
        mark = MARK.encode()
        while line := stream.readline(LINE_BYTES):
            _, found, text = line.partition(mark)
            if not found:
                continue
            try:
                self._answers.put(json.loads(text))
            except ValueError:  # cut off: whoever waits for it is told after its time
                continue
        self._answers.put(None)

    def _said(self) -> str:
        """What came on standard error: of ssh, the remote shell and the probe."""
        size = os.fstat(self._words.fileno()).st_size
        # The file is shared with ssh: it is read without moving the place where that writes.
        data = os.pread(self._words.fileno(), WORDS_BYTES, max(0, size - WORDS_BYTES))
        return data.decode(errors="replace")

    def _exit_code(self) -> int:
        assert self._process is not None
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def remote_probe() -> list[str]:
    """The remote command that starts a probe."""
    return remote_python("horovod.runner.doctor_probe", package_root())


def ssh_finding(target: str, code: int, words: str, port: int | None) -> Finding:
    """Why there is no probe on a host: what was found and what helps."""
    said = " ".join(words.split()[-60:]) or "it said nothing"

    def failed(found: str, fix: str) -> Finding:
        return Finding("ssh", target, FAILED, found, fix)

    if "unknown option -P" in words.lower() or "unknown option: -p" in words.lower():
        return failed(f"its Python is older than 3.11 ({said})", "install Python 3.11 or newer")
    modules = _MISSING_MODULE.findall(words)
    if modules and modules[-1].startswith("horovod.runner.doctor"):
        version = horovod.__version__
        return failed(f"its horovod is another version ({said})", f"install horovod {version}")
    if modules and modules[-1].partition(".")[0] != "horovod":
        return failed(
            f"its Python lacks the package {modules[-1]}", "python -m pip install horovod there"
        )
    if code != SSH_FAILED or "Host key verification" in words or "Permission denied" in words:
        problem, _, fix = explain(target, code, words).partition(": ")
        if fix.endswith(f" ({said})"):
            return failed(f"{problem} ({said})", fix.removesuffix(f" ({said})"))
        return failed(f"the probe ended with status {code}: {said}", "see what it said")
    where = "" if port is None else f" -p {port}"
    if "not resolve" in words:
        fix = "check the spelling, or add the name to the DNS, /etc/hosts or ~/.ssh/config here"
    elif "refused" in words:
        fix = "start sshd there, or give its port with -p"
    else:
        fix = f"is the host up? 'ssh{where} {target} true' must work from here"
    return failed(f"ssh cannot connect to it: {said}", fix)
