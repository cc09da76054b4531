"""The Python stacks of this process, for reports of stalls and dumps of the flight recorder.

A thread waits until the engine asks, and takes the stacks under Python's global lock. Where native code holds
that lock, the engine raises a signal in a thread of its own, and the handler of `faulthandler` writes all
stacks without it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import IO

from horovod import _core
from horovod.common.log import logger

THREAD_NAME = "horovod-stacks"
# By default ended by this signal, a process writes its dump instead; unless the program handles it.
DUMP_SIGNAL = signal.SIGUSR2

_handler: tuple[int, IO[bytes]] | None = None  # signal, file of faulthandler; kept for the process
_thread: threading.Thread | None = None


def current_stacks() -> str:
    """Returns the stacks of all threads but Horovod's own, the innermost call last, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    texts = []
    for ident, frame in sys._current_frames().items():
        name = names.get(ident, f"thread {ident}, not started by Python")
        if ident != threading.get_ident() and not name.startswith("horovod-"):
            texts.append(f'Thread "{name}":\n' + "".join(traceback.format_stack(frame)))
    texts.sort(key=lambda text: not text.startswith('Thread "MainThread"'))
    return "".join(texts)


def begin() -> None:
    """Serves the engine that has just started; prepares its signals."""
    global _thread
    _thread = threading.Thread(target=_serve, name=THREAD_NAME, daemon=True)
    _thread.start()
    handler = _handler_of_process()
    if handler is not None:
        _core.set_stack_handler(handler[0], os.dup(handler[1].fileno()))
    if not _core.install_dump_signal(DUMP_SIGNAL):
        logger.info(
            "%s is handled by the program, so it does not make Horovod write its last operations.",
            DUMP_SIGNAL.name,
        )


def end() -> None:
    """After the engine has ended: its thread ends by itself."""
    global _thread
    if _thread is not None:
        _thread.join()
        _thread = None


def _serve() -> None:
    while _core.next_stack_request():
        _core.provide_stacks(current_stacks())


def _handler_of_process() -> tuple[int, IO[bytes]] | None:
    """Installs the handler once, on a real-time signal that nobody uses."""
    global _handler
    if _handler is None:
        signum = next(_free_signals(), None)
        if signum is None:
            logger.info("No real-time signal is free: stacks of a process in native code stay out.")
            return None
        file = os.fdopen(os.memfd_create("horovod-stacks", os.MFD_CLOEXEC), "wb", buffering=0)
        faulthandler.register(signum, file=file, all_threads=True)
        _handler = signum, file
    return _handler


def _free_signals() -> Iterator[int]:
    for signum in range(signal.SIGRTMAX - 5, signal.SIGRTMIN, -1):
        if signal.getsignal(signum) == signal.SIG_DFL:
            yield signum
