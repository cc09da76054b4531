"""Linux process facts: death signals, subreapers, and who descends from whom."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator

GRACE_SECONDS = 5.0  # between a signal that asks and SIGKILL
KILL_SECONDS = 5.0  # a process that sleeps in the kernel can't be waited for for ever

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def die_with_parent(signum: int, parent: int) -> None:
    """Asks the kernel for `signum` when the thread that started this process ends.

    `parent` is who that ought to be: when it has gone already, the signal is sent at once.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """Makes orphans among the descendants of this process its children, instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _table() -> Iterator[tuple[int, int, int]]:
    """(pid, parent, session) of every process."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                stat = file.read()
        except OSError:  # it has ended
            continue
        # The command's name stands in parentheses and may contain anything.
        fields = stat[stat.rindex(b")") + 2 :].split()
        yield int(name), int(fields[1]), int(fields[3])


def descendants(root: int) -> list[int]:
    """All processes below `root`."""
    children: dict[int, list[int]] = {}
    for pid, parent, _ in _table():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def kill_sessions(leaders: set[int]) -> None:
    """SIGKILL to every process of the sessions that these processes began."""
    for pid, _, session in _table():
        if session in leaders:
            signal_process(pid, signal.SIGKILL)


def signal_process(pid: int, signum: int) -> None:
    """Sends a signal; a process that has ended is as good."""
    try:
        os.kill(pid, signum)
    except (ProcessLookupError, PermissionError):
        return


def signal_group(group: int, signum: int) -> None:
    """Sends a signal to a process group; one that has ended is as good."""
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return


def end_descendants(signum: int, seconds: float) -> bool:
    """Signals all descendants of this process until none is left (True) or time is up (False)."""
    deadline = time.monotonic() + seconds
    signalled: set[int] = set()
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            return True
        below = descendants(os.getpid())
        for pid in below:
            if pid not in signalled:
                signal_process(pid, signum)
        signalled.update(below)
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        # Also look again now and then: a child of a child may have been started meanwhile.
        signal.sigtimedwait({signal.SIGCHLD}, min(remaining, 0.1))
