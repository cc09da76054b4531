"""What the driver and an agent say to each other: length-prefixed msgpack frames over a pipe.

Driver to agent, on its standard input: one `Job`, then `["stop", signal, grace seconds]` and
`["kill"]`. The end of the stream means that the driver is gone: the agent ends its workers.

Agent to driver, on its standard output, after `PREAMBLE` (what comes before that was printed by the
start-up files of a remote shell):
    ["hello", facts]                   what the host has, see `HostFacts`
    ["started", rank, pid]             a worker runs
    ["output", rank, stream, bytes]    stream 1 is stdout, 2 is stderr
    ["exit", rank, code, signal, text] a worker ended; code as a shell reports it; signal 0: none
    ["refused", rank, code, text]      a worker could not be started (127, 126)
    ["note", text]                     something worth saying with --verbose
    ["done"]                           no worker is left
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

STDOUT, STDERR = 1, 2
MAX_FRAME_BYTES = 256 << 20
PREAMBLE = b"\0horovod agent\n"
NOISE_BYTES = 1 << 20  # of a remote shell, before the preamble


class HostFacts(NamedTuple):
    """What an agent says of its host."""

    version: str  # of horovod
    python: str
    cores: int
    gpus: int


class Worker(NamedTuple):
    """One process for an agent to start; `environment` goes on top of the job's."""

    rank: int
    environment: dict[bytes, bytes]


class Job(NamedTuple):
    """Everything an agent needs. Strings of the operating system are bytes, so any value survives."""

    host: str
    command: list[bytes]
    cwd: bytes
    environment: dict[bytes, bytes]
    workers: list[Worker]
    ranks_on_machine: int  # of all hosts of the job that are in truth this machine
    addresses: list[str]  # of the rendezvous store; the agent finds out which it can reach
    port: int
    key: bytes

    def to_message(self) -> list[Any]:
        """As plain lists for a frame."""
        return ["job", *self]

    @staticmethod
    def from_message(message: list[Any]) -> Job:
        """The inverse of `to_message`."""
        kind, *fields = message
        if kind != "job":
            raise ValueError(f"an agent expects its job first, not '{kind}'")
        job = Job(*fields)
        return job._replace(workers=[Worker(*worker) for worker in job.workers])


def encode(message: list[Any]) -> bytes:
    """One frame."""
    body: bytes = msgpack.packb(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is too long (limit {MAX_FRAME_BYTES})")
    return len(body).to_bytes(4, "big") + body


class FrameReader:
    """Puts frames together from the pieces in which a pipe delivers them.

    With `preamble` the frames begin after that; what comes before is in `noise`.
    """

    def __init__(self, preamble: bytes = b"") -> None:
        self._data = bytearray()
        self._preamble = preamble
        self.noise = b""

    def feed(self, piece: bytes) -> Iterator[list[Any]]:
        """Yields the messages that are complete with this piece.

        Raises:
            ValueError: a frame is too long, or no preamble comes.
        """
        self._data += piece
        if self._preamble and not self._skip_noise():
            return
        start = 0
        while len(self._data) - start >= 4:
            length = int.from_bytes(self._data[start : start + 4], "big")
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes was announced")
            end = start + 4 + length
            if len(self._data) < end:
                break
            message: list[Any] = msgpack.unpackb(self._data[start + 4 : end])
            start = end
            yield message
        del self._data[:start]

    def _skip_noise(self) -> bool:
        found = self._data.find(self._preamble)
        self.noise = bytes(self._data[: found if found >= 0 else None])
        if found < 0:
            if len(self._data) > NOISE_BYTES:
                raise ValueError(f"{len(self._data)} bytes came, and no agent has begun to speak")
            return False
        del self._data[: found + len(self._preamble)]
        self._preamble = b""
        return True
