"""The MPI library of a job, found and loaded at run time; only what an all-gather of blobs needs.

There is no common binary interface of all MPI libraries. Two are in use: that of Open MPI, whose
handles are addresses of exported objects, and that of MPICH (also Intel MPI, MVAPICH, Cray MPI), whose
handles are fixed numbers. The standard one of MPI 5 (libmpi_abi.so) is a third. Which one a library
has is told by what it exports.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from horovod.common.bootstrap.kind import Environment, OnWaiting
from horovod.common.log import logger

REPORT_SECONDS = 10.0
SHORTEST_PAUSE, LONGEST_PAUSE = 50e-6, 10e-3
LENGTH_BYTES = 8
ERROR_STRING_BYTES = 4096
ANCESTORS = 8

OPEN_MPI_SYMBOL = "ompi_mpi_comm_world"
FILE_NAMES = (
    "libmpi.so",
    "libmpi.so.40",
    "libmpi.so.12",
    "libmpi_ibm.so",
    "libmpi_ibm.so.3",
    "libmpich.so.12",
)
_LOADED = re.compile(r"/\S*/lib(?:mpi|mpi_ibm|mpich|mpi_abi)\.so[.\d]*$")
_LAUNCHER = re.compile(r"mpi|prte|orted|hydra|jsrun|jsmd")
_FOLDERS_BELOW = ("lib", "lib/release", "lib64")
LAUNCHERS = ("mpirun", "mpiexec")


class _Abi(NamedTuple):
    """What differs between the binary interfaces."""

    handle: type[ctypes._SimpleCData[Any]]
    comm_world: int
    byte: int
    errors_return: int
    status_ignore: int
    thread_multiple: int


_MPICH = _Abi(ctypes.c_int, 0x44000000, 0x4C00010D, 0x54000001, 1, 3)
_STANDARD = _Abi(ctypes.c_void_p, 0x101, 0x247, 0x143, 0, 4096)


def _abi(library: ctypes.CDLL, path: str) -> _Abi:
    if _is_open_mpi(library):
        world, byte, errors_return = (
            ctypes.addressof(ctypes.c_char.in_dll(library, name))
            for name in (OPEN_MPI_SYMBOL, "ompi_mpi_byte", "ompi_mpi_errors_return")
        )
        return _Abi(ctypes.c_void_p, world, byte, errors_return, 0, 3)
    return _STANDARD if os.path.basename(path).startswith("libmpi_abi.") else _MPICH


def _is_open_mpi(library: ctypes.CDLL) -> bool:
    try:
        ctypes.c_char.in_dll(library, OPEN_MPI_SYMBOL)
    except ValueError:
        return False
    return True


# --- finding it --------------------------------------------------------------------------------


def _loaded_files() -> list[str]:
    """The MPI libraries that this process has loaded already, by mpi4py for instance."""
    try:
        with open("/proc/self/maps") as file:
            paths = (line.split(maxsplit=5)[-1].strip() for line in file)
            return sorted({path for path in paths if _LOADED.match(path)})
    except OSError:
        return []


def _ancestors() -> Iterator[str]:
    """Executables of the processes that started this one: mpirun, or its agent on this host."""
    process = os.getppid()
    for _ in range(ANCESTORS):
        try:
            executable = os.readlink(f"/proc/{process}/exe")
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:  # another user's process, or the end of the chain
            return
        if _LAUNCHER.search(os.path.basename(executable)):
            yield executable
        process = int(stat.rpartition(")")[2].split()[1])


def folders(env: Environment) -> list[str]:
    """Where an MPI library may lie, without doubles, in the order in which it is searched."""
    found = [folder for folder in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    roots = [env[name] for name in ("I_MPI_ROOT", "OPAL_PREFIX", "MPI_ROOT") if env.get(name)]
    starters = (shutil.which(name, path=env.get("PATH")) for name in LAUNCHERS)
    binaries = [*_ancestors(), *(os.path.realpath(path) for path in starters if path)]
    roots += [str(Path(path).parent.parent) for path in binaries]
    found += [os.path.join(root, below) for root in roots for below in _FOLDERS_BELOW]
    found.append(os.path.join(sys.prefix, "lib"))
    return list(dict.fromkeys(found))


def _candidates(env: Environment) -> Iterator[str]:
    """File names for dlopen: what is loaded, the folders, then the system's search path.

    That comes last because a library of the system's need not be that of this mpirun.
    """
    yield from _loaded_files()
    for folder in folders(env):
        paths = (os.path.join(folder, name) for name in FILE_NAMES)
        yield from (path for path in paths if os.path.exists(path))
    yield from FILE_NAMES


def load(env: Environment, open_mpi: bool) -> Library:
    """Returns the MPI library of this process, loaded.

    Args:
        env: environment variables.
        open_mpi: whether the launcher was Open MPI's; a library of the other family is passed over,
            because it would take every process for a job of its own.

    Raises:
        ImportError: there is none; the text says where it was looked for and what to do.
    """
    passed_over: list[str] = []
    for path in _candidates(env):
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            if os.path.isabs(path):
                passed_over.append(f"{path} ({error})")
            continue
        if _is_open_mpi(library) == open_mpi:
            # Global, because the plug-ins of Open MPI before 3.0 find their symbols that way only; and
            # only now, because the symbols of a wrong one would take the place of the right one's.
            return Library(ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL), path)
        other = "not Open MPI" if open_mpi else "Open MPI"
        passed_over.append(f"{path} ({other}, unlike the mpirun that started this process)")
    text = (
        "This process was started by mpirun, but the MPI library that belongs to it was not found. "
        f"Looked for {', '.join(FILE_NAMES)} among the loaded libraries, in {', '.join(folders(env))}, "
        "and on the system's search path."
    )
    if passed_over:
        text += f" Passed over: {'; '.join(passed_over)}."
    raise ImportError(
        f"{text} Put the folder of the MPI library into LD_LIBRARY_PATH (mpirun -x LD_LIBRARY_PATH, or "
        "mpiexec -genv), or start with horovodrun, which needs no MPI."
    )


# --- using it ----------------------------------------------------------------------------------


class Library:
    """Calls of a loaded MPI library; an error of MPI is a ConnectionError."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self.path = path
        self._library = library
        self.abi = _abi(library, path)

    def call(self, name: str, *arguments: object) -> None:
        """Calls `MPI_<name>`."""
        code = getattr(self._library, f"MPI_{name}")(*arguments)
        if code:
            raise ConnectionError(f"MPI_{name} failed: {self._text(code)}")

    def _text(self, code: int) -> str:
        buffer = ctypes.create_string_buffer(ERROR_STRING_BYTES)
        length = ctypes.c_int()
        if self._library.MPI_Error_string(code, buffer, ctypes.byref(length)):
            return f"error {code}"
        return buffer.value.decode(errors="replace")

    def flag(self, name: str) -> bool:
        """The answer of `MPI_Initialized` or `MPI_Finalized`."""
        answer = ctypes.c_int()
        self.call(name, ctypes.byref(answer))
        return bool(answer.value)

    def initialize(self, threads: bool) -> bool:
        """Initialises MPI unless somebody has; returns whether it was done here."""
        if self.flag("Finalized"):
            raise ConnectionError(
                "MPI_Finalize was called before hvd.init(), and MPI cannot be started twice; call "
                "hvd.init() before"
            )
        if self.flag("Initialized"):
            return False
        provided = ctypes.c_int()
        required = self.abi.thread_multiple if threads else 0
        # It returns when all ranks are in it, and nothing can end it before that.
        reminder = threading.Timer(REPORT_SECONDS, _warn_of_init)
        reminder.daemon = True
        reminder.start()
        try:
            self.call("Init_thread", None, None, required, ctypes.byref(provided))
        finally:
            reminder.cancel()
        return True


