"""Persistent groups of worker processes that a benchmark triggers in turn.

All peers of a comparison are started once and then sleep until it is their turn, so that they can
be measured round by round within seconds of each other, on a machine in the same state.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from harness import FOLDER, HOROVODRUN
from horovod.runner import huge_pages
from worker_link import SOCKET_VARIABLE

START_TIMEOUT = 120.0
REPLY_TIMEOUT = 600.0
MPI_KINDS = {"openmpi": "Open MPI", "mpich": "MPICH", "impi-rt": "Intel MPI"}

Command = tuple[list[str], dict[str, str]]  # arguments, and variables to add to the environment


class PeerUnavailable(Exception):
    """A peer of the comparison can't run here; the text says why."""


class Group:
    """The processes of one peer: ``ranks`` workers that each connect back over a Unix socket."""

    def __init__(self, name: str, commands: Sequence[Command], ranks: int) -> None:
        self.name = name
        self._folder = Path(tempfile.mkdtemp(prefix="horovod-bench-"))
        self._output = (self._folder / "output.txt").open("w+")
        self._links: list[tuple[socket.socket, IO[str]]] = []
        self.pids: list[int] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._folder / "socket"))
        self._listener.listen(ranks)
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for command in commands:
                self._processes.append(self._start(*command))
            self._wait_for_workers(ranks)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def process_ids(self) -> list[int]:
        """The started processes (launchers, or the workers themselves where there is none)."""
        return [process.pid for process in self._processes]

    def ask(self, command: str, **arguments: Any) -> list[dict[str, Any]]:
        """Sends the request to all ranks at once; returns their answers in rank order."""
        request = json.dumps({"command": command, **arguments}) + "\n"
        for _, lines in self._links:
            lines.write(request)
            lines.flush()
        answers = [self._read(lines) for _, lines in self._links]
        for rank, one in enumerate(answers):
            if "error" in one:
                raise RuntimeError(f"{self.name}, rank {rank}, {request.strip()}:\n{one['error']}")
        return answers

    def close(self) -> None:
        """Asks the workers to stop, waits, and ends what does not stop by itself."""
        for link, lines in self._links:
            try:
                lines.write('{"command": "quit"}\n')
                lines.close()
            except OSError:
                pass  # that worker is gone already, which is what is wanted
            link.close()
        self._links.clear()
        self._listener.close()
        for process in self._processes:
            end_process(process)
        self._output.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, arguments: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",  # the same for all peers: one computing thread per rank
            "PYTHONUNBUFFERED": "1",
            SOCKET_VARIABLE: str(self._folder / "socket"),
            **{key: value.format(folder=self._folder) for key, value in variables.items()},
        }
        try:
            return subprocess.Popen(
                arguments,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise PeerUnavailable(f"{self.name} is left out: {error}.") from error

    def _wait_for_workers(self, ranks: int) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        self._listener.settimeout(0.2)
        hellos: list[tuple[dict[str, Any], socket.socket, IO[str]]] = []
        while len(hellos) < ranks:
            try:
                link, _ = self._listener.accept()
            except TimeoutError:
                if any(process.poll() for process in self._processes):
                    raise PeerUnavailable(f"{self.name} ended:\n{self._last_output()}") from None
                if time.monotonic() > deadline:
                    raise PeerUnavailable(
                        f"{self.name} did not start in {START_TIMEOUT:.0f} s:\n{self._last_output()}"
                    ) from None
                continue
            link.settimeout(REPLY_TIMEOUT)
            lines = link.makefile("rw", encoding="utf-8")
            hellos.append((self._read(lines), link, lines))
        hellos.sort(key=lambda hello: int(hello[0]["rank"]))
        self.pids = [int(hello["pid"]) for hello, _, _ in hellos]
        self._links = [(link, lines) for _, link, lines in hellos]

    def _read(self, lines: IO[str]) -> dict[str, Any]:
        line = lines.readline()
        if not line:
            raise RuntimeError(f"a worker of {self.name} ended:\n{self._last_output()}")
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_output(self) -> str:
        self._output.flush()
        text = (self._folder / "output.txt").read_text(errors="replace")
        return "\n".join(text.splitlines()[-15:])


def end_process(process: subprocess.Popen[bytes], grace: float = 10.0) -> None:
    """Waits for the process, then sends SIGTERM, then SIGKILL to its session."""
    for sign in (None, signal.SIGTERM, signal.SIGKILL):
        if sign is not None and process.poll() is None:
            os.killpg(process.pid, sign)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            continue
        return


# --- how each peer is started -------------------------------------------------------------------


def script(name: str, *arguments: str) -> list[str]:
    """A worker script of this folder under this interpreter."""
    return [sys.executable, str(FOLDER / name), *arguments]


def under_horovodrun(arguments: list[str], ranks: int) -> list[Command]:
    """One launcher for all ranks."""
    return [([str(HOROVODRUN), "-np", str(ranks), *arguments], {})]


def side_by_side(arguments: list[str], ranks: int) -> list[Command]:
    """``ranks`` processes that are told their rank in the way of ``torch.distributed``."""
    return [
        (arguments, {"RANK": str(rank), "WORLD_SIZE": str(ranks), "BENCH_GLOO": "{folder}/gloo"})
        for rank in range(ranks)
    ]


def with_huge_pages(arguments: list[str], ranks: int) -> list[Command]:
    """``side_by_side``, with what horovodrun tells its workers about huge pages."""
    asked = {huge_pages.VARIABLE: huge_pages.REQUEST} if huge_pages.only_on_request() else {}
    return [
        (command, {**variables, **asked}) for command, variables in side_by_side(arguments, ranks)
    ]


def under_mpi(
    kind: str, root: Path, worker: str, arguments: list[str], ranks: int
) -> list[Command]:
    """``mpirun`` of the environment ``root/kind``, which also has NumPy and mpi4py."""
    binaries = root / kind / "bin"
    if not (binaries / "mpirun").exists():
        raise PeerUnavailable(
            f"{MPI_KINDS[kind]} is left out: {root / kind} does not exist. `make bench` creates it, "
            f"or run `python benchmarks/mpi_environments.py {kind}`."
        )
    variables = {
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
        # Open MPI refuses to run as root otherwise, as in containers; no one else reads these.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = [str(binaries / "mpirun"), "-np", str(ranks), str(binaries / "python")]
    return [([*command, str(FOLDER / worker), *arguments], variables)]


class Conductor:
    """Holds the groups of one benchmark; those that can't run here are left out with a sentence."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.groups: dict[str, Group] = {}
        self._say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for group in self.groups.values():
            group.close()

    def add(
        self, name: str, ranks: int, way: Callable[..., list[Command]], *arguments: Any
    ) -> None:
        """Starts a peer by ``way(*arguments, ranks)``, or says why it is left out."""
        try:
            self.groups[name] = Group(name, way(*arguments, ranks), ranks)
        except PeerUnavailable as reason:
            self._say(str(reason))

    def in_turn(self, round_index: int) -> list[tuple[str, Group]]:
        """The groups, starting with another one in each round."""
        names = list(self.groups)
        first = round_index % len(names) if names else 0
        return [(name, self.groups[name]) for name in names[first:] + names[:first]]
