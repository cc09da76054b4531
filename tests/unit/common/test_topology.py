"""Who shares memory with whom, and the tree of negotiation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from horovod.common.topology import Member, disagreement, group_hosts, tree_edges


def _member(host: str = "a", machine: str = "m", shares: bool = True, **changes: object) -> Member:
    name = "socket" if shares else None
    member = Member(host, machine, "127.0.0.1", 1, name, 1, 1, [4096, 4], [])
    return member._replace(**changes)


def test_ranks_are_grouped_by_host_in_the_order_of_the_lowest_rank() -> None:
    members = [_member("b"), _member("a"), _member("b"), _member("a")]
    assert group_hosts(members) == [[0, 2], [1, 3]]


def test_equal_names_on_different_machines_are_different_hosts() -> None:
    assert group_hosts([_member(machine="1"), _member(machine="2")]) == [[0], [1]]


def test_a_rank_that_cannot_share_memory_is_a_host_of_its_own() -> None:
    assert group_hosts([_member(), _member(shares=False), _member()]) == [[0, 2], [1]]
    assert group_hosts([_member(shares=False), _member(shares=False)]) == [[0], [1]]


def test_the_tree_is_flat_within_a_host() -> None:
    assert tree_edges([[0, 1, 2]], 0) == (-1, [1, 2])
    assert tree_edges([[0, 1, 2]], 2) == (0, [])


def test_leaders_of_hosts_form_a_tree() -> None:
    hosts = [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert tree_edges(hosts, 0, fan_out=2) == (-1, [1, 2, 4])
    assert tree_edges(hosts, 2, fan_out=2) == (0, [3, 6])
    assert tree_edges(hosts, 6, fan_out=2) == (2, [7])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 4))
def test_every_rank_hangs_on_rank_zero_and_parents_are_lower(
    host_of_rank: list[int], fan_out: int
) -> None:
    hosts = group_hosts([_member(str(host)) for host in host_of_rank])
    trees = [tree_edges(hosts, rank, fan_out) for rank in range(len(host_of_rank))]
    assert trees[0].parent == -1
    for rank, tree in enumerate(trees):
        assert rank == 0 or 0 <= tree.parent < rank
        assert rank == 0 or rank in trees[tree.parent].children
        assert all(trees[child].parent == rank for child in tree.children)


def test_different_process_sets_are_named() -> None:
    members = [_member(process_sets=[[0]]), _member(process_sets=[[0], [1]])]
    text = disagreement(members) or ""
    assert "process_sets of hvd.init(): rank 0 has [[0]], rank 1 has [[0], [1]]" in text
    assert disagreement([members[0], members[0]]) is None
