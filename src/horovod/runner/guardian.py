"""The agent's outer process: whatever happens to the inner one, nothing below it survives.

It adopts the orphans of workers, so also a process that left its worker's group or session is found.
"""

from __future__ import annotations

import os
import signal

from horovod.runner.processes import (
    GRACE_SECONDS,
    KILL_SECONDS,
    die_with_parent,
    end_descendants,
    signal_process,
)


def guard(inner: int, parent: int | None) -> int:
    """Waits for the process `inner`, ends what is left below us, returns inner's exit code.

    `parent` is the driver's pid when it runs on this machine: its death is passed on as SIGTERM.
    """
    # Pending until sigtimedwait takes them: no handler, no race.
    watched = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    if parent is not None:
        die_with_parent(signal.SIGTERM, parent)
    status = None
    while (status := _reap(inner)) is None:
        if signal.sigwaitinfo(watched).si_signo == signal.SIGTERM:
            signal_process(inner, signal.SIGTERM)
    code = os.waitstatus_to_exitcode(status)
    if code == 0 and end_descendants(signal.SIGTERM, GRACE_SECONDS):
        return code
    end_descendants(signal.SIGKILL, KILL_SECONDS)
    return code if code >= 0 else 128 - code


def _reap(inner: int) -> int | None:
    """Collects ended children; the wait status of `inner` once it is among them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == inner:
            return status
