"""Runs the script at one size: a child horovodrun, whose output is passed on and looked at."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import IO

from horovod.runner.output import LineSplitter, Sink
from horovod.runner.processes import die_with_parent
from horovod.runner.scaling.throughput import Sighting, sight

LAST_LINES = 20
_READ_BYTES = 1 << 16
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Run:
    """How a child ended, and what it said. `interrupted`: the signal that ended us, or 0."""

    code: int
    seconds: float
    sightings: list[Sighting] = field(default_factory=list)
    last_lines: list[str] = field(default_factory=list)
    interrupted: int = 0


def run_one(
    command: Sequence[str],
    environment: Mapping[str, str],
    quiet: bool,
    pattern: re.Pattern[str] | None,
    figure: str,
) -> Run:
    """Runs `command` (horovodrun and its arguments) to its end.

    Ctrl-C and SIGTERM are passed on to it, and it is waited for, so that no worker is left.

    Raises:
        OSError: it can't be started.
    """
    started = time.monotonic()
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        process_group=0,  # Ctrl-C reaches it through us, once
        preexec_fn=partial(die_with_parent, signal.SIGTERM, os.getpid()),
    )
    run = Run(0, 0.0)
    with _signals_passed_on(child, run):
        try:
            _follow(child, quiet, pattern, figure, run)
        except BaseException:
            # Our own output has gone. With nobody to read, the child must not block on writing.
            for pipe in (child.stdout, child.stderr):
                assert pipe is not None
                pipe.close()
            child.terminate()
            child.wait()
            raise
        run.code = child.wait()
    run.seconds = time.monotonic() - started
    return run


def _follow(
    child: subprocess.Popen[bytes],
    quiet: bool,
    pattern: re.Pattern[str] | None,
    figure: str,
    run: Run,
) -> None:
    """Reads both streams to their ends."""
    assert child.stdout is not None and child.stderr is not None
    last: deque[str] = deque(maxlen=LAST_LINES)
    streams: dict[IO[bytes], tuple[LineSplitter, Sink]] = {
        child.stdout: (LineSplitter(), Sink(sys.stdout)),
        child.stderr: (LineSplitter(), Sink(sys.stderr)),
    }
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                stream = next(one for one in streams if one is key.fileobj)
                splitter, sink = streams[stream]
                data = os.read(stream.fileno(), _READ_BYTES)
                if not data:
                    selector.unregister(stream)
                pieces = splitter.feed(data) if data else splitter.flush()
                if not quiet and pieces:
                    sink.write(b"".join(piece.data for piece in pieces))
                for piece in pieces:
                    _look_at(piece.data.decode(errors="replace"), pattern, figure, run, last)
    run.last_lines = list(last)


def _look_at(
    line: str, pattern: re.Pattern[str] | None, figure: str, run: Run, last: deque[str]
) -> None:
    if line.strip():
        last.append(line.rstrip())
    if sighting := sight(line, pattern, figure):
        run.sightings.append(sighting)


@contextmanager
def _signals_passed_on(child: subprocess.Popen[bytes], run: Run) -> Iterator[None]:
    def pass_on(signum: int, _frame: FrameType | None) -> None:
        run.interrupted = run.interrupted or signum
        if child.poll() is None:
            child.send_signal(signum)

    previous = {signum: signal.signal(signum, pass_on) for signum in _PASSED_ON}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
