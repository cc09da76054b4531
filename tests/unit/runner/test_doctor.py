"""The checks of `horovodrun doctor` with planted inputs, the table, JSON and the exit code."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from horovod.runner import doctor as command
from horovod.runner import doctor_probe
from horovod.runner.doctor_checks import compare, network, resources, software, surroundings
from horovod.runner.doctor_checks.finding import FAILED, OK, SKIPPED, WARNING, Finding, overall
from horovod.runner.doctor_checks.here import Here
from horovod.runner.doctor_hosts import remote_probe, ssh_finding
from horovod.runner.doctor_report import as_json, table
from horovod.runner.launch import run_commandline
from horovod.runner.ssh import SshOptions, over_ssh


def here(root: Path = Path("/no/such"), **planted: Any) -> Here:
    return Here("node1", **{"environment": {}, "root": root, **planted})


def plant(root: Path, **files: str) -> Path:
    """Files by path, with / written as __."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("-DOT-", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def raises(error: Exception) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise error

    return function


# --- software --------------------------------------------------------------------------------------


def test_an_old_python_fails() -> None:
    assert software.python(here(python=(3, 10, 4)))[1:4] == ("node1", FAILED, "3.10.4")
    assert software.python(here(python=(3, 11, 0))).verdict == OK


def test_the_compiled_core_is_looked_for_and_not_imported() -> None:
    asked = []
    found = software.package(here(importable=lambda name: bool(asked.append(name))))
    assert asked == ["horovod._core"]
    assert found.verdict == FAILED
    assert "without its compiled core" in found.found
    assert software.package(here(importable=lambda name: True)).verdict == OK


def test_missing_packages_are_named_as_pip_knows_them() -> None:
    found = software.dependencies(here(importable=lambda name: name not in ("yaml", "msgpack")))
    assert (found.verdict, found.found) == (FAILED, "missing: msgpack, pyyaml")
    assert found.fix == "python -m pip install msgpack pyyaml"


def test_frameworks_by_metadata_and_under_other_names() -> None:
    versions = {"torch": "2.5.0", "tensorflow-cpu": "2.18.0"}
    found = software.frameworks(here(version=versions.get))
    assert found.found == "torch 2.5.0, tensorflow 2.18.0"
    assert software.frameworks(here(version=lambda name: None)).verdict == SKIPPED


@pytest.mark.parametrize(
    ("value", "verdict"),
    [("", OK), ("4", OK), ("4,1", OK), ("5", WARNING), ("many", WARNING), ("-1", WARNING)],
)
def test_threads_against_cores(value: str, verdict: str) -> None:
    found = software.threads(here(environment={"OMP_NUM_THREADS": value}, affinity=4))
    assert found.verdict == verdict
    assert bool(found.fix) == (verdict == WARNING)


# --- resources -------------------------------------------------------------------------------------


def test_the_least_quota_of_cgroup_v2_counts(tmp_path: Path) -> None:
    plant(
        tmp_path,
        proc__self__cgroup="0::/pod/box\n",
        **{
            "sys__fs__cgroup__pod__box__cpu-DOT-max": "max 100000\n",
            "sys__fs__cgroup__pod__cpu-DOT-max": "150000 100000\n",
        },
    )
    found = resources.cores(here(tmp_path, affinity=4, online=8))
    assert found.verdict == WARNING
    assert found.found == "4 usable of 8, the cgroup allows the time of 1.5"
    assert "at most 1 process(es)" in found.fix


def test_the_quota_of_cgroup_v1_in_a_container(tmp_path: Path) -> None:
    plant(
        tmp_path,
        proc__self__cgroup="5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
        **{"sys__fs__cgroup__cpu__cpu-DOT-cfs_quota_us": "800000\n"},
    )
    found = resources.cores(here(tmp_path, affinity=4, online=4))
    assert (found.verdict, found.found) == (OK, "4 usable of 4, the cgroup allows the time of 8")


def test_no_cgroup_is_no_quota() -> None:
    assert resources.cores(here()).verdict == OK


def test_memory_within_the_limit_of_the_cgroup(tmp_path: Path) -> None:
    plant(
        tmp_path,
        proc__meminfo="MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n",
        proc__self__cgroup="0::/\n",
        **{
            "sys__fs__cgroup__memory-DOT-max": str(1 << 30),
            "sys__fs__cgroup__memory-DOT-current": str(900 << 20),
        },
    )
    found = resources.memory(here(tmp_path))
    assert found.verdict == WARNING
    assert found.found == "8.0 GiB free of 16.0, the cgroup allows 1.0 GiB"
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("0")
    assert resources.memory(here(tmp_path)).verdict == OK
    assert resources.memory(here()).verdict == WARNING  # nothing to read


