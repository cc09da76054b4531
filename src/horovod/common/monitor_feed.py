"""A worker's part of `horovodrun --monitor`: sends a small snapshot to the launcher now and then.

The launcher sets HOROVOD_MONITOR only when it shows the table; else there is no thread and no connection.
A snapshot is a msgpack map, see `snapshot`; runner/monitor/snapshot.py reads it.
"""

from __future__ import annotations

import base64
import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from horovod.common.bootstrap import launcher
from horovod.common.knobs import value_of
from horovod.common.log import logger
from horovod.common.rendezvous import RendezvousClient, RendezvousError

SCOPE = "monitor"
REPLY_SECONDS = 10.0  # for the launcher to answer
END_SECONDS = 2.0  # for the last snapshot, when the engine shuts down
STRAGGLERS_SENT = 16

Read = Callable[[], Mapping[str, Any]]


def snapshot(
    metrics: Mapping[str, Any], *, round_number: int, now: float, memory: int, final: bool
) -> dict[str, Any]:
    """What is sent of the engine's metrics.

    Args:
        metrics: what `_core.metrics()` returns.
        round_number: of this init; counters begin anew with each.
        now: seconds of this rank's monotonic clock.
        memory: bytes that this process has in memory.
        final: the engine is about to shut down.
    """
    late = sorted(metrics["straggler_seconds"].items(), key=lambda item: -item[1])
    return {
        "round": round_number,
        "time": now,
        "steps": metrics["steps"],
        "bytes": sum(metrics["bytes"].values()),
        "wait": metrics["wait_seconds"],
        "in_flight": metrics["operations_in_flight"],
        "stalls": metrics["stalls"],
        "memory": memory,
        "late": {int(rank): seconds for rank, seconds in late[:STRAGGLERS_SENT]},
        "final": final,
    }


def resident_bytes() -> int:
    """Memory of this process that is not swapped out; 0 where /proc does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class _Feed:
    """A connection to the launcher's store, and the thread that sends over it."""

    def __init__(
        self, client: RendezvousClient, rank: int, every: float, round_number: int, read: Read
    ) -> None:
        self._client, self._rank = client, rank
        self._every, self._round, self._read = every, round_number, read
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horovod-monitor", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._send(final=False)
            while not self._end.wait(self._every):
                self._send(final=False)
            self._send(final=True)
        except (OSError, RendezvousError, ValueError) as error:
            # The launcher has gone, or the engine has just stopped: nobody to tell, or nothing.
            logger.info("No more snapshots for --monitor: %s", error)
        finally:
            self._client.close()

    def _send(self, final: bool) -> None:
        content = snapshot(
            self._read(),
            round_number=self._round,
            now=time.monotonic(),
            memory=resident_bytes(),
            final=final,
        )
        self._client.set(SCOPE, str(self._rank), msgpack.packb(content))

    def stop(self) -> None:
        """Sends the last snapshot and hangs up; gives up on a launcher that does not answer."""
        self._end.set()
        self._thread.join(END_SECONDS)

    def close_copy(self) -> None:
        """In a forked child: closes the inherited socket, which stays open in the parent."""
        self._client.close()


_feed: _Feed | None = None


def start(env: Mapping[str, str], round_number: int, read: Read) -> None:
    """Begins to send snapshots, if this process was started by `horovodrun --monitor`.

    Args:
        env: environment variables.
        round_number: of this init of the process.
        read: returns the engine's metrics; ValueError when the engine has stopped.
    """
    global _feed
    every = value_of("HOROVOD_MONITOR", env)
    if every <= 0 or launcher.why_not(env) is not None:
        return
    stop()
    try:
        client = RendezvousClient(
            env["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
            int(env["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
            base64.b64decode(env[launcher.KEY_VARIABLE], validate=True),
            REPLY_SECONDS,
        )
    except OSError as error:
        logger.warning("This rank is missing in the table of --monitor: %s", error)
        return
    rank = launcher.identity(env).rank
    _feed = _Feed(client, rank, every, round_number, read)


def stop() -> None:
    """Ends it; does nothing where nothing is sent. Call while the engine still answers."""
    global _feed
    feed, _feed = _feed, None
    if feed is not None:
        feed.stop()


def _after_fork_in_child() -> None:
    global _feed
    feed, _feed = _feed, None
    if feed is not None:
        feed.close_copy()


os.register_at_fork(after_in_child=_after_fork_in_child)
