"""What an exchange of gradients costs on a cluster: ring, hierarchical, parameter servers. Pure.

The formulas are derived in docs/scaling-model.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TREE_FAN_OUT = 8  # horovod.common.topology.FAN_OUT: leaders of hosts negotiate in a tree
SMALL_BYTES = 64 << 10  # up to here recursive doubling: core/backends/native_table.cpp
BLOCK_SHARE_BYTES = 4 << 20  # of each rank of a host: core/backends/native_allreduce.cpp


@dataclass(frozen=True)
class Cluster:
    """`hosts` equal hosts of `ranks` ranks each; rates in bytes per second, times in seconds.

    `bandwidth` is what one host can send, and at the same time receive, of payload; `latency` the way
    of a small message to another host. The same for a rank and another of its host: `local_*`.
    `servers`: dedicated parameter servers, each with a host of its own; 0: one beside the ranks of each
    host.
    """

    hosts: int
    ranks: int
    bandwidth: float
    latency: float
    local_bandwidth: float
    local_latency: float
    servers: int = 0

    @property
    def size(self) -> int:
        """Ranks of the whole job."""
        return self.hosts * self.ranks


@dataclass(frozen=True)
class Cost:
    """Seconds that the exchange of one response takes, by what takes them.

    `busy`: after which the next response may begin, if that is earlier than the end.
    """

    bandwidth: float = 0.0  # of the links between hosts
    latency: float = 0.0  # of the messages between hosts
    local: float = 0.0  # within hosts
    overlapped: float = 0.0

    @property
    def total(self) -> float:
        """From the beginning to the last byte."""
        return self.bandwidth + self.latency + self.local

    @property
    def busy(self) -> float:
        """From the beginning until the next response may begin."""
        return self.total - self.overlapped


Exchange = Callable[[float, Cluster], Cost]


def ring(size: float, cluster: Cluster) -> Cost:
    """One ring of all ranks, those of a host side by side in it; `size` bytes.

    2(N-1) steps of size/N bytes. What arrives is passed on at once, so a step takes the longer of the
    slowest hop's transfer and the mean hop's latency.
    """
    ranks, hosts = cluster.size, cluster.hosts
    if ranks == 1:
        return Cost()
    steps, chunk = 2 * (ranks - 1), size / ranks
    local_transfer = chunk / cluster.local_bandwidth if cluster.ranks > 1 else 0.0
    if hosts == 1:
        return Cost(local=steps * max(local_transfer, cluster.local_latency))
    transfer = chunk / cluster.bandwidth
    latency = (hosts * cluster.latency + (ranks - hosts) * cluster.local_latency) / ranks
    if latency >= max(transfer, local_transfer):
        return Cost(latency=steps * latency)
    if local_transfer > transfer:
        return Cost(local=steps * local_transfer, latency=cluster.latency)
    return Cost(bandwidth=steps * transfer, latency=cluster.latency)


def hierarchical(size: float, cluster: Cluster) -> Cost:
    """Reduce on each host, then rings between hosts with a share each, then gather on each host.

    The phases of one block of the response overlap with those of the next; what does not overlap is
    the first block's reduction and the last one's gathering.
    """
    local = _within_host(size, cluster)
    if cluster.hosts == 1:
        return Cost(local=local)
    bandwidth, latency = _between_hosts(size, cluster)
    between = bandwidth + latency
    block = cluster.ranks * BLOCK_SHARE_BYTES
    hidden = max(0.0, 1 - block / size) * min(between, local) if size > 0 else 0.0
    if local <= between:
        return Cost(bandwidth, latency, local - hidden)
    return Cost(
        (between - hidden) * bandwidth / between, (between - hidden) * latency / between, local
    )


def _within_host(size: float, cluster: Cluster) -> float:
    """Reduce-scatter and allgather among the ranks of a host."""
    ranks = cluster.ranks
    if ranks == 1:
        return 0.0
    return 2 * (ranks - 1) / ranks * size / cluster.local_bandwidth + 2 * cluster.local_latency


def _between_hosts(size: float, cluster: Cluster) -> tuple[float, float]:
    hosts = cluster.hosts
    if size <= SMALL_BYTES:
        doublings = hosts.bit_length() - 1
        rounds = doublings + (0 if hosts == 1 << doublings else 2)
        return rounds * size / cluster.bandwidth, rounds * cluster.latency
    steps, transfer = 2 * (hosts - 1), size / hosts / cluster.bandwidth
    if cluster.latency >= transfer:
        return 0.0, steps * cluster.latency
    return steps * transfer, cluster.latency


def parameter_server(size: float, cluster: Cluster) -> Cost:
    """Every rank sends its gradients to servers, each with an even share, and gets the sums back."""
    ranks, hosts, servers = cluster.ranks, cluster.hosts, cluster.servers
    if cluster.size == 1 and servers == 0:
        return Cost()
    if servers > 0:
        one_way = max(ranks * size, cluster.size * size / servers) / cluster.bandwidth
        # The next response's gradients go up while this one's sums come down.
        return Cost(2 * one_way, 2 * cluster.latency, overlapped=one_way + 2 * cluster.latency)
    local = 2 * ranks * size / hosts / cluster.local_bandwidth
    if hosts == 1:
        return Cost(local=local + 2 * cluster.local_latency)
    between = 2 * ranks * size * (hosts - 1) / hosts / cluster.bandwidth
    if local > between:
        return Cost(local=local, latency=2 * cluster.latency)
    return Cost(bandwidth=between, latency=2 * cluster.latency)


EXCHANGES: dict[str, Exchange] = {
    "ring": ring,
    "hierarchical": hierarchical,
    "parameter-server": parameter_server,
}


def negotiation_seconds(cluster: Cluster) -> float:
    """From a tensor being ready on all ranks to all knowing it: up the tree of hosts and down again."""
    levels, covered, width = 0, 1, 1
    while covered < cluster.hosts:
        levels, width = levels + 1, width * TREE_FAN_OUT
        covered += width
    within = 2 * cluster.local_latency if cluster.ranks > 1 else 0.0
    return 2 * levels * cluster.latency + within
