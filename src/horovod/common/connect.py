"""Brings a rank up: meet the others, connect to those the engine needs, start the core.

Order: listening sockets, shared memory, exchange of one blob per rank, checks, connections (lower
rank dials, higher rank accepts), `_core.start`. Afterwards two threads named "horovod-connect" serve
connections that are made on first use. `Connection.close` undoes all of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from horovod import _core
from horovod.common import bootstrap, knobs
from horovod.common.bootstrap.kind import Identity, Session
from horovod.common.exceptions import HorovodInternalError
from horovod.common.log import logger
from horovod.common.network import is_loopback
from horovod.common.peers import (
    Acceptor,
    Address,
    ConnectionKind,
    Credentials,
    Dialer,
    Peer,
    listen_tcp,
    listen_unix,
)
from horovod.common.rendezvous import RendezvousError
from horovod.common.topology import Member, Tree, disagreement, group_hosts, tree_edges

REPORT_SECONDS = 10.0


@dataclass
class Start:
    """What is known before the others are met."""

    identity: Identity
    believed: str  # how this process thinks it was started, as a sentence
    config: Mapping[str, Any]
    process_sets: list[list[int]]
    timeout: float

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + self.timeout

    def remaining(self) -> float:
        """Seconds until the deadline, 0 after it."""
        return max(self.deadline - time.monotonic(), 0.0)

    def warn_missing(self, ranks: Sequence[int]) -> None:
        """Tells the user who has not come, while there is still time."""
        waited = self.timeout - self.remaining()
        logger.warning(
            "After %.0f s still waiting for rank(s) %s to call hvd.init(). %s",
            waited,
            list(ranks),
            self.describe(),
        )

    def describe(self) -> str:
        """How this process believes it was started, as a sentence."""
        who = self.identity
        return (
            f"This process takes itself for rank {who.rank} of {who.size} on host {who.host}, "
            f"{self.believed}."
        )

    def failed(self, why: str) -> HorovodInternalError:
        """Returns the error for a start that can't succeed."""
        return HorovodInternalError(f"Horovod initialization failed: {why}. {self.describe()}")

    def timed_out(self, what: str) -> HorovodInternalError:
        """Returns the error for a start whose time is over."""
        return HorovodInternalError(
            f"Horovod initialization failed: within {self.timeout:g} s {what}. {self.describe()} If "
            "ranks need longer to start, increase --start-timeout (HOROVOD_START_TIMEOUT)."
        )


@dataclass
class Connection:
    """What a started rank holds on the Python side until it is shut down."""

    identity: Identity
    members: list[Member]
    hosts: list[list[int]]
    acceptor: Acceptor
    dialer: Dialer
    dial_thread: threading.Thread = field(init=False)

    def serve(self) -> None:
        """Starts to make and take connections that the core wants on first use."""
        self.acceptor.deliver_data_to(lambda rank, sock: _provide(rank, Peer(sock, [])))
        self.dial_thread = threading.Thread(
            target=self._dial_on_request, name="horovod-connect", daemon=True
        )
        self.dial_thread.start()

    def _dial_on_request(self) -> None:
        while (peer := _core.next_connection_request()) is not None:
            member = self.members[peer]
            try:
                address = _tcp_address(self.members, self.identity.rank, peer)
                deadline = time.monotonic() + knobs.start_timeout()
                connected = self.dialer.dial(address, ConnectionKind.DATA, peer, (), deadline)
            except (OSError, ValueError) as error:
                where = f"rank {peer} on host {member.host} at {member.address}:{member.port}"
                # The engine may be gone by now: then nobody waits for this connection.
                with contextlib.suppress(ValueError):
                    _core.connection_failed(peer, f"cannot connect to {where}: {error}")
            else:
                _provide(peer, connected)

    def close(self) -> None:
        """Ends the threads and closes the sockets. Call after the core was shut down."""
        self.dialer.stop()
        self.dial_thread.join()
        self.acceptor.close()

    def close_copies(self) -> None:
        """In a forked child: closes what was inherited, without touching the parent's."""
        self.acceptor.close_copies()


def _provide(rank: int, peer: Peer) -> None:
    descriptor = peer.sock.detach()
    try:
        _core.provide_connection(rank, descriptor)
    except ValueError:  # the core has been shut down meanwhile
        os.close(descriptor)


def _tcp_address(members: Sequence[Member], own_rank: int, peer: int) -> Address:
    """Where `peer` listens.

    Raises:
        ConnectionError: it advertised loopback although it runs on another machine.
    """
    member = members[peer]
    if is_loopback(member.address) and member.machine != members[own_rank].machine:
        raise ConnectionError(
            f"rank {peer} on host {member.host} is reachable only from its own machine "
            f"({member.address}); the address of the rendezvous must be one that every host "
            "can route to"
        )
    return member.address, member.port


# --- before the exchange -----------------------------------------------------------------------