def _warn_of_init() -> None:
    logger.warning(
        "MPI_Init has been waiting for %.0f s. Some ranks may not have called hvd.init() or MPI_Init; "
        "which ones, MPI does not tell.",
        REPORT_SECONDS,
    )


class _Request:
    """A pending operation with the memory it works on."""

    def __init__(self, handle: type[ctypes._SimpleCData[Any]], buffer: Any) -> None:
        self.handle = handle()
        self.buffer = buffer
        self.done = False


# MPI writes into the memory of an operation that was given up whenever it likes.
_abandoned: list[_Request] = []


class Communicator:
    """A duplicate of MPI_COMM_WORLD, so that nothing mixes with the messages of the script."""

    def __init__(self, library: Library, deadline: float) -> None:
        """Collective. TimeoutError: not all ranks came."""
        self._library = library
        self._abi = library.abi
        self._broken = False
        world = self._abi.handle(self._abi.comm_world)
        self._comm = self._abi.handle()
        request = _Request(self._abi.handle, self._comm)
        library.call("Comm_idup", world, ctypes.byref(self._comm), ctypes.byref(request.handle))
        self._wait([request], deadline, lambda: None, lambda: "for ranks that did not come")
        library.call("Comm_set_errhandler", self._comm, self._abi.handle(self._abi.errors_return))
        rank, size = ctypes.c_int(), ctypes.c_int()
        library.call("Comm_rank", self._comm, ctypes.byref(rank))
        library.call("Comm_size", self._comm, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        """All-gathers one blob per rank. Rank 0 collects, so it alone knows who is missing.

        Raises:
            TimeoutError: some ranks did not come; no further exchange is possible then.
            ConnectionError: MPI failed, or an earlier exchange did.
        """
        if self._broken:
            raise ConnectionError(
                "an earlier exchange over MPI failed; end the job and start it again"
            )
        deadline = time.monotonic() + timeout
        self._broken = True  # until it has succeeded
        if self.rank == 0:
            blobs = self._gather(blob, deadline, on_waiting)
            self._broadcast(msgpack.packb(blobs), deadline, on_waiting)
        else:
            sent = [
                self._send(len(blob).to_bytes(LENGTH_BYTES, "big")),
                self._send(blob),
            ]
            blobs = msgpack.unpackb(self._broadcast(None, deadline, on_waiting))
            self._wait(sent, deadline, lambda: on_waiting([0]), lambda: "for rank(s) [0]")
        self._broken = False
        return blobs

    def _gather(self, own: bytes, deadline: float, on_waiting: OnWaiting) -> list[bytes]:
        ranks = range(1, self.size)
        lengths = {rank: self._receive(rank, LENGTH_BYTES) for rank in ranks}

        def missing() -> list[int]:
            return [rank for rank in ranks if not lengths[rank].done]

        def report() -> None:
            on_waiting(missing())

        def text() -> str:
            return f"for rank(s) {missing()}"

        self._wait(list(lengths.values()), deadline, report, text)
        blobs = [
            self._receive(rank, int.from_bytes(lengths[rank].buffer.raw, "big")) for rank in ranks
        ]
        self._wait(blobs, deadline, report, text)
        return [own, *(request.buffer.raw for request in blobs)]

    def _broadcast(self, body: bytes | None, deadline: float, on_waiting: OnWaiting) -> bytes:
        """From rank 0, which passes the bytes, to all."""
        size = LENGTH_BYTES if body is None else len(body)
        length = self._start_broadcast(
            LENGTH_BYTES, None if body is None else size.to_bytes(LENGTH_BYTES, "big")
        )
        # What comes back from rank 0 waits for the slowest rank, which only rank 0 knows.
        others = list(range(1, self.size)) if self.rank == 0 else [0]

        def report() -> None:
            on_waiting(others)

        def text() -> str:
            return f"for rank(s) {others}" + ("" if self.rank == 0 else ", or those it waits for")

        self._wait([length], deadline, report, text)
        size = int.from_bytes(length.buffer.raw, "big")
        whole = self._start_broadcast(size, body)
        self._wait([whole], deadline, report, text)
        return bytes(whole.buffer.raw)

    # --- single operations

    def _buffer(self, count: int, body: bytes | None = None) -> Any:
        buffer = ctypes.create_string_buffer(count)
        if body is not None:
            buffer.raw = body
        return buffer

    def _start(self, name: str, buffer: Any, count: int, *arguments: object) -> _Request:
        request = _Request(self._abi.handle, buffer)
        byte = self._abi.handle(self._abi.byte)
        self._library.call(
            name, buffer, count, byte, *arguments, self._comm, ctypes.byref(request.handle)
        )
        return request

    def _send(self, body: bytes) -> _Request:
        return self._start("Isend", self._buffer(len(body), body), len(body), 0, 0)

    def _receive(self, rank: int, count: int) -> _Request:
        return self._start("Irecv", self._buffer(count), count, rank, 0)

    def _start_broadcast(self, count: int, body: bytes | None) -> _Request:
        return self._start("Ibcast", self._buffer(count, body), count, 0)

    def _wait(
        self,
        requests: Sequence[_Request],
        deadline: float,
        report: Callable[[], None],
        whom: Callable[[], str],
    ) -> None:
        """Waits for all; calls `report` every ten seconds.

        MPI moves messages only inside its calls, and none of them waits with a time limit or for
        something that could wake a thread: so MPI_Test is asked again, with growing pauses.
        """
        started = reported = time.monotonic()
        pause, never = SHORTEST_PAUSE, threading.Event()
        pending = list(requests)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(_abandoned.extend, requests)
            while pending := [request for request in pending if not self._test(request)]:
                now = time.monotonic()
                if now >= deadline:
                    raise TimeoutError(f"waited {now - started:.0f} s over MPI {whom()}")
                if now - reported >= REPORT_SECONDS:
                    reported = now
                    report()
                never.wait(min(pause, deadline - now))
                pause = min(2 * pause, LONGEST_PAUSE)
            on_failure.pop_all()

    def _test(self, request: _Request) -> bool:
        if not request.done:
            flag = ctypes.c_int()
            ignored = ctypes.c_void_p(self._abi.status_ignore)
            self._library.call("Test", ctypes.byref(request.handle), ctypes.byref(flag), ignored)
            request.done = bool(flag.value)
        return request.done