def test_shared_memory() -> None:
    assert resources.shared_memory(here()).verdict == OK
    refused = resources.shared_memory(here(memfd=raises(PermissionError(1, "not permitted"))))
    assert refused.verdict == WARNING
    assert "memfd_create fails: not permitted" in refused.found


def test_limits() -> None:
    low = here(limit=lambda kind: (256, 4096))
    assert resources.open_files(low)[2:4] == (WARNING, "256, at most 4096")
    assert "ulimit -n" in resources.open_files(low).fix
    assert resources.processes(low).verdict == WARNING
    assert resources.locked_memory(low)[2:4] == (OK, "0 KiB, at most 4 KiB")
    free = here(limit=lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for check in (resources.open_files, resources.processes, resources.locked_memory):
        assert check(free)[2:4] == (OK, "unlimited, at most unlimited")


# --- surroundings ----------------------------------------------------------------------------------


def test_own_name() -> None:
    unknown = here(own_name=lambda: "me", resolve=raises(socket.gaierror(-2, "not known")))
    assert surroundings.own_name(unknown)[2:4] == (WARNING, "me does not resolve (not known)")
    known = here(own_name=lambda: "me", resolve=lambda *_: [(2, 1, 6, "", ("10.0.0.1", 0))] * 2)
    assert surroundings.own_name(known).found == "me is 10.0.0.1"


def test_container_hints(tmp_path: Path) -> None:
    assert surroundings.container(here(tmp_path)).found == "no sign of one"
    plant(tmp_path, **{"-DOT-dockerenv": ""}, proc__1__cgroup="0::/kubepods/x")
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    found = surroundings.container(here(tmp_path, environment=environment)).found
    expected = "yes: /.dockerenv, KUBERNETES_SERVICE_HOST, /proc/1/cgroup names kubepods"
    assert found == expected


def test_schedulers() -> None:
    which = {"srun": "/usr/bin/srun", "jsrun": "/opt/jsrun"}.get
    found = surroundings.scheduler(here(which=which, environment={"SLURM_JOB_ID": "12"}))
    assert found[2:4] == (OK, "SLURM (srun, SLURM_JOB_ID=12), LSF (jsrun)")
    assert surroundings.scheduler(here(which=lambda name: None)).verdict == SKIPPED


def test_mpi() -> None:
    which = {"mpirun": "/opt/mpirun"}.get
    absent = raises(OSError("no such library"))
    said = surroundings.mpi(here(which=which, command=lambda words: "MPI 4\nmore", load=absent))
    assert said[2:4] == (OK, "/opt/mpirun: MPI 4; libmpi is not found")
    broken = surroundings.mpi(here(which=which, command=raises(OSError("bad")), load=absent))
    assert broken[2:4] == (WARNING, "/opt/mpirun does not work: bad")
    nothing = surroundings.mpi(here(which=lambda name: None, load=absent))
    assert nothing.verdict == SKIPPED
    library = surroundings.mpi(here(which=lambda name: None, load=lambda name: None))
    assert library.found == "libmpi.so.40, no mpirun in the PATH"


# --- all checks of a host --------------------------------------------------------------------------


def test_a_check_that_breaks_or_hangs_is_a_finding_and_hides_no_other() -> None:
    released = threading.Event()

    def breaks(_: Here) -> Finding:
        raise RuntimeError("oh")

    def hangs_for_long(_: Here) -> Finding:
        released.wait(30)
        return Finding("late", "node1", OK, "")

    found = doctor_probe.run_checks(here(), [breaks, hangs_for_long, resources.cores], 0.3)
    released.set()
    assert [(entry.name, entry.verdict) for entry in found] == [
        ("breaks", FAILED),
        ("hangs for long", FAILED),
        ("cores", OK),
    ]
    assert "RuntimeError: oh" in found[0].found
    assert "no answer within 0.3 s" in found[1].found


def test_the_probe_answers_between_noise_until_its_input_ends() -> None:
    requests = [{"id": 1, "do": "time"}, {"id": 2, "do": "dance"}, {"id": 3, "do": "check"}]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "horovod.runner.doctor_probe"],
        input="".join(json.dumps({"host": "here", **request}) + "\n" for request in requests),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    replies = [
        json.loads(line.removeprefix(doctor_probe.MARK))
        for line in done.stdout.splitlines()
        if line.startswith(doctor_probe.MARK)
    ]
    assert "hello" in replies[0]
    assert abs(replies[1]["time"] - time.time()) < 60
    assert "'dance'" in replies[2]["refused"]
    assert {entry[1] for entry in replies[3]["findings"]} == {"here"}
    assert len(replies[3]["findings"]) == len(doctor_probe.CHECKS)