def _machine_identity() -> str:
    """Equal for two processes that can reach each other's abstract Unix sockets and loopback."""
    parts = [os.uname().nodename]
    with contextlib.suppress(OSError):  # no /proc: the name has to do
        with open("/proc/sys/kernel/random/boot_id") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/net"))
    return "/".join(parts)


def _open_memory(byte_count: int) -> int:
    """Returns a descriptor of `byte_count` bytes of memory that other processes can map."""
    try:
        descriptor = os.memfd_create("horovod-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        logger.info("memfd_create failed (%s): the arena lies in a temporary file.", error)
        import tempfile

        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), byte_count)
            return fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, 0)
    os.ftruncate(descriptor, byte_count)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return descriptor


def _open_unix_listener(env: Mapping[str, str]) -> tuple[Any, str | None, str | None]:
    """Returns a listener for host peers and its name, or the reason why there is none."""
    if knobs.value_of("HOROVOD_ARENA_DISABLE", env):
        return None, None, "HOROVOD_ARENA_DISABLE is set"
    try:
        sock, name = listen_unix()
    except OSError as error:
        return None, None, f"no abstract Unix socket: {error}"
    return sock, name, None


def _exchange(session: Session, start: Start, own: Member) -> list[Member]:
    """Returns what every rank said about itself.

    Raises:
        ValueError: ranks were given different settings that must be equal.
        HorovodInternalError: somebody did not come in time.
    """
    try:
        blobs = session.exchange(msgpack.packb(own), start.remaining(), start.warn_missing)
    except TimeoutError as error:
        raise start.timed_out(f"not all ranks came: {error}") from error
    except (OSError, RendezvousError) as error:
        raise start.failed(f"the exchange with the other ranks broke off: {error}") from error
    members = [Member(*msgpack.unpackb(blob)) for blob in blobs]
    difference = disagreement(members)
    if difference is not None:
        raise ValueError(f"Horovod initialization failed: {difference}.")
    return members


# --- after the exchange ------------------------------------------------------------------------


@dataclass
class _Plan:
    """Which connections this rank needs before the core starts."""

    host: list[int]
    hosts: list[list[int]]
    tree: Tree
    tree_peers: list[int]


def _plan(members: Sequence[Member], rank: int) -> _Plan:
    hosts = group_hosts(members)
    host = next(ranks for ranks in hosts if rank in ranks)
    tree = tree_edges(hosts, rank)
    edges = [peer for peer in (tree.parent, *tree.children) if peer >= 0]
    return _Plan(host, hosts, tree, [peer for peer in edges if peer not in host])


def _dial_higher(
    start: Start,
    plan: _Plan,
    members: Sequence[Member],
    dialer: Dialer,
    descriptors: Sequence[int],
    established: dict[ConnectionKind, dict[int, Peer]],
) -> None:
    rank = start.identity.rank
    wanted = [
        *((ConnectionKind.HOST, peer) for peer in plan.host if peer > rank),
        *((ConnectionKind.TREE, peer) for peer in plan.tree_peers if peer > rank),
    ]
    for kind, peer in wanted:
        passed = descriptors if kind is ConnectionKind.HOST else ()
        try:
            address: Address = members[peer].unix_name or ""
            if kind is ConnectionKind.TREE:
                address = _tcp_address(members, rank, peer)
            established[kind][peer] = dialer.dial(address, kind, peer, passed, start.deadline)
        except OSError as error:
            where = f"rank {peer} on host {members[peer].host}"
            raise start.failed(f"rank {rank} cannot connect to {where}: {error}") from error


def _await_lower(
    start: Start,
    plan: _Plan,
    acceptor: Acceptor,
    established: dict[ConnectionKind, dict[int, Peer]],
) -> None:
    rank = start.identity.rank
    for kind, peers in ((ConnectionKind.HOST, plan.host), (ConnectionKind.TREE, plan.tree_peers)):
        missing = [peer for peer in peers if peer < rank]
        while missing:
            step = min(start.remaining(), REPORT_SECONDS)
            established[kind].update(acceptor.wait_for(kind, missing, step))
            missing = [peer for peer in missing if peer not in established[kind]]
            if missing and start.remaining() == 0:
                raise start.timed_out(f"rank(s) {missing} did not connect to this rank")
            if missing:
                start.warn_missing(missing)


def _start_core(
    start: Start,
    plan: _Plan,
    members: Sequence[Member],
    descriptors: Sequence[int],
    established: dict[ConnectionKind, dict[int, Peer]],
) -> None:
    """Hands every descriptor to the core, which owns them from the call on."""
    rank, host_peers = start.identity.rank, established[ConnectionKind.HOST]
    received = {peer: host_peers[peer].descriptors for peer in host_peers}
    topology = {
        "rank": rank,
        "size": start.identity.size,
        "hosts": plan.hosts,
        "host_names": [members[ranks[0]].host for ranks in plan.hosts],
        "cores": len(os.sched_getaffinity(0)),
    }
    _core.start(
        dict(start.config),
        topology,
        {rank: descriptors[0], **{peer: fds[0] for peer, fds in received.items()}},
        {rank: descriptors[1], **{peer: fds[1] for peer, fds in received.items()}},
        {peer: connection.sock.detach() for peer, connection in host_peers.items()},
        {
            peer: connection.sock.detach()
            for peer, connection in established[ConnectionKind.TREE].items()
        },
        plan.tree.parent,
        plan.tree.children,
    )


