"""`horovodrun doctor` between network namespaces, with one fault planted at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts_rig import LAUNCHER, Host, Rig, why_not

import horovod

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(120),
]
PACKAGE_ROOT = str(Path(horovod.__file__).resolve().parents[1])


@pytest.fixture(scope="module")
def healthy() -> Iterator[Rig]:
    with Rig(3) as made:
        yield made


@pytest.fixture
def rig(healthy: Rig) -> Iterator[Rig]:
    """Three hosts; what a test has done to the second is undone."""
    yield healthy
    host = healthy.hosts[1]
    host.hidden.clear()
    healthy.restart_sshd(host)


def run(rig: Rig, *arguments: str, flags: list[str] | None = None) -> subprocess.CompletedProcess:
    ssh = rig.ssh_flags() if flags is None else flags
    command = rig.argv(rig.hosts[0], [*LAUNCHER, "doctor", *ssh, *arguments])
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def findings(done: subprocess.CompletedProcess) -> dict[tuple[str, str], dict[str, Any]]:
    """By host and check."""
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["launcher"] == "node0"
    assert done.returncode == (1 if report["verdict"] == "failed" else 0), done.stdout
    return {(entry["host"], entry["name"]): entry for entry in report["findings"]}


def expect(
    done: subprocess.CompletedProcess, host: str, check: str, verdict: str, found: str, fix: str
) -> dict[tuple[str, str], dict[str, Any]]:
    """The planted fault is named; the other hosts have been checked all the same."""
    by_key = findings(done)
    entry = by_key[host, check]
    assert (entry["verdict"], found in entry["found"], fix in entry["fix"]) == (
        verdict,
        True,
        True,
    ), entry
    assert by_key["node0", "python"]["verdict"] == "ok"
    assert by_key["node0", "horovod"]["verdict"] == "ok"
    bad = {
        key for key, entry in by_key.items() if entry["verdict"] == "failed" and host not in key[0]
    }
    assert not {key for key in bad if key[0] == "node0"}, bad
    return by_key


def only_path_python(rig: Rig, path: str, *hidden: str) -> Host:
    """Takes this environment away from the second host; what is left is the python3 of `path`."""
    host = rig.hosts[1]
    host.hidden += hidden
    # The start file of root's shell may put other places first.
    command = f'PATH={path}; export PATH; eval "$SSH_ORIGINAL_COMMAND"'
    rig.restart_sshd(host, f"ForceCommand /bin/sh -c '{command}'")
    return host


def wrap_python(rig: Rig, folder: Path, shell: str = ":", python: str = "") -> None:
    """The second host's Python does `shell` and `python` first."""
    (folder / "bin").mkdir()
    wrapper = folder / "bin" / "python3"
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    wrapper.write_text(
        f'#!/bin/sh\n{shell}\nPYTHONPATH="{folder}:$PYTHONPATH" exec {base} "$@"\n', "ascii"
    )
    wrapper.chmod(0o755)
    (folder / "sitecustomize.py").write_text(
        f"import site\nsite.addsitedir({sysconfig.get_path('purelib')!r})\n{python}\n"
    )
    only_path_python(rig, f"{folder}/bin:/usr/bin:/bin", f"{sys.prefix}/bin")


# --- nothing is wrong ------------------------------------------------------------------------------


def test_three_healthy_hosts(healthy: Rig) -> None:
    done = run(healthy, "-H", "node0:1,node1:1,root@node2:1", "--json")
    by_key = findings(done)
    assert done.returncode == 0
    for host in ("node0", "node1", "root@node2"):
        for check in ("python", "horovod", "packages", "cores", "memory", "open files", "GPU"):
            assert by_key[host, check]["verdict"] in ("ok", "skipped", "warning"), (host, check)
    for host in ("node1", "root@node2"):
        assert [by_key[host, check]["verdict"] for check in ("ssh", "name", "clock")] == ["ok"] * 3
    assert by_key["all", "same versions"]["found"].endswith("on 3 hosts")
    pairs = {host for host, check in by_key if check == "network"}
    assert pairs == {
        f"{a} -> {b}"
        for a in ("node0", "node1", "root@node2")
        for b in ("node0", "node1", "root@node2")
        if a != b
    }
    assert "Gbit/s to 10.77.5.2" in by_key["node0 -> node1", "network"]["found"]
    assert "measuring 3 pairs" in done.stderr


