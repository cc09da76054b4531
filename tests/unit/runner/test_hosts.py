"""Host lists, host files, and which rank goes where."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from horovod.runner.common.util import hosts as upstream_path
from horovod.runner.hosts import (
    HostInfo,
    get_host_assignments,
    is_this_machine,
    parse_host_files,
    parse_hosts,
    parse_hosts_and_slots,
    read_hostfile,
)


def test_host_lists_are_read() -> None:
    assert parse_hosts("a-1:2,b.c:4,[::1]:1") == [
        HostInfo("a-1", 2), HostInfo("b.c", 4), HostInfo("::1", 1)
    ]  # fmt: skip
    assert parse_hosts_and_slots("a:2,b:4") == (["a", "b"], {"a": 2, "b": 4})
    assert upstream_path.HostInfo.from_string("a:3").slots == 3


@pytest.mark.parametrize("text", ["", "a/b", "a:", "a:x", "a:1,", ":2", "a b:1", "::1:2", "a:-1"])
def test_what_is_no_host_list_is_refused(text: str) -> None:
    expected = "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."
    with pytest.raises(ValueError) as raised:
        parse_hosts(text)
    assert str(raised.value).startswith(expected)


def test_host_files_allow_comments_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# all\n\na slots=2\n  b.c   slots = 3 # fast\r\n[fe80::1] slots=1\n")
    assert read_hostfile(str(path)) == [
        HostInfo("a", 2), HostInfo("b.c", 3), HostInfo("fe80::1", 1)
    ]  # fmt: skip
    assert parse_host_files(str(path)) == "a:2,b.c:3,[fe80::1]:1"


def test_ranks_fill_hosts_in_order_and_know_their_cross_ranks() -> None:
    slots = get_host_assignments(parse_hosts("a:1,b:3,c:2"), 6)
    seen = [
        (s.hostname, s.rank, s.local_rank, s.local_size, s.cross_rank, s.cross_size) for s in slots
    ]
    assert seen == [
        ("a", 0, 0, 1, 0, 3),
        ("b", 1, 0, 3, 1, 3),
        ("b", 2, 1, 3, 0, 2),
        ("b", 3, 2, 3, 0, 1),
        ("c", 4, 0, 2, 2, 3),
        ("c", 5, 1, 2, 1, 2),
    ]
    assert slots[4].to_response_string() == "4,6,0,2,2,3"


def test_no_more_processes_than_asked_for_are_placed() -> None:
    slots = get_host_assignments(parse_hosts("a:2,b:2"), 3, 3)
    assert [(s.hostname, s.size, s.local_size) for s in slots] == [
        ("a", 3, 2), ("a", 3, 2), ("b", 3, 1)
    ]  # fmt: skip
    assert len(get_host_assignments(parse_hosts("a:2,b:2"), 3)) == 4


def test_more_processes_than_slots_are_refused() -> None:
    text = r"Requested more processes \(5\) than there are available slots \(4\)"
    with pytest.raises(ValueError, match=text):
        get_host_assignments(parse_hosts("a:2,b:2"), 5)


@pytest.mark.parametrize(
    "name", ["localhost", "127.0.0.1", "127.0.0.9", "::1", socket.gethostname()]
)
def test_names_of_this_machine_are_known(name: str) -> None:
    assert is_this_machine(name)


@pytest.mark.parametrize("name", ["192.0.2.222", "no-such-host.invalid", "x" * 300])
def test_other_hosts_are_not_this_machine(name: str) -> None:
    assert not is_this_machine(name)