def flight_recorder_folder(env: Mapping[str, str], key: bytes) -> str:
    """Where this job's ranks write what they did last; equal on all ranks of a host.

    Without HOROVOD_FLIGHT_RECORDER_DIR it is a folder of the job below one of the user, which is made when
    the first dump is written.
    """
    chosen = knobs.value_of("HOROVOD_FLIGHT_RECORDER_DIR", env)
    if chosen:
        return os.path.abspath(chosen)
    job = hashlib.sha256(b"flight recorder" + key).hexdigest()[:12]
    return os.path.join(tempfile.gettempdir(), f"horovod-flight-recorder-{os.getuid()}", job)


def bring_up(
    config: Mapping[str, Any],
    process_sets: list[list[int]],
    round_number: int,
    env: Mapping[str, str],
) -> Connection:
    """Meets and connects the other ranks and starts the core. Collective.

    Args:
        config: the core's Config, from `knobs.config_from_environment`.
        process_sets: ranks of the static process sets, which all ranks must name alike.
        round_number: counts the inits of this process; equal on all ranks.
        env: environment variables.

    Raises:
        ValueError: a variable is wrong, or ranks were given different settings.
        HorovodInternalError: not all ranks came or connected in time.
    """
    choice = bootstrap.choose(env)
    timeout = knobs.start_timeout(env)
    start = Start(choice.kind.identity(env), choice.reason, config, process_sets, timeout)
    logger.debug("%s", start.describe())
    with contextlib.ExitStack() as undo:
        try:
            session = choice.kind.open_session(env, round_number, timeout)
        except OSError as error:
            raise start.failed(f"the other ranks cannot be met: {error}") from error
        undo.callback(session.close)
        folder = flight_recorder_folder(env, session.key)
        start.config = {**start.config, "flight_recorder_dir": folder}
        connection = _connect_and_start(session, start, round_number, env)
    return connection


def _connect_and_start(
    session: Session, start: Start, round_number: int, env: Mapping[str, str]
) -> Connection:
    rank = start.identity.rank
    credentials = Credentials(session.key, f"rank-to-rank/{round_number}", rank)
    established: dict[ConnectionKind, dict[int, Peer]] = {kind: {} for kind in ConnectionKind}
    with contextlib.ExitStack() as undo:
        descriptors = [_open_memory(_core.region_bytes(dict(start.config)))]
        undo.callback(os.close, descriptors[0])
        descriptors.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        undo.callback(os.close, descriptors[1])

        tcp = listen_tcp(session.local_address)
        unix, unix_name, why_not_shared = _open_unix_listener(env)
        listeners = [tcp] if unix is None else [tcp, unix]
        acceptor = Acceptor(credentials, listeners, start.identity.size, descriptors)
        undo.callback(acceptor.close)
        undo.callback(_close_established, established)
        acceptor.start()

        own = Member(
            start.identity.host,
            _machine_identity(),
            session.local_address,
            tcp.getsockname()[1],
            unix_name,
            os.getpid(),
            start.identity.local_size,
            [start.config["slot_bytes"], start.config["slots"]],
            start.process_sets,
        )
        members = _exchange(session, start, own)
        plan = _plan(members, rank)
        _say_if_alone(start, members, why_not_shared)
        dialer = Dialer(credentials)
        _dial_higher(start, plan, members, dialer, descriptors, established)
        _await_lower(start, plan, acceptor, established)
        undo.pop_all()  # from here on the core and the Connection own everything
        connection = Connection(start.identity, members, plan.hosts, acceptor, dialer)
        try:
            _start_core(start, plan, members, descriptors, established)
        except BaseException:
            acceptor.close()
            raise
        try:
            connection.serve()
        except BaseException:
            _core.shutdown()
            acceptor.close()
            raise
        return connection


def _say_if_alone(start: Start, members: Sequence[Member], why_not_shared: str | None) -> None:
    who = start.identity
    neighbours = sum(member.host == who.host for member in members) > 1
    if why_not_shared is not None and neighbours:
        logger.info(
            "Rank %d shares no memory with the other ranks of host %s and uses TCP: %s.",
            who.rank,
            who.host,
            why_not_shared,
        )


def _close_established(established: Mapping[ConnectionKind, Mapping[int, Peer]]) -> None:
    for peers in established.values():
        for peer in peers.values():
            peer.close()
