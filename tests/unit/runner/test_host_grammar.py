"""The grammar of host lists and host files (docs/hosts.md): what is read, and how it is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from horovod.runner.host_grammar import INVALID, MAX_SLOTS
from horovod.runner.hosts import (
    UNKNOWN_SLOTS,
    HostInfo,
    format_hosts,
    get_host_assignments,
    host_name,
    parse_host_files,
    parse_hosts,
    parse_hosts_and_slots,
    read_host_lines,
    read_hostfile,
)


def lines(text: str | bytes) -> list[tuple[str, int]]:
    data = text if isinstance(text, bytes) else text.encode()
    return [tuple(host) for host in read_host_lines("hosts", data)]


def refused_list(text: str) -> str:
    with pytest.raises(ValueError) as raised:
        parse_hosts(text)
    return str(raised.value)


def refused_file(text: str | bytes) -> str:
    with pytest.raises(ValueError) as raised:
        lines(text)
    return str(raised.value)


@pytest.mark.parametrize(
    ("text", "target", "slots"),
    [
        ("node1:2", "node1", 2),
        ("node1.example.com:2", "node1.example.com", 2),
        ("node1.example.com.:2", "node1.example.com.", 2),
        ("gpu_node-07:2", "gpu_node-07", 2),
        ("10.0.0.1:16", "10.0.0.1", 16),
        ("[::1]:1", "::1", 1),
        ("[fe80::1%eth0]:4", "fe80::1%eth0", 4),
        ("[0:0::1]:1", "::1", 1),
        ("me@node1:2", "me@node1", 2),
        ("me.too-1@[fe80::1%eth0]:2", "me.too-1@fe80::1%eth0", 2),
        (" node1:02\t", "node1", 2),
        (f"node1:{MAX_SLOTS}", "node1", MAX_SLOTS),
    ],
)
def test_every_form_of_a_host_is_read(text: str, target: str, slots: int) -> None:
    assert parse_hosts(text) == [HostInfo(target, slots)]
    assert HostInfo.from_string(text) == HostInfo(target, slots)
    assert lines(f"{text} # comment\r\n") == [(target, slots)]
    bare = text.strip().rpartition(":")[0]
    assert parse_hosts(bare) == [HostInfo(target, UNKNOWN_SLOTS)]
    assert lines(f"{bare}\tslots = {slots}\n") == [(target, slots)]


def test_a_host_file_with_everything_in_it() -> None:
    text = (
        "\ufeff# the cluster\r\n\r\n \t\r\n"
        "node1 slots=2\r\n"
        "\tnode2\tslots = 3\tmax_slots = 4 # fast\n"
        "me@node3 max-slots=9 slots=9\n"
        "node4:5 max_slots=5#tight\n"
        "[fe80::1%eth0] slots=1\n"
        "node6"
    )
    assert lines(text) == [
        ("node1", 2), ("node2", 3), ("me@node3", 9), ("node4", 5), ("fe80::1%eth0", 1), ("node6", 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("", 1, "expected a host such as node1"),
        (",a:1", 1, "expected a host such as"),
        ("a:1,", 5, "found the end"),
        ("a:1,,b:1", 5, "expected a host such as"),
        ("a:", 3, "expected the number of slots, a number from 1 to 65535, found the end"),
        ("a:x", 3, "found 'x'"),
        ("a:-1", 3, "found '-1'"),
        ("a:0", 3, "at least one slot"),
        ("a:1,b:65536", 7, "a number from 1 to 65535, found '65536'"),
        ("a:" + "9" * 5000, 3, "a number from 1 to 65535"),
        ("a:2 b:2", 5, "expected ',' and the next host, or the end, found 'b:2'"),
        ("a b:1", 3, "expected ':' and the number of slots, ','"),
        ("a:٣", 3, "a number from 1"),
        (":2", 1, "expected a host such as"),
        ("::1:2", 1, "expected a host such as"),
        ("fe80::1:2", 1, "an IPv6 address in brackets, as in [fe80::1%eth0]:2"),
        ("[fe80::1:2", 1, "an IPv6 address in brackets"),
        ("[::zz]:1", 1, "an IPv6 address in brackets"),
        ("[1::2::3]:1", 1, "an IPv6 address in brackets"),
        ("[node1]:1", 1, "an IPv6 address in brackets"),
        ("-oProxyCommand=x:1", 1, "expected a host such as"),
        ("me@:1", 4, "expected a host such as"),
        ("me@-x:1", 4, "expected a host such as"),
        ("a@b@c:1", 4, "found '@c:1'"),
        ("4", 1, "an IPv4 address of four numbers"),
        ("300.0.0.1:1", 1, "an IPv4 address of four numbers"),
        ("a..b:1", 1, "without an empty part"),
        ("a-:1", 1, "no '-' at its end"),
        ("knöten:1", 3, "found 'öten:1'"),
        ("a/b:1", 2, "found '/b:1'"),
        ("a slots=2", 3, "found 'slots=2'"),
    ],
)
def test_what_is_no_host_list_has_a_column(text: str, column: int, expected: str) -> None:
    message = refused_list(text)
    assert message.startswith(INVALID + f" Column {column} of ")
    assert expected in message


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("a slots=2\nb slots=two\n", "2:9", "expected the value of slots, a number from 1"),
        ("a slots=0\n", "1:9", "at least one slot"),
        ("a slots=1e3\n", "1:10", "found 'e3'"),
        ("a slots\n", "1:8", "expected '=' after slots, found the end"),
        ("a  slot=2\n", "1:4", "expected slots=N, max_slots=N, a comment with # or the end of the"),
        ("a slots=2 slots=3\n", "1:11", "expected slots only once"),
        ("a:2 slots=3\n", "1:5", "expected slots only once"),
        ("a max_slots=2\n", "1:1", "expected slots=N beside max_slots=2 of host 'a'"),
        ("\n  a slots=4 max-slots=3\n", "2:3", "at least slots for 'a', found 3 < 4"),
        ("a b\n", "1:3", "found 'b'"),
        ("a,b\n", "1:2", "found ',b'"),
        ("a:2slots=3\n", "1:4", "found 'slots=3'"),
        ("slots=2\n", "1:6", "found '=2'"),
        ("fe80::1 slots=2\n", "1:1", "an IPv6 address in brackets"),
        ("a\u00a0slots=2\n", "1:2", r"found '\xa0slots=2'"),
        ("a slots=2\rb slots=2\n", "1:10", r"found '\rb slots=2'"),
        (b"# \xc3\xa4\n\xc3\xa4\xff\n", "2:2", "expected UTF-8, found byte 0xff"),
        ("a\0\n", "1:2", r"found '\x00'"),
        ("# nothing\n\n", "3:1", "no host in this file"),
        ("", "1:1", "no host in this file"),
        ("a slots=1\nb\na\n", "3:1", "always with or always without slots; it stands in hosts:1"),
        ("a slots=1 max_slots=2\na slots=2\n", "2:1", "at most 2 slots for host 'a', found 3"),
        (f"a slots={MAX_SLOTS}\na slots=1\n", "2:1", f"at most {MAX_SLOTS} slots for host 'a'"),
    ],
)
def test_what_is_wrong_in_a_host_file_has_line_and_column(text, place, expected) -> None:
    message = refused_file(text)
    assert message.startswith(f"hosts:{place}: ")
    assert expected in message


def test_duplicates_are_merged_into_the_first_with_a_note(tmp_path: Path) -> None:
    notes: list[str] = []
    assert parse_hosts("a:1,b:2,a:3", notes.append) == [HostInfo("a", 4), HostInfo("b", 2)]
    assert parse_hosts("a,a", notes.append) == [HostInfo("a", UNKNOWN_SLOTS)]
    path = tmp_path / "hosts"
    path.write_text("a slots=1\n\na slots=1\n")
    assert read_hostfile(str(path), notes.append) == [HostInfo("a", 2)]
    again = "column 1 of the host list already; they are merged"
    assert notes == [
        f"column 9 of the host list: host 'a' stands in {again}, 4 slots in all",
        f"column 3 of the host list: host 'a' stands in {again}, counted once",
        f"{path}:3: host 'a' stands in {path}:1 already; they are merged, 2 slots in all",
    ]


def test_slots_that_are_not_known_stay_so_until_they_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("me@[::2]\nb:2\n")
    assert parse_host_files(str(path)) == "me@[::2],b:2"
    with pytest.raises(ValueError, match=r"not known of: me@::2; give it, as in me@\[::2\]:2"):
        get_host_assignments(read_hostfile(str(path)), 1)


def test_upstreams_functions_want_slots() -> None:
    for read in (HostInfo.from_string, parse_hosts_and_slots):
        with pytest.raises(ValueError, match=re.escape(INVALID)):
            read("a")
    with pytest.raises(ValueError, match="expected the end, found ',b:1'"):
        HostInfo.from_string("a:1,b:1")


def test_the_user_is_no_part_of_the_name() -> None:
    assert [host_name(target) for target in ("me@node1", "node1", "me@fe80::1%eth0")] == [
        "node1", "node1", "fe80::1%eth0"
    ]  # fmt: skip


ALPHABET = st.characters(codec="utf-8") | st.sampled_from("abAZ019_.-:@[]%,=# \t\r\n\0lotsmax")


@given(st.text(ALPHABET))
@example("a@[::1%]:1")
def test_any_host_list_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        hosts = parse_hosts(text)
    except ValueError as error:
        assert re.match(re.escape(INVALID) + r" Column [1-9]\d* of ", str(error))
    else:
        assert parse_hosts(format_hosts(hosts)) == hosts


@given(st.binary() | st.text(ALPHABET).map(str.encode))
def test_any_host_file_is_read_or_refused_with_a_place(data: bytes) -> None:
    try:
        hosts = read_host_lines("hosts", data)
    except ValueError as error:
        assert re.match(r"hosts:[1-9]\d*:[1-9]\d*: ", str(error))
    else:
        assert parse_hosts(format_hosts(hosts)) == hosts


NAMES = (
    st.from_regex(r"[a-z_][a-z0-9_-]*[a-z0-9_](\.[a-z][a-z0-9]*)*", fullmatch=True)
    | st.ip_addresses(v=4).map(str)
    | st.ip_addresses(v=6).map(str)
    | st.ip_addresses(v=6).map(lambda address: f"{address}%eth0")
)
USERS = st.just("") | st.from_regex(r"[a-z_][a-z0-9_.-]*@", fullmatch=True)


@given(st.dictionaries(st.builds(str.__add__, USERS, NAMES), st.integers(0, MAX_SLOTS), min_size=1))
def test_what_is_written_is_read_again(slots: dict[str, int]) -> None:
    hosts = [HostInfo(*item) for item in slots.items()]
    text = format_hosts(hosts)
    assert parse_hosts(text) == hosts
    assert read_host_lines("hosts", text.replace(",", "\n").encode()) == hosts


def test_the_examples_of_the_documentation_are_as_it_says() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "hosts.md").read_text()
    hosts_txt, _, errors = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    assert lines(hosts_txt) == [
        ("node1", 2), ("me@node2", 4), ("10.0.0.7", 2), ("fe80::1%eth0", 2), ("node5", 0)
    ]  # fmt: skip
    in_second, in_fifth, in_list = errors.splitlines()
    assert refused_file("a\nnode2 slot=2").partition(":")[2] == in_second.partition(":")[2]
    in_file = refused_file("a\nb\nc\nd\nnode5 slots=4 max_slots=2")
    assert in_file.partition(":")[2] == in_fifth.partition(":")[2]
    assert refused_list("node1:2,node2:x").startswith(in_list.removesuffix("..."))
