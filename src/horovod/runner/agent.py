"""The agent of one host: starts the workers there, watches them, and lets none of them outlive the job.

Run by the driver as `python -m horovod.runner.agent --parent PID`, or through ssh with `--remote`; see
protocol.py for what they say to each other. One thread, one selector.
"""

from __future__ import annotations

import glob
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import horovod
from horovod.runner import huge_pages
from horovod.runner.cores import usable_cores
from horovod.runner.guardian import guard
from horovod.runner.launcher_watch import LauncherWatch, reachable_address
from horovod.runner.oom import OomWatch
from horovod.runner.processes import (
    GRACE_SECONDS,
    KILL_SECONDS,
    adopt_orphans,
    die_with_parent,
    end_descendants,
    signal_group,
)
from horovod.runner.protocol import PREAMBLE, FrameReader, HostFacts, Job, encode
from horovod.runner.worker_process import CannotStart, WorkerProcess

READ_BYTES = 64 << 10
DRAIN_BYTES = 1 << 20  # what a dead worker may have left in a pipe
PAUSE_BYTES = 4 << 20  # output that the driver has not taken: stop reading the workers


class Agent:
    """The state of one host's part of a job."""

    def __init__(self, frames_in: int, frames_out: int, wakeup: int, is_remote: bool) -> None:
        self._in, self._out, self._wakeup = frames_in, frames_out, wakeup
        self._is_remote = is_remote
        self._launcher: LauncherWatch | None = None
        self._reader = FrameReader()
        self._outgoing = bytearray()
        self._live: dict[int, WorkerProcess] = {}
        self._all: list[WorkerProcess] = []
        self._sources: dict[int, tuple[int, int]] = {}  # worker's pipe -> rank, stream
        self._paused = False
        self._oom = OomWatch()
        self._kill_at: float | None = None
        self._ending = False
        self._connected = True
        self._selector = selectors.DefaultSelector()

    def run(self) -> bool:
        """Takes the job, runs it to its end, reports; True when the workers ended by themselves."""
        self._outgoing += PREAMBLE
        self._send(["hello", list(host_facts())])
        job = self._receive_job()
        if job is not None:
            os.set_blocking(self._out, False)
            self._selector.register(self._in, selectors.EVENT_READ, self._read_driver)
            self._selector.register(self._wakeup, selectors.EVENT_READ, self._woken)
            self._start(job)
            while self._live:
                self._step()
        self._send(["done"])
        self._finish()
        return not self._ending

    def _receive_job(self) -> Job | None:
        while piece := os.read(self._in, READ_BYTES):
            messages = list(self._reader.feed(piece))
            if messages:
                for message in messages[1:]:
                    self._command(message)
                return Job.from_message(messages[0])
        self._connected = False  # the driver was gone before it had said what to do
        return None

    def _start(self, job: Job) -> None:
        try:
            os.chdir(job.cwd)
        except OSError as error:
            text = f"the working directory {os.fsdecode(job.cwd)}: {error.strerror}"
            self._send(["refused", job.workers[0].rank, 1, text])
            return
        try:
            address = reachable_address(job.addresses, job.port, job.key)
        except ConnectionError as error:
            self._send(["refused", job.workers[0].rank, 1, str(error)])
            return
        common = {
            # What the login here has set, then what the launcher's own environment says.
            **(dict(os.environb) if self._is_remote else {}),
            **self._thread_default(job),
            **self._page_default(job),
            **job.environment,
            b"HOROVOD_GLOO_RENDEZVOUS_ADDR": address.encode(),
        }
        if self._is_remote:
            self._launcher = LauncherWatch(address, job.port, self._selector)
        for worker in job.workers:
            if self._ending:
                return
            try:
                process = WorkerProcess(worker, job.command, {**common, **worker.environment})
            except CannotStart as error:
                self._send(["refused", worker.rank, error.code, str(error)])
                self._stop(signal.SIGTERM, GRACE_SECONDS)
                return
            self._live[process.pid] = process
            self._all.append(process)
            self._send(["started", process.rank, process.pid])
            self._listen(process)

    def _thread_default(self, job: Job) -> dict[bytes, bytes]:
        """Frameworks take all cores by default; several ranks on one machine then fight for them."""
        if b"OMP_NUM_THREADS" in job.environment:
            return {}
        cores = usable_cores()
        threads = max(1, cores // job.ranks_on_machine)
        text = (
            f"OMP_NUM_THREADS is not set: each rank gets {threads} thread(s) "
            f"({cores} cores, {job.ranks_on_machine} ranks)"
        )
        self._send(["note", text])
        return {b"OMP_NUM_THREADS": str(threads).encode()}

    def _page_default(self, job: Job) -> dict[bytes, bytes]:
        """Whoever tunes glibc already, in the login here or at the launcher, is left alone."""
        name = huge_pages.VARIABLE.encode()
        is_set = name in job.environment or (self._is_remote and name in os.environb)
        if is_set or not huge_pages.only_on_request():
            return {}
        text = f"{huge_pages.VARIABLE} is not set: ranks get {huge_pages.REQUEST}"
        self._send(["note", text])
        return {name: huge_pages.REQUEST.encode()}

    # --- the loop ------------------------------------------------------------------------------

    def _step(self) -> None:
        times = [self._kill_at, self._launcher.next_at if self._launcher else None]
        due = [at for at in times if at is not None]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        for key, _ in self._selector.select(timeout):
            # An earlier event of this round may have ended what this one is about.
            if key.fd in self._selector.get_map():
                key.data()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill()
        if self._launcher is not None and self._launcher.is_lost():
            self._launcher = None
            self._driver_gone()

    def _read_driver(self) -> None:
        piece = os.read(self._in, READ_BYTES)
        if not piece:
            self._selector.unregister(self._in)
            self._driver_gone()
            return
        for message in self._reader.feed(piece):
            self._command(message)

    def _command(self, message: list[Any]) -> None:
        match message:
            case ["stop", int(signum), grace]:
                self._stop(signum, float(grace))
            case ["kill"]:
                self._kill()
            case _:
                raise ValueError(f"the driver sent an unknown command: {message!r}")

    def _woken(self) -> None:
        if signal.SIGTERM in os.read(self._wakeup, READ_BYTES):  # guardian or driver is gone
            self._stop(signal.SIGTERM, GRACE_SECONDS)
        self._collect()

    def _driver_gone(self) -> None:
        self._connected = False
        self._outgoing.clear()
        self._stop(signal.SIGTERM, GRACE_SECONDS)

    def _stop(self, signum: int, grace: float) -> None:
        self._ending = True
        for pid in self._live:
            signal_group(pid, signum)
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _kill(self) -> None:
        self._ending = True
        self._kill_at = None
        for pid in self._live:
            signal_group(pid, signal.SIGKILL)

    # --- workers -------------------------------------------------------------------------------

    def _listen(self, process: WorkerProcess) -> None:
        for descriptor, stream in process.streams.items():
            self._sources[descriptor] = (process.rank, stream)
            if not self._paused:
                self._register_source(descriptor)

    def _register_source(self, descriptor: int) -> None:
        self._selector.register(
            descriptor, selectors.EVENT_READ, lambda: self._read_worker(descriptor)
        )

    def _pause(self, pause: bool) -> None:
        if pause == self._paused:
            return
        self._paused = pause
        for descriptor in self._sources:
            if pause:
                self._selector.unregister(descriptor)
            else:
                self._register_source(descriptor)

    def _read_worker(self, descriptor: int) -> int:
        """Passes on what there is now; 0 when that is nothing."""
        if descriptor not in self._sources:
            return 0
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        rank, stream = self._sources[descriptor]
        if data:
            self._send(["output", rank, stream, data])
        else:
            del self._sources[descriptor]
            if not self._paused:
                self._selector.unregister(descriptor)
        return len(data)

    def _collect(self) -> None:
        """Reports the workers that have ended.

        Of several at once those killed by a signal come first: the others are likely to have failed
        for want of them.
        """
        ended: list[tuple[WorkerProcess, int]] = []
        for pid, status in _ended_children():
            if pid in self._live:
                ended.append((self._live.pop(pid), os.waitstatus_to_exitcode(status)))
        for process, code in sorted(ended, key=lambda item: item[1]):
            self._drain(process)
            signum = max(0, -code)
            struck = signum == signal.SIGKILL and not self._ending
            text = self._oom.evidence() if struck else ""
            shell_code = 128 + signum if signum else code
            self._send(["exit", process.rank, shell_code, signum, text])

    def _drain(self, process: WorkerProcess) -> None:
        for descriptor in process.streams:
            left = DRAIN_BYTES
            while left > 0 and (count := self._read_worker(descriptor)):
                left -= count

    # --- towards the driver --------------------------------------------------------------------

    def _send(self, message: list[Any]) -> None:
        if not self._connected:
            return
        self._outgoing += encode(message)
        self._write()

    def _write(self) -> None:
        """Writes what the pipe takes; while much is left over, the workers' output waits."""
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self._out, self._outgoing)]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._driver_gone()
        waiting = self._out in self._selector.get_map()
        if self._outgoing and not waiting:
            self._selector.register(self._out, selectors.EVENT_WRITE, self._write)
        elif not self._outgoing and waiting:
            self._selector.unregister(self._out)
        self._pause(len(self._outgoing) > PAUSE_BYTES)

    def _finish(self) -> None:
        """The rest of our messages; the driver takes them, or ends and breaks the pipe."""
        os.set_blocking(self._out, True)
        self._write()
        for process in self._all:
            process.close()
        self._selector.close()