def test_thread_settings_of_the_launcher_win_over_those_of_the_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(doctor_probe.run_checks, "__defaults__", ((software.threads,), 5))
    passed_on = {"OMP_NUM_THREADS": "99999"}
    reply = doctor_probe.answer({"do": "check", "host": "n1", "environment": passed_on})
    assert reply["findings"][0][2:4] == [WARNING, "OMP_NUM_THREADS=99999 exceeds the cores"]


# --- between hosts ---------------------------------------------------------------------------------


def facts(**changed: Any) -> compare.Facts:
    return compare.Facts(**{"python": "3.11.2", "horovod": "1.0", "frameworks": {}, **changed})


def test_equal_versions_are_one_line() -> None:
    both = {"a": facts(frameworks={"torch": "2.5"}), "b": facts(frameworks={"torch": "2.5"})}
    (found,) = compare.same_versions("a", both)
    assert found[1:4] == ("all", OK, "python 3.11.2, horovod 1.0, torch 2.5 on 2 hosts")
    assert compare.same_versions("a", {"a": facts()})[0].verdict == SKIPPED


def test_versions_that_differ_name_the_host() -> None:
    hosts = {
        "a": facts(frameworks={"torch": "2.5"}),
        "b": facts(horovod="0.9"),
        "c": facts(python="3.12.1", frameworks={"torch": "2.5"}),
        "d": facts(python="3.11.9", frameworks={"torch": "2.5"}),
    }
    found = [(f.host, f.verdict, f.found) for f in compare.same_versions("a", hosts)]
    assert found == [
        ("b", FAILED, "horovod 0.9, the launcher has 1.0"),
        ("b", WARNING, "torch missing; the launcher has torch 2.5"),
        ("c", WARNING, "python 3.12.1, the launcher has 3.11.2"),
    ]


def test_the_quickest_sample_decides_about_the_clock() -> None:
    samples = [(100.0, 190.0, 110.0), (200.0, 200.06, 200.1)]
    assert compare.clock("node1", samples)[2:4] == (
        OK,
        "+0.010 s from the launcher's (+- 0.050 s)",
    )
    assert compare.clock("node1", [(100.0, 97.0, 100.0)]).verdict == WARNING


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7])
def test_every_pair_meets_once_and_no_host_is_busy_twice(count: int) -> None:
    hosts = [f"n{index}" for index in range(count)]
    rounds = network.rounds(hosts)
    for pairs in rounds:
        names = [name for pair in pairs for name in pair]
        assert len(names) == len(set(names))
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == count * (count - 1) // 2


def test_a_transfer_between_two_threads() -> None:
    port = network.listen("secret")
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"wrong!")
        assert stranger.recv(1) == b""
    measured = network.send(["127.0.0.1"], port, "secret", 0.05)
    assert measured.error == ""
    assert measured.gbit > 0
    with pytest.raises(OSError):  # it has gone after one sender
        socket.create_connection(("127.0.0.1", port), 1)


def test_an_address_that_refuses_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    measured = network.send(["127.0.0.1"], port, "secret", 0.05)
    found = network.judge("a -> b", measured, None)
    assert found[1:4] == (
        "a -> b",
        FAILED,
        "cannot be reached: 127.0.0.1: Connection refused",
    )
    assert "firewall" in found.fix and "--network-interfaces" in found.fix
    assert network.send([], port, "secret").error == "it has no address other than loopback"


def test_slow_networks_are_warned_of() -> None:
    slow = network.judge("a -> b", network.Measurement("10.0.0.1", 0.094, 0.2), None)
    assert slow[2:4] == (WARNING, "0.09 Gbit/s to 10.0.0.1, connected in 0.2 ms")
    assert network.judge("a -> b", network.Measurement("10.0.0.1", 9.4, 0.2), None).fix == ""


