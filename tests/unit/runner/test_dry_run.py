"""The text of --dry-run: complete, and without anything secret."""

from __future__ import annotations

import os

import pytest

from horovod.runner.dry_run import dry_run_text, shown, shown_command
from horovod.runner.hosts import HostInfo, get_host_assignments
from horovod.runner.plan import Plan
from horovod.runner.ssh import SshOptions


def plan_of(hosts: list[HostInfo], num_proc: int, **more) -> Plan:
    known = all(host.slots for host in hosts)
    return Plan(
        num_proc=num_proc,
        hosts=hosts,
        slots=get_host_assignments(hosts, num_proc, num_proc) if known else [],
        command=["python", "train.py", "--name", "two words"],
        variables=more.pop("variables", {}),
        **more,
    )


def text_of(plan: Plan, environment: dict[str, str] | None = None) -> str:
    return dry_run_text(plan, environment or {}, local=lambda target: target == "localhost")


def test_hosts_ranks_and_commands_are_printed() -> None:
    hosts = [HostInfo("localhost", 1), HostInfo("me@node-2", 3), HostInfo("node3", 1)]
    text = text_of(plan_of(hosts, 3, ssh=SshOptions(2222, "/keys/id", True)))
    lines = text.splitlines()
    assert lines[0] == "Nothing is started. This is what horovodrun would do."
    for expected in (
        "    host       slots  ranks  reached",
        "    localhost  1      1      here",
        "    me@node-2  3      2      by ssh",
        "    node3      1      0      not used",
        "    rank  host       local rank  cross rank",
        "    0     localhost  0           0",
        "    1     me@node-2  0           1",
        "    2     me@node-2  1           0",
        f"Command of each rank, in {os.getcwd()}:",
        "    python train.py --name 'two words'",
        "    HOROVOD_SIZE=3",
        "    _HOROVOD_SECRET_KEY=<redacted>",
        "    localhost: an agent as a child of this process",
    ):
        assert expected in lines
    ssh = next(line for line in lines if line.startswith("    me@node-2: "))
    assert ssh.startswith("    me@node-2: ssh ")
    assert "-p 2222" in ssh and "-i /keys/id" in ssh and "horovod.runner.agent" in ssh
    assert not any(line.startswith("    node3: ") for line in lines)


def test_what_is_not_known_before_hosts_are_asked_is_said() -> None:
    text = text_of(plan_of([HostInfo("node1", 0), HostInfo("node2", 2)], 4))
    assert "    node1  asked  ?      by ssh" in text
    assert "known when the hosts without slots have been asked" in text
    assert "    node1: ssh " in text


def test_the_environment_is_sorted_and_its_secrets_are_not_shown() -> None:
    environment = {
        "ZED": "1",
        "AWS_SECRET_ACCESS_KEY": "planted",
        "wandb_api_key": "planted",
        "GH_TOKEN": "planted",
        "DB_PASSWORD": "planted",
        "GOOGLE_APPLICATION_CREDENTIALS": "planted",
        "PIP_INDEX_URL": "https://me:planted@pypi.example/simple",
        "PROXY": "see http://planted@proxy:3128",
        "HOROVOD_CYCLE_TIME": "7",
        "LINES": "one\ntwo",
        "LONG": "x" * 5000,
    }
    text = text_of(
        plan_of([HostInfo("localhost", 1)], 1, variables={"HOROVOD_CYCLE_TIME": "2.0"}),
        environment,
    )
    assert "planted" not in text
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("Environment of this"))
    names = [line.strip().partition("=")[0] for line in lines[begin + 1 : lines.index("", begin)]]
    assert names == sorted(set(environment) - {"HOROVOD_CYCLE_TIME"})
    assert "    HOROVOD_CYCLE_TIME=2.0" in lines and "HOROVOD_CYCLE_TIME=7" not in text
    assert r"    LINES='one\ntwo'" in lines
    assert "    LONG=" + "x" * 200 + "... (5000 characters)" in lines


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["a", "--api-key", "planted", "b"], "a --api-key <redacted> b"),
        (["env", "API_KEY=planted", "a"], "env API_KEY=<redacted> a"),
        (["a", "--token=planted"], "a --token=<redacted>"),
        (["a", "--store", "s3://u:planted@h/x"], "a --store <redacted>"),
        (["a", "--use-key", "--lr", "0.1"], "a --use-key --lr 0.1"),
    ],
)
def test_secrets_of_the_command_are_not_shown(command: list[str], expected: str) -> None:
    assert shown_command(command) == expected


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert shown("A", "\udcff") == r"'\udcff'"
    assert shown("A", "grün") == "grün"