def _ended_children() -> Iterator[tuple[int, int]]:
    """(pid, status) of all children that have ended: workers, and orphans that came to us."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            yield found
    except ChildProcessError:
        return


def _signal_pipe() -> int:
    """A descriptor that delivers the numbers of the signals that we act on."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(signum, lambda *_: None)
    return reader


def host_facts() -> HostFacts:
    """What this host has. GPUs are those whose device files are here, or that the user allows."""
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    if mask is not None:
        gpus = len([name for name in mask.split(",") if name.strip() not in ("", "-1")])
    else:
        gpus = len(glob.glob("/dev/nvidia[0-9]*"))
    python = ".".join(map(str, sys.version_info[:3]))
    return HostFacts(horovod.__version__, python, usable_cores(), gpus)


def main() -> int:
    """Splits into the guardian (outer) and the agent proper (inner process)."""
    parent = int(sys.argv[2]) if sys.argv[1:2] == ["--parent"] else None
    is_remote = sys.argv[1:2] == ["--remote"]
    frames_in, frames_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # nothing that is printed by accident may get between the frames
    os.close(nothing)
    adopt_orphans()
    outer = os.getpid()
    inner = os.fork()
    if inner != 0:
        os.close(frames_in)
        os.close(frames_out)
        return guard(inner, parent)
    adopt_orphans()
    agent = Agent(frames_in, frames_out, _signal_pipe(), is_remote)
    die_with_parent(signal.SIGTERM, outer)
    orderly = agent.run()
    if os.getppid() != outer:  # the guardian was killed: its duty is ours
        end_descendants(signal.SIGKILL, KILL_SECONDS)
    return 0 if orderly else 1


if __name__ == "__main__":
    sys.exit(main())