def test_this_host_alone(healthy: Rig) -> None:
    done = run(healthy, flags=[])
    assert done.returncode == 0
    assert "only this host takes part" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_ctrl_c_leaves_nothing_behind(healthy: Rig) -> None:
    words = [*LAUNCHER, "doctor", *healthy.ssh_flags(), "-H", "node1,node2"]
    job = healthy.start(
        healthy.hosts[0], *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert job.stderr is not None
    while "measuring" not in (line := job.stderr.readline()):
        assert line
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=30)
    assert (job.returncode, out) == (130, "")
    assert "Traceback" not in err
    deadline = time.monotonic() + 20
    while not all(healthy.is_empty(host) for host in healthy.hosts):
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- one fault at a time ---------------------------------------------------------------------------


def test_no_sshd(rig: Rig) -> None:
    rig.kill_sshd(rig.hosts[1])
    done = run(rig, "-H", "node1,node2", "--json")
    by_key = expect(done, "node1", "ssh", "failed", "Connection refused", "start sshd")
    assert by_key["node2", "python"]["verdict"] == "ok"
    assert by_key["node1", "network"]["verdict"] == "skipped"


def test_a_host_without_a_network() -> None:
    with Rig(3) as rig:
        rig.cut(rig.hosts[1])
        done = run(rig, "-H", "node1,node2", "--json")
        by_key = expect(done, "node1", "ssh", "failed", "ssh cannot connect", "is the host up?")
        assert by_key["node2 -> node0", "network"]["verdict"] == "ok"


def test_a_name_that_nobody_knows(healthy: Rig) -> None:
    done = run(healthy, "-H", "node9,node2", "--json")
    expect(done, "node9", "name", "failed", "node9 does not resolve", "/etc/hosts")
    expect(done, "node9", "ssh", "failed", "Could not resolve hostname", "spelling")


def test_a_key_that_is_refused(healthy: Rig, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    flags = ["-p", "2222", "-i", str(other), "--ssh-accept-new-host-keys"]
    done = run(healthy, "-H", "node1", "--json", flags=flags)
    expect(done, "node1", "ssh", "failed", "Permission denied", "a key without passphrase")


def test_a_host_key_that_is_unknown(healthy: Rig) -> None:
    (healthy.identity.parent / "known_hosts.node0").unlink(missing_ok=True)
    done = run(healthy, "-H", "node1", "--json", flags=["-p", "2222", "-i", str(healthy.identity)])
    expect(
        done, "node1", "ssh", "failed", "does not know its host key", "--ssh-accept-new-host-keys"
    )


def test_no_python(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    only_path_python(rig, str(tmp_path), sys.prefix)
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "ssh", "failed", "it has no Python", "install it there")


def test_no_horovod(rig: Rig) -> None:
    only_path_python(rig, f"{sys.base_prefix}/bin:/usr/bin:/bin", sys.prefix, PACKAGE_ROOT)
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "ssh", "failed", "its Python has no horovod", "install the same version")


def test_a_missing_package(rig: Rig, tmp_path: Path) -> None:
    find = "import importlib.util as u\nreal = u.find_spec\n"
    hide = "u.find_spec = lambda name, *rest: None if name == 'yaml' else real(name, *rest)"
    wrap_python(rig, tmp_path, python=find + hide)
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "packages", "failed", "missing: pyyaml", "pip install pyyaml")


def test_another_version_of_horovod(rig: Rig, tmp_path: Path) -> None:
    wrap_python(rig, tmp_path, python="import horovod\nhorovod.__version__ = '0.9.9'")
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "same versions", "failed", "horovod 0.9.9", "install horovod")


