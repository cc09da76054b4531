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

import horovod
from horovod.runner.addresses import addresses_for
from horovod.runner.agent_link import AgentLink, RemoteAgentLink
from horovod.runner.hosts import UNKNOWN_SLOTS, host_name
from horovod.runner.monitor.unwatched import Unwatched
from horovod.runner.output import Output
from horovod.runner.plan import Plan, assign, is_local, job_of_host
from horovod.runner.processes import (
    GRACE_SECONDS,
    KILL_SECONDS,
    adopt_orphans,
    end_descendants,
    kill_sessions,
)
from horovod.runner.protocol import HostFacts
from horovod.runner.report import Failure, culprit, describe
from horovod.runner.store import Store

# The others get this long to notice a failure, say so and end by themselves.
SETTLE_SECONDS = 3.0
# When a host is lost, its silence is all that the others notice, and later than the launcher may.
SETTLE_AFTER_LOSS_SECONDS = 10.0
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


class _Wakeup:
    """Ends a `select` from a signal handler, as long as no agent can be told."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._reader

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it rings already
            os.write(self._writer, b"!")

    def receive(self) -> list[Any]:
        os.read(self._reader, 64)
        return []

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


class _KilledByUser(BaseException):
    """A second Ctrl-C: leave at once, wherever we are."""


class Driver:
    """Runs one job. `say` takes the driver's own lines; the workers' output goes to `output`.

    `owns_process`: this process has no other children than those of the job. `monitor` is told of the ranks
    and may show itself after every round of events.
    """

    def __init__(
        self,
        plan: Plan,
        output: Output,
        store: Store,
        say: Callable[[str], None],
        owns_process: bool = False,
        monitor: Unwatched | None = None,
    ) -> None:
        self._owns_process = owns_process
        self._monitor = monitor or Unwatched()
        self._plan = plan
        self._output = output
        self._store = store
        self._say = say
        self._links: list[AgentLink] = []
        self._failures: list[Failure] = []
        self._notes: set[str] = set()
        self._started_by = 0.0
        self._stop_at: float | None = None
        self._stopping = False
        self._commandable = False  # the agents have their jobs
        self._wakeup = _Wakeup()
        self._interrupted = 0
        self._ending = False
        self._abandoned = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> Outcome:
        """Runs the job to its end; no process of it is left afterwards."""
        previous = self._take_signals()
        self._started_by = time.monotonic() + self._plan.start_timeout
        try:
            self._start_agents()
            self._store.start()  # while the agents are starting
            if self._meet_agents():
                self._send_jobs()
                self._watch()
        except _KilledByUser:
            self._abandoned = True
            self._tell(["kill"])
        finally:
            self._ending = True
            self._end()
            for signum, handler in previous.items():
                signal.signal(signum, handler)
            self._wakeup.close()
        return self._outcome()

    def _start_agents(self) -> None:
        if self._owns_process:
            adopt_orphans()
        for target in self._plan.targets():
            if is_local(target):
                link = AgentLink(target)
            else:
                link = RemoteAgentLink(target, self._plan.there(os.environ))
            self._links.append(link)
            self._selector.register(link, selectors.EVENT_READ, link)

    def _meet_agents(self) -> bool:
        """Waits until every agent has said what its host has; False when that or the job has failed."""
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._wakeup)
        while missing := [link for link in self._links if link.facts is None]:
            retries = [link.retry_at for link in missing if link.retry_at is not None]
            self._select(min([self._started_by, *retries]))
            now = time.monotonic()
            for link in missing:
                if link.retry_at is not None and now >= link.retry_at:
                    link.retry()
                    self._selector.register(link, selectors.EVENT_READ, link)
            if self._failures or self._interrupted:
                return False
            if now >= self._started_by:
                self._give_up_starting(missing)
                return False
        return True

    def _send_jobs(self) -> None:
        self._fill_slots()
        addresses = [self._store.address]
        if remote := self._plan.remote_targets():
            hosts = [host_name(target) for target in remote]
            addresses = addresses_for(hosts, self._plan.interfaces, self._store.port)
        for link in self._links:
            link.send_job(job_of_host(self._plan, link.host, self._store, addresses, os.environb))
        self._commandable = True
        if self._interrupted:
            self._pass_on(self._interrupted)

    def _fill_slots(self) -> None:
        """Gives hosts of unknown slots one for each GPU, or without GPUs one for each core."""
        if self._plan.slots:
            return
        facts = {link.host: link.facts for link in self._links}
        hosts = []
        for host in self._plan.hosts:
            known = facts[host.hostname]
            if host.slots == UNKNOWN_SLOTS and known is not None:
                host = host._replace(slots=known.gpus or known.cores)
                self._verbose(f"host {host.hostname} has {host.slots} slot(s)")
            hosts.append(host)
        self._plan = self._plan._replace(hosts=hosts, slots=assign(self._plan.num_proc, hosts))
        needed = set(self._plan.targets())
        for link in [link for link in self._links if link.host not in needed]:
            self._selector.unregister(link)
            self._links.remove(link)
            link.end(AGENT_END_SECONDS)

    # --- signals -------------------------------------------------------------------------------

    def _take_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        taken = [
            s for s in PASSED_ON if s != signal.SIGHUP or signal.getsignal(s) != signal.SIG_IGN
        ]
        actions: dict[int, Any] = dict.fromkeys(taken, self._on_signal)
        if self._monitor.is_live:
            actions[signal.SIGWINCH] = lambda *_: self._wakeup.ring()
            actions[signal.SIGCONT] = lambda *_: self._monitor.resumed()
        return {signum: signal.signal(signum, action) for signum, action in actions.items()}

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        """Acts here and now: the loop may be blocked, writing to a terminal that is held."""
        if self._interrupted and not self._ending:
            raise _KilledByUser
        self._interrupted = self._interrupted or signum
        if self._commandable:
            self._pass_on(signum)
        else:
            self._wakeup.ring()

    def _pass_on(self, signum: int) -> None:
        self._stopping = True
        self._tell(["stop", signum, GRACE_SECONDS])

    def _tell(self, message: list[Any]) -> None:
        for link in self._links:
            link.send(message)

    # --- events --------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Runs until all agents have hung up."""
        while any(key.data is not self._wakeup for key in self._selector.get_map().values()):
            self._select(self._stop_at)
            if self._stop_at is not None and time.monotonic() >= self._stop_at:
                self._stop_at = None
                self._pass_on(signal.SIGTERM)

    def _select(self, until: float | None) -> None:
        times = [at for at in (until, self._monitor.next_at) if at is not None]
        timeout = max(0.0, min(times) - time.monotonic()) if times else None
        for key, _ in self._selector.select(timeout):
            try:
                messages = list(key.data.receive())
            except ValueError as error:  # what came were no frames
                self._selector.unregister(key.data)
                self._failed(
                    Failure(None, key.data.host, 1, 0, f"its agent can't be understood: {error}")
                )
                continue
            for message in messages:
                self._event(key.data, message)
        self._monitor.refresh()

    def _event(self, link: AgentLink, message: list[Any]) -> None:
        match message:
            case ["output", rank, stream, data]:
                self._output.write(rank, stream, data)
            case ["hello", facts]:
                link.facts = HostFacts(*facts)
                if link.facts.version != horovod.__version__:
                    text = (
                        f"its horovod is version {link.facts.version}, and this one is version "
                        f"{horovod.__version__}; install the same there"
                    )
                    self._failed(Failure(None, link.host, 1, 0, text))
            case ["started", rank, pid]:
                link.pids.add(pid)
                self._monitor.started(rank, link.host)
                self._verbose(f"rank {rank} runs on host {link.host} as process {pid}")
            case ["exit", rank, code, signum, text]:
                link.live.discard(rank)
                self._output.end(rank)
                self._monitor.ended(rank, code)
                if code != 0:
                    self._failed(Failure(rank, link.host, code, signum, text))
            case ["refused", rank, code, text]:
                link.live.clear()
                self._monitor.ended(rank, code)
                self._failed(Failure(rank, link.host, code, 0, text))
            case ["note", text]:
                self._verbose(text)
            case ["done"]:
                link.done = True
            case []:
                self._selector.unregister(link)
                if link.done:
                    return
                link.live.clear()
                if not self._stopping and link.wants_another_try():
                    self._note_once(f"waiting for host {link.host}: {link.why_ended()}")
                    return
                settle = SETTLE_AFTER_LOSS_SECONDS if link.is_remote else SETTLE_SECONDS
                self._failed(Failure(None, link.host, 1, 0, link.why_ended()), settle)
            case _:
                raise ValueError(f"the agent of {link.host} sent an unknown message {message[0]!r}")

    def _verbose(self, text: str) -> None:
        if self._plan.verbose:
            self._note_once(text)

    def _note_once(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self._say(text)

    def _failed(self, failure: Failure, settle: float = SETTLE_SECONDS) -> None:
        if self._stopping:
            return  # we have ended it ourselves
        first = not self._failures
        self._failures.append(failure)
        if failure.rank is not None:
            self._output.announce(f"Process {failure.rank} exit with status code {failure.code}.")
        if first and any(link.live for link in self._links):
            name = failure.rank if failure.rank is not None else f"agent of {failure.host}"
            self._output.announce(f"Terminating remaining workers after failure of Process {name}.")
            self._stop_at = time.monotonic() + settle

    def _give_up_starting(self, missing: list[AgentLink]) -> None:
        names = ", ".join(link.host for link in missing)
        why = f" The last that was heard: {missing[0].why_ended()}." if missing[0].retry_at else ""
        text = (
            f"Timed out waiting for the agent of {names} to start, after "
            f"{self._plan.start_timeout:g} s.{why} Please check "
            "connectivity between servers. You may need to increase the --start-timeout parameter "
            "if you have too many servers"
        )
        self._failed(Failure(None, missing[0].host, 1, 0, text))

    # --- the end -------------------------------------------------------------------------------

    def _end(self) -> None:
        """Hangs up on all agents. One that is gone can't look after its workers: we do."""
        self._selector.close()
        pids: set[int] = set()
        deadline = time.monotonic() + AGENT_END_SECONDS
        for link in self._links:
            orderly = link.end(max(0.0, deadline - time.monotonic()))
            if not link.is_remote and not (orderly and link.done):
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