def test_names_and_ssh() -> None:
    error = socket.gaierror(-2, "not known")
    assert command.name_finding("me@n1", ["10.0.0.1"], True).found == "is 10.0.0.1"
    assert command.name_finding("me@n1", error, True).verdict == OK  # an alias of ssh
    failed = command.name_finding("me@n1", error, False)
    assert failed[1:3] == ("me@n1", FAILED)
    assert failed.found == "n1 does not resolve on the launcher's host (not known)"
    assert "takes too long" in command.name_finding("n1", None, False).found


@pytest.mark.parametrize(
    ("code", "words", "found", "fix"),
    [
        (255, "Host key verification failed.", "does not know its host key", "--ssh-accept-new"),
        (255, "root@n1: Permission denied (publickey).", "ssh was refused", "without passphrase"),
        (255, "connect to host n1 port 22: Connection refused", "Connection refused", "sshd"),
        (255, "Could not resolve hostname n1", "not resolve", "/etc/hosts"),
        (255, "connect to host n1 port 22: Connection timed out", "timed out", "is the host up?"),
        (127, "sh: python3: not found", "it has no Python", "install it there"),
        (2, "Unknown option: -P\nusage: python3", "older than 3.11", "Python 3.11"),
        (1, "No module named 'horovod'", "no horovod", "install the same version"),
        (1, "No module named horovod.runner.doctor_probe", "another version", "install horovod"),
        (1, "File \"/x/horovod/a.py\"\nNo module named 'yaml'", "package yaml", "pip install"),
        (3, "boom", "status 3: boom", ""),
    ],
)
def test_why_there_is_no_probe(code: int, words: str, found: str, fix: str) -> None:
    finding = ssh_finding("n1", code, words, None)
    assert (finding.name, finding.host, finding.verdict) == ("ssh", "n1", FAILED)
    assert found in finding.found
    assert fix in finding.fix
    assert finding.fix


def test_the_remote_command_is_one_word_for_the_shell() -> None:
    command = over_ssh("node1", remote_probe(), SshOptions(), {})
    assert command[-2] == "node1" and command[-1].startswith("sh -c 'p=")
    assert command[-1].endswith("-P -m horovod.runner.doctor_probe'")


# --- table, JSON and exit code ---------------------------------------------------------------------

SOME = [
    Finding("python", "node1", OK, "3.11.7"),
    Finding("ssh", "a-host-with-a-very-long-name.example.com", FAILED, "x" * 300, "word " * 60),
    Finding("cores", "node1", WARNING, "esc \x1b[31m", "less"),
]


def test_the_table_is_not_wider_than_asked_and_wraps_fixes() -> None:
    text = table(SOME, 100)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["VERDICT", "HOST", "CHECK", "FOUND"]
    assert lines[1].split() == ["ok", "node1", "python", "3.11.7"]
    assert text.count("fix: ") == 2
    assert "\x1b" not in text
    assert lines[-1] == "3 checks: 1 failed, 1 warning, 1 ok"


def test_json_has_every_field() -> None:
    content = json.loads(as_json("node0", SOME))
    assert (content["verdict"], content["launcher"]) == ("failed", "node0")
    assert [Finding(**entry) for entry in content["findings"]] == SOME


def test_the_worst_verdict_counts() -> None:
    assert overall([]) == OK
    assert overall([Finding("a", "b", SKIPPED, "")]) == OK
    assert overall([*SOME[:1], SOME[2]]) == WARNING
    assert overall(SOME) == FAILED


@pytest.mark.parametrize(("verdict", "code"), [(OK, 0), (WARNING, 0), (SKIPPED, 0), (FAILED, 1)])
def test_only_a_failure_makes_the_exit_code(
    verdict: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def planted(_: Here) -> Finding:
        return Finding("planted", "here", verdict, "something")

    monkeypatch.setattr(doctor_probe, "run_checks", lambda where: [planted(where)])
    assert run_commandline(["doctor", "--json"]) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["findings"][0]["name"] == "planted"
    assert "checking 1 host ..." in err


def test_wrong_hosts_are_an_error_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_commandline(["doctor", "-H", "node1:x"]) == 1
    assert "expected the number of slots" in capsys.readouterr().err
    assert run_commandline(["doctor", "--hostfile", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leave:
        run_commandline(["doctor", "--help"])
    assert leave.value.code == 0
    assert "horovodrun doctor -H node1:2,node2:2" in capsys.readouterr().out