def test_another_version_of_a_framework(rig: Rig, tmp_path: Path) -> None:
    wrap_python(rig, tmp_path)
    (tmp_path / "torch-9.9.9.dist-info").mkdir()
    (tmp_path / "torch-9.9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n"
    )
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "same versions", "warning", "torch 9.9.9", "the same version of torch")


def test_more_threads_than_cores(rig: Rig) -> None:
    rig.restart_sshd(rig.hosts[1], "SetEnv OMP_NUM_THREADS=4096")
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "threads", "warning", "OMP_NUM_THREADS=4096 exceeds", "unset OMP")


def test_few_open_files(rig: Rig, tmp_path: Path) -> None:
    wrap_python(rig, tmp_path, shell="ulimit -n 256")
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "open files", "warning", "256", "ulimit -n")


def test_no_memfd(rig: Rig, tmp_path: Path) -> None:
    refuse = (
        "import os\ndef refuse(name):\n    raise PermissionError(1, 'Operation not permitted')\n"
    )
    wrap_python(rig, tmp_path, python=refuse + "os.memfd_create = refuse")
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "shared memory", "warning", "Operation not permitted", "seccomp")


def test_another_clock(rig: Rig, tmp_path: Path) -> None:
    shift = "import time\nreal = time.time\ntime.time = lambda: real() + 100"
    wrap_python(rig, tmp_path, python=shift)
    done = run(rig, "-H", "node1", "--json")
    expect(done, "node1", "clock", "warning", "+100.", "chrony")


def test_two_hosts_that_do_not_reach_each_other(healthy: Rig) -> None:
    inside = ["ip", "netns", "exec", healthy.hosts[1].namespace, "ip", "route"]
    route = ["unreachable", f"{healthy.hosts[2].address}/32"]
    subprocess.run([*inside, "add", *route], check=True)
    try:
        done = run(healthy, "-H", "node1,node2", "--json")
    finally:
        subprocess.run([*inside, "delete", *route], check=True)
    by_key = expect(done, "node1 -> node2", "network", "failed", "No route to host", "firewall")
    assert by_key["node2 -> node1", "network"]["verdict"] == "failed"
    for pair in ("node0 -> node1", "node1 -> node0", "node0 -> node2", "node2 -> node0"):
        assert by_key[pair, "network"]["verdict"] == "ok", pair


def test_an_interface_that_a_host_has_not(healthy: Rig) -> None:
    own = healthy.hosts[0].interface
    done = run(healthy, "-H", "node1", "--network-interfaces", own, "--json")
    expect(
        done,
        "node0 -> node1",
        "network",
        "failed",
        f"node1 has no address on interface(s) {own}",
        "--network-interfaces",
    )


def test_a_slow_link() -> None:
    with Rig(2) as rig:
        rig.limit("100mbit")
        done = run(rig, "-H", "node1", "--json")
        expect(done, "node0 -> node1", "network", "warning", "0.", "ethtool")


def test_a_shell_that_talks(rig: Rig, tmp_path: Path) -> None:
    noise = "echo 'Welcome to node1'; printf 'no newline'; echo 'and here' >&2"
    wrap_python(rig, tmp_path, shell=noise)
    by_key = findings(run(rig, "-H", "node1", "--json"))
    assert by_key["node1", "python"]["verdict"] == "ok"
    assert by_key["node1", "ssh"]["verdict"] == "ok"


def test_the_table_names_host_and_fix(rig: Rig) -> None:
    rig.kill_sshd(rig.hosts[1])
    environment = {**os.environ, "COLUMNS": "80"}
    command = [*LAUNCHER, "doctor", *rig.ssh_flags(), "-H", "node1"]
    done = subprocess.run(
        rig.argv(rig.hosts[0], command),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("failed"))
    assert line.split()[1:3] == ["node1", "ssh"]
    assert "fix: start sshd there" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
