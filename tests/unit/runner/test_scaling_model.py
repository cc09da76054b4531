"""The model of `horovodrun predict` against references that are worked out in another way."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from horovod.common.topology import FAN_OUT, tree_edges
from horovod.runner.scaling.cluster import (
    BLOCK_SHARE_BYTES,
    SMALL_BYTES,
    TREE_FAN_OUT,
    Cluster,
    Cost,
    hierarchical,
    negotiation_seconds,
    parameter_server,
    ring,
)
from horovod.runner.scaling.model import (
    BANDWIDTH,
    COMPUTE,
    LATENCY,
    LOCAL,
    STRAGGLERS,
    Options,
    expected_slowest,
    fuse,
    play,
    predict,
)
from horovod.runner.scaling.programs import Program, Submit, Wait, from_ready_times

CORE = Path(__file__).resolve().parents[3] / "core"
MIB = 2**20
AT_ONCE = Options(threshold=1e12, cycle=0.0)


def cluster(hosts: int, ranks: int, **changes: float) -> Cluster:
    values = {
        "bandwidth": 1e8,
        "latency": 50e-6,
        "local_bandwidth": 4e9,
        "local_latency": 5e-6,
        **changes,
    }
    return Cluster(hosts, ranks, **values)  # type: ignore[arg-type]


def simulated_ring(size: float, c: Cluster) -> float:
    """Every rank sends 2(N-1) chunks, each once its first byte is there, no faster than it arrives."""
    n = c.size
    crosses = [(rank + 1) % c.ranks == 0 and c.hosts > 1 for rank in range(n)]
    transfer = [size / n / (c.bandwidth if cross else c.local_bandwidth) for cross in crosses]
    latency = [c.latency if cross else c.local_latency for cross in crosses]
    begin, end = [0.0] * n, list(transfer)
    for _ in range(2 * (n - 1) - 1):
        arrives = [begin[p - 1] + latency[p - 1] for p in range(n)]
        arrived = [end[p - 1] + latency[p - 1] for p in range(n)]
        begin = [max(end[p], arrives[p]) for p in range(n)]
        end = [max(begin[p] + transfer[p], arrived[p]) for p in range(n)]
    return max(end[p] + latency[p] for p in range(n))


@pytest.mark.parametrize(
    ("hosts", "ranks"), [(2, 1), (3, 1), (16, 1), (2, 2), (4, 4), (1, 4), (1, 2), (32, 4)]
)
@pytest.mark.parametrize("size", [100, 64 << 10, MIB, 64 * MIB])
def test_a_ring_takes_what_a_simulation_of_its_steps_takes(
    hosts: int, ranks: int, size: int
) -> None:
    c = cluster(hosts, ranks)
    # Filling the ring is left out of the formula: less than one round of latencies.
    round_trip = hosts * c.latency + (c.size - hosts) * c.local_latency
    assert ring(size, c).total == pytest.approx(
        simulated_ring(size, c), rel=0.02, abs=2.1 * round_trip / c.size + 2 * c.latency
    )


def test_one_rank_exchanges_nothing() -> None:
    for exchange in (ring, hierarchical, parameter_server):
        assert exchange(MIB, cluster(1, 1)).total == 0


def test_with_one_rank_per_host_hierarchical_is_the_ring() -> None:
    for hosts in (2, 3, 8):
        c = cluster(hosts, 1)
        assert hierarchical(32 * MIB, c).total == pytest.approx(ring(32 * MIB, c).total)


def test_a_large_hierarchical_exchange_hides_the_work_on_the_host_but_for_one_block() -> None:
    c = cluster(2, 2)
    size = 80 * MIB
    between = size / c.bandwidth + c.latency  # two hosts: each sends the whole once
    local = size / c.local_bandwidth + 2 * c.local_latency
    block = 8 * MIB
    assert hierarchical(size, c).total == pytest.approx(between + local * block / size)
    assert hierarchical(block, c).total == pytest.approx(
        block / c.bandwidth + c.latency + block / c.local_bandwidth + 2 * c.local_latency
    )


def test_where_the_host_is_slower_than_the_network_the_network_is_hidden() -> None:
    c = cluster(2, 4, local_bandwidth=1e7)
    cost = hierarchical(800 * MIB, c)
    assert cost.local > cost.bandwidth
    assert cost.total == pytest.approx(cost.local + 16 / 800 * 800 * MIB / 1e8, rel=1e-3)


def test_a_small_message_between_hosts_goes_by_doubling() -> None:
    for hosts, rounds in ((2, 1), (4, 2), (3, 3), (8, 3), (9, 5)):
        c = cluster(hosts, 1)
        assert hierarchical(1000, c).total == pytest.approx(rounds * (1000 / 1e8 + 50e-6))


def test_parameter_servers_send_every_ranks_gradients_over_the_link() -> None:
    c = cluster(4, 2)
    # Each host: 2 ranks' gradients, three quarters of them to other hosts, and the sums back.
    assert parameter_server(MIB, c).bandwidth == pytest.approx(2 * 2 * 0.75 * MIB / 1e8)
    dedicated = parameter_server(MIB, cluster(4, 2, servers=2))
    assert dedicated.bandwidth == pytest.approx(2 * 8 * MIB / 2 / 1e8)
    assert dedicated.busy == pytest.approx(dedicated.bandwidth / 2)


def test_negotiation_goes_up_and_down_the_tree_that_the_runtime_builds() -> None:
    assert TREE_FAN_OUT == FAN_OUT
    for hosts in (1, 2, 9, 10, 73, 74, 128):
        members = [[host] for host in range(hosts)]

        def depth(rank: int, members: list[list[int]] = members) -> int:
            parent = tree_edges(members, rank).parent
            return 0 if parent < 0 else 1 + depth(parent)

        levels = max(depth(rank) for rank in range(hosts))
        assert negotiation_seconds(cluster(hosts, 1)) == pytest.approx(2 * levels * 50e-6)


# --- fusion --------------------------------------------------------------------------------------


def fused_by_definition(sizes: list[float], threshold: float) -> list[list[int]]:
    """The text of core/engine/fusion.h, word by word."""
    waiting, responses = list(range(len(sizes))), []
    while waiting:
        fused, seen = [waiting[0]], sizes[waiting[0]]
        for index in waiting[1:]:
            if threshold <= 0 or seen + sizes[index] > threshold:
                break
            fused.append(index)
            seen += sizes[index]
        waiting = [index for index in waiting if index not in fused]
        responses.append(fused)
    return responses


def test_fusion_follows_the_rule_of_the_coordinator() -> None:
    chance = random.Random(5)
    for _ in range(300):
        sizes = [float(chance.choice((0, 1, 5, 20, 90, 200))) for _ in range(chance.randrange(9))]
        threshold = chance.choice((0, 1, 20, 100, 1e9))
        responses = fuse(sizes, threshold)
        assert responses == fused_by_definition(sizes, threshold)
        assert sorted(itertools.chain(*responses)) == list(range(len(sizes)))


# --- a step --------------------------------------------------------------------------------------


def fixed(seconds: float):
    return lambda size, c: Cost(bandwidth=seconds)


def test_an_exchange_after_the_last_gradient_is_all_exposed() -> None:
    program = from_ready_times([("g", 1000, 1.0)], 1.0)
    one = play(program, cluster(2, 1, latency=0), fixed(0.25), AT_ONCE)
    assert one.step == pytest.approx(1.25)
    assert one.efficiency == pytest.approx(0.8)
    assert one.limit == BANDWIDTH


def test_an_exchange_during_the_backward_pass_is_hidden() -> None:
    program = from_ready_times([("late layer", 1000, 0.4), ("early layer", 1000, 1.0)], 1.0)
    one = play(program, cluster(2, 1, latency=0), fixed(0.3), AT_ONCE)
    assert one.step == pytest.approx(1.3)  # only the second one's
    assert one.responses == 2


def test_responses_queue_behind_each_other() -> None:
    program = from_ready_times([(str(i), 1000, 0.1 * i) for i in range(1, 11)], 1.0)
    one = play(program, cluster(2, 1, latency=0), fixed(0.2), AT_ONCE)
    assert one.step == pytest.approx(0.1 + 10 * 0.2)


def test_tensors_within_a_cycle_share_a_response() -> None:
    program = from_ready_times([(str(i), 1000, 0.001 * i) for i in range(1, 11)], 0.01)
    apart = play(program, cluster(2, 1, latency=0), fixed(0.1), Options(1e9, 0.0))
    together = play(program, cluster(2, 1, latency=0), fixed(0.1), Options(1e9, 1.0))
    assert (apart.responses, together.responses) == (10, 1)
    # The cycle is cut short: the rank waits for it.
    assert together.step == pytest.approx(0.01 + 0.1)


def test_a_full_batch_does_not_wait_for_the_cycle() -> None:
    program = from_ready_times([("a", 600, 0.1), ("b", 600, 0.2), ("c", 600, 1.0)], 1.0)
    one = play(program, cluster(2, 1, latency=0), fixed(0.1), Options(1000, 60.0))
    # a and b reach the threshold at 0.2 and do not fit together; c is flushed by the wait.
    assert one.responses == 3
    assert one.step == pytest.approx(1.1)


def test_a_wait_in_the_middle_of_a_step_holds_the_rest_up() -> None:
    program = Program((Submit(0.1, "a", 8), Wait(0.0, "a"), Submit(0.2, "b", 8), Wait(0.0)), 0.5)
    one = play(program, cluster(2, 1, latency=0), fixed(1.0), AT_ONCE)
    assert one.step == pytest.approx(0.1 + 1.0 + 0.2 + 1.0 + 0.5)
    assert one.compute == pytest.approx(0.8)


def test_without_network_a_step_takes_what_a_rank_alone_computes() -> None:
    program = from_ready_times([("a", 1e9, 0.1), ("b", 1e9, 0.5)], 0.7)
    one = play(program, cluster(1, 1), ring)
    assert one.step == pytest.approx(0.7)
    assert (one.efficiency, one.limit) == (pytest.approx(1.0), COMPUTE)


def test_the_limit_is_what_takes_longest() -> None:
    many = from_ready_times([(str(i), 100, 0.01 * i) for i in range(1, 100)], 1.0)
    assert play(many, cluster(64, 1, latency=1e-3), ring, AT_ONCE).limit == LATENCY
    one = from_ready_times([("g", 1e8, 1.0)], 1.0)
    assert play(one, cluster(1, 8, local_bandwidth=1e8), hierarchical).limit == LOCAL
    assert play(one, cluster(1, 8), hierarchical, Options(jitter=0.2)).limit == STRAGGLERS


def test_jitter_makes_all_wait_for_the_slowest_on_average() -> None:
    chance = random.Random(1)
    for ranks in (2, 16, 512):
        drawn = sum(
            max(chance.gauss(0, 1) for _ in range(ranks)) for _ in range(20_000 // ranks + 300)
        ) / (20_000 // ranks + 300)
        assert expected_slowest(ranks) == pytest.approx(drawn, abs=0.12)
    program = from_ready_times([("g", 4, 0.0)], 1.0)
    slow = play(program, cluster(1, 16), fixed(0.0), Options(jitter=0.05))
    assert slow.step == pytest.approx(1 + 0.05 * expected_slowest(16), rel=1e-3)


def test_of_recorded_steps_the_median_counts() -> None:
    programs = [from_ready_times([("g", 4, t)], t) for t in (1.0, 1.1, 9.0)]
    one = predict(programs, cluster(2, 1, latency=0), fixed(0.4), AT_ONCE)
    assert (one.step, one.compute) == (pytest.approx(1.5), pytest.approx(1.1))


@pytest.mark.parametrize(
    "file, line",
    [
        ("base/config.h", f"std::size_t kTreeFanOut = {TREE_FAN_OUT};"),
        (
            "backends/native_allreduce.cpp",
            f"kBlockShareBytes = std::size_t{{{BLOCK_SHARE_BYTES >> 20}}} << 20;",
        ),
        (
            "backends/native_table.cpp",
            f"Collective::kAllreduce, true, {SMALL_BYTES >> 10}_KiB, Algorithm::kLeaders",
        ),
    ],
)
def test_the_model_has_the_engines_constants(file: str, line: str) -> None:
    """The launcher does not load the core, so they stand in both; here they are compared."""
    assert line in (CORE / file).read_text(encoding="utf-8")
