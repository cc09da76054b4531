"""Who shares memory with whom, and the tree along which ranks negotiate. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FAN_OUT = 8


class Member(NamedTuple):
    """What one rank tells all others before they connect.

    Attributes:
        host: its name for the host; ranks with equal host and machine share memory.
        machine: identity of the running kernel and its network namespace.
        address, port: its listening TCP socket.
        unix_name: its listening Unix socket (abstract name), None when it has none.
        pid: its process id, for messages.
        local_size: number of ranks on its host, as it was told.
        arena: slot bytes and number of slots.
        process_sets: ranks of the static process sets it was given.
    """

    host: str
    machine: str
    address: str
    port: int
    unix_name: str | None
    pid: int
    local_size: int
    arena: list[int]
    process_sets: list[list[int]]


class Tree(NamedTuple):
    """One rank's edges: -1 stands for no parent."""

    parent: int
    children: list[int]


def group_hosts(members: Sequence[Member]) -> list[list[int]]:
    """Returns the ranks that share memory, host by host, ordered by lowest rank.

    A rank that can share no memory is a host of its own.
    """
    hosts: dict[tuple[str, ...], list[int]] = {}
    for rank, member in enumerate(members):
        key: tuple[str, ...] = (member.host, member.machine)
        if member.unix_name is None:
            key += (str(rank),)
        hosts.setdefault(key, []).append(rank)
    return list(hosts.values())


def tree_edges(hosts: Sequence[Sequence[int]], rank: int, fan_out: int = FAN_OUT) -> Tree:
    """Returns the edges of `rank`: flat within a host, a tree of `fan_out` between host leaders.

    The leader of a host is its lowest rank. Parents have lower ranks than their children; the root
    is rank 0.
    """
    index = next(i for i, ranks in enumerate(hosts) if rank in ranks)
    leader = hosts[index][0]
    if rank != leader:
        return Tree(leader, [])
    below = range(index * fan_out + 1, min((index + 1) * fan_out + 1, len(hosts)))
    parent = hosts[(index - 1) // fan_out][0] if index > 0 else -1
    return Tree(parent, list(hosts[index][1:]) + [hosts[i][0] for i in below])


def disagreement(members: Sequence[Member]) -> str | None:
    """Returns what ranks were told differently although it must be equal, or None."""
    for field, meaning in (
        ("process_sets", "process_sets of hvd.init()"),
        ("arena", "HOROVOD_ARENA_SLOT_BYTES and HOROVOD_ARENA_SLOTS"),
    ):
        first = getattr(members[0], field)
        for rank, member in enumerate(members):
            if getattr(member, field) != first:
                return (
                    f"ranks were given different {meaning}: rank 0 has {first}, "
                    f"rank {rank} has {getattr(member, field)}"
                )
    return None
