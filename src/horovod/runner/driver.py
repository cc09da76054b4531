"""The driver: starts the agents of a job, passes output and signals on, and decides how it ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

from horovod.runner.agent_link import AgentLink
from horovod.runner.output import Output
from horovod.runner.plan import Plan, job_of_host
from horovod.runner.processes import (
    GRACE_SECONDS,
    KILL_SECONDS,
    adopt_orphans,
    end_descendants,
    kill_sessions,
)
from horovod.runner.report import Failure, culprit, describe
from horovod.runner.store import Store

# The others get this long to notice a failure, say so and end by themselves.
SETTLE_SECONDS = 3.0
# An agent ends its workers within the grace time, then what these have left behind.
AGENT_END_SECONDS = 2 * GRACE_SECONDS + 3.0
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Outcome(NamedTuple):
    """How a job ended."""

    failure: Failure | None
    report: str
    interrupted: int  # the signal, or 0
    abandoned: bool = False  # by a second Ctrl-C; output may be lost

    @property
    def exit_code(self) -> int:
        """What a shell would be told."""
        if self.interrupted:
            return 128 + self.interrupted
        return self.failure.code if self.failure else 0


class _KilledByUser(BaseException):
    """A second Ctrl-C: leave at once, wherever we are."""


class Driver:
    """Runs one job. `say` takes the driver's own lines; the workers' output goes to `output`.

    `owns_process`: this process has no other children than those of the job.
    """

    def __init__(
        self,
        plan: Plan,
        output: Output,
        store: Store,
        say: Callable[[str], None],
        owns_process: bool = False,
    ) -> None:
        self._owns_process = owns_process
        self._plan = plan
        self._output = output
        self._store = store
        self._say = say
        self._links: list[AgentLink] = []
        self._failures: list[Failure] = []
        self._notes: set[str] = set()
        self._stop_at: float | None = None
        self._stopping = False
        self._commandable = False  # the agents have their jobs
        self._interrupted = 0
        self._ending = False
        self._abandoned = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> Outcome:
        """Runs the job to its end; no process of it is left afterwards."""
        previous = self._take_signals()
        try:
            self._start()
            self._loop()
        except _KilledByUser:
            self._abandoned = True
            self._tell(["kill"])
        finally:
            self._ending = True
            self._end()
            for signum, handler in previous.items():
                signal.signal(signum, handler)
        return self._outcome()

    def _start(self) -> None:
        if self._owns_process:
            adopt_orphans()
        for host in self._plan.hosts():
            link = AgentLink(host, [s.rank for s in self._plan.slots if s.hostname == host])
            self._links.append(link)
            self._selector.register(link, selectors.EVENT_READ, link)
        self._store.start()  # while the agents are starting
        for link in self._links:
            link.send_job(job_of_host(self._plan, link.host, self._store, os.environb))
        self._commandable = True
        if self._interrupted:
            self._pass_on(self._interrupted)

    # --- signals -------------------------------------------------------------------------------

    def _take_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        taken = [
            s for s in PASSED_ON if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN
        ]
        return {signum: signal.signal(signum, self._on_signal) for signum in taken}

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        """Acts here and now: the loop may be blocked, writing to a terminal that is held."""
        if self._interrupted and not self._ending:
            raise _KilledByUser
        self._interrupted = self._interrupted or signum
        if self._commandable:
            self._pass_on(signum)

    def _pass_on(self, signum: int) -> None:
        self._stopping = True
        self._tell(["stop", signum, GRACE_SECONDS])

    def _tell(self, message: list[Any]) -> None:
        for link in self._links:
            link.send(message)

    # --- events --------------------------------------------------------------------------------

    def _loop(self) -> None:
        started_by = time.monotonic() + self._plan.start_timeout
        while open_links := [key.data for key in self._selector.get_map().values()]:
            waiting = any(not link.heard for link in open_links)
            deadlines = [t for t in (self._stop_at, started_by if waiting else None) if t]
            timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
            for key, _ in self._selector.select(timeout):
                for message in key.data.receive():
                    self._event(key.data, message)
            now = time.monotonic()
            if self._stop_at is not None and now >= self._stop_at:
                self._stop_at = None
                self._pass_on(signal.SIGTERM)
            if waiting and now >= started_by:
                self._give_up_starting()
                return

    def _event(self, link: AgentLink, message: list[Any]) -> None:
        match message:
            case ["output", rank, stream, data]:
                self._output.write(rank, stream, data)
            case ["started", rank, pid]:
                link.pids.add(pid)
                self._verbose(f"rank {rank} runs on host {link.host} as process {pid}")
            case ["exit", rank, code, signum, text]:
                link.live.discard(rank)
                self._output.end(rank)
                if code != 0:
                    self._failed(Failure(rank, link.host, code, signum, text))
            case ["refused", rank, code, text]:
                link.live.clear()
                self._failed(Failure(rank, link.host, code, 0, text))
            case ["note", text]:
                self._verbose(text)
            case ["done"]:
                link.done = True
            case []:
                self._selector.unregister(link)
                if not link.done:
                    link.live.clear()
                    text = "its agent ended unexpectedly, and its workers with it"
                    self._failed(Failure(None, link.host, 1, 0, text))
            case _:
                raise ValueError(f"the agent of {link.host} sent an unknown message {message[0]!r}")

    def _verbose(self, text: str) -> None:
        if self._plan.verbose and text not in self._notes:
            self._notes.add(text)
            self._say(text)

    def _failed(self, failure: Failure) -> None:
        if self._stopping:
            return  # we have ended it ourselves
        first = not self._failures
        self._failures.append(failure)
        if failure.rank is not None:
            self._announce(f"Process {failure.rank} exit with status code {failure.code}.")
        if first and any(link.live for link in self._links):
            name = failure.rank if failure.rank is not None else f"agent of {failure.host}"
            self._announce(f"Terminating remaining workers after failure of Process {name}.")
            self._stop_at = time.monotonic() + SETTLE_SECONDS

    def _announce(self, text: str) -> None:
        print(text, flush=True)

    def _give_up_starting(self) -> None:
        missing = [link.host for link in self._links if not link.heard]
        text = (
            f"Timed out waiting for the agent of {', '.join(missing)} to start. Please check "
            "connectivity between servers. You may need to increase the --start-timeout parameter "
            "if you have too many servers"
        )
        self._failed(Failure(None, missing[0], 1, 0, text))

    # --- the end -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Hangs up on all agents. One that is gone can't look after its workers: we do."""
        self._selector.close()
        pids: set[int] = set()
        deadline = time.monotonic() + AGENT_END_SECONDS
        for link in self._links:
            orderly = link.end(max(0.0, deadline - time.monotonic()))
            if not (orderly and link.done):
                pids |= {link.pid, *link.pids}
        if pids:
            kill_sessions(pids)
            if self._owns_process:
                end_descendants(signal.SIGKILL, KILL_SECONDS)

    def _outcome(self) -> Outcome:
        if self._abandoned:  # whoever takes our output may be held: do not wait for it
            return Outcome(None, "", self._interrupted, abandoned=True)
        with contextlib.suppress(BrokenPipeError):
            self._output.close()
        if not self._failures or self._interrupted:
            return Outcome(None, "", self._interrupted)
        ranks = [failure.rank for failure in self._failures if failure.rank is not None]
        lines = {rank: self._output.last_lines(rank) for rank in ranks}
        failure, _ = culprit(self._failures, lines)
        own = lines.get(failure.rank, []) if failure.rank is not None else []
        return Outcome(failure, describe(failure, own), 0)


def say_on_stderr(text: str) -> None:
    """A line of the launcher itself."""
    print(f"horovodrun: {text}", file=sys.stderr, flush=True)
