"""Jobs over several hosts: real ssh between network namespaces with their own names and interfaces."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts_rig import LAUNCHER, Rig, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(180),
]

SUM = """
import json, os, socket, sys
import numpy as np
import horovod.numpy as hvd
hvd.init()
total = hvd.allreduce(np.full(1000, hvd.rank() + 1.0), op=hvd.Sum)
rows = hvd.allgather(np.full((hvd.rank() + 1, 2), hvd.rank()))
print(json.dumps({
    "rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(), "local_size": hvd.local_size(),
    "cross_rank": hvd.cross_rank(), "cross_size": hvd.cross_size(), "host": os.environ["HOROVOD_HOSTNAME"],
    "machine": socket.gethostname(), "sum": float(total[0]), "rows": rows[:, 0].tolist(),
}), flush=True)
"""

STEPS = """
import sys, time
import numpy as np
import horovod.numpy as hvd
hvd.init()
values = np.ones(10_000, np.float32)
step = 0
try:
    while True:
        hvd.allreduce(values, name="step")
        step += 1
        if step == 50 and hvd.rank() == 0:
            open(sys.argv[1], "w").close()
        time.sleep(0.01)
except hvd.HorovodInternalError as error:
    print(f"raised at {time.time():.3f}: {error}", flush=True)
    sys.exit(3)
"""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig(3) as made:
        yield made


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def reports(done: subprocess.CompletedProcess[bytes]) -> list[dict]:
    """What the ranks of `SUM` have printed, by rank."""
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
    found = [json.loads(text) for text in re.findall(r"\{.*\}", done.stdout.decode())]
    return sorted(found, key=lambda report: report["rank"])


def error_of(done: subprocess.CompletedProcess[bytes]) -> str:
    assert done.returncode != 0, done.stdout.decode()
    return done.stderr.decode()


# --- jobs that work --------------------------------------------------------------------------------


def test_unequal_slots_on_three_hosts(rig: Rig) -> None:
    found = reports(rig.launch("-np", "4", "-H", "node0:1,node1:2,node2:1", *python(SUM)))
    assert [report["host"] for report in found] == ["node0", "node1", "node1", "node2"]
    assert [report["machine"] for report in found] == ["node0", "node1", "node1", "node2"]
    assert [report["local_rank"] for report in found] == [0, 0, 1, 0]
    assert [report["local_size"] for report in found] == [1, 2, 2, 1]
    assert [(report["cross_rank"], report["cross_size"]) for report in found] == [
        (0, 3),
        (1, 3),
        (0, 1),
        (2, 3),
    ]
    for report in found:
        assert report["sum"] == 10.0
        assert report["rows"] == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]


def test_fewer_processes_than_slots(rig: Rig) -> None:
    found = reports(rig.launch("-np", "2", "-H", "node1:4,node2:4", *python(SUM)))
    assert [report["host"] for report in found] == ["node1", "node1"]
    assert [report["size"] for report in found] == [2, 2]


def test_only_other_hosts_by_address_and_user(rig: Rig) -> None:
    hosts = f"{rig.hosts[1].address}:1,root@node2:1"
    found = reports(rig.launch("-np", "2", "-H", hosts, *python(SUM)))
    assert [report["host"] for report in found] == [rig.hosts[1].address, "node2"]
    assert [report["machine"] for report in found] == ["node1", "node2"]


def test_a_host_without_slots_has_as_many_as_cores(rig: Rig, tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# two machines\r\nnode1\r\n\r\nnode2 slots=1\r\n")
    cores = len(os.sched_getaffinity(0))
    found = reports(rig.launch("-np", str(cores + 1), "--hostfile", str(hostfile), *python(SUM)))
    assert [report["host"] for report in found] == ["node1"] * cores + ["node2"]
    done = rig.launch("-np", str(cores + 2), "--hostfile", str(hostfile), "true")
    assert f"({cores + 2}) than there are available slots ({cores + 1})" in error_of(done)


def test_a_name_that_is_known_later() -> None:
    with Rig(2, unresolved=["node1"]) as rig:
        timer = threading.Timer(15, rig.resolve, ["node1"])
        timer.start()
        done = rig.launch("-np", "1", "-H", "node1:1", "hostname")
        timer.join()
    assert done.stdout == b"[0]<stdout>:node1\n"
    assert b"waiting for host node1" in done.stderr


def test_values_of_any_bytes_arrive(rig: Rig, tmp_path: Path) -> None:
    values = {
        b"BASH_FUNC_greet%%": b"() {  echo 'hello'; }",
        b"WITH.DOTS-and-dashes": b"a.b",
        b"NEWLINES": b"one\ntwo\r\n",
        b"QUOTES": b"'\"`$(false)\\ $HOME ! %s",
        b"BYTES": bytes(range(1, 256)),
        b"EMPTY": b"",
        b"LONG": b"x" * 100_000,
        b"LONG_TOO": b"y" * 100_000,
    }
    words = [b"", b"a b", b"'", b'"', b"$HOME", b"*", b"\xff\xfe", b"new\nline"]
    place = tmp_path / "values"
    place.write_text(repr(values))
    show = (
        "import os, sys; print(repr((dict(os.environb), [os.fsencode(a) for a in sys.argv[1:]])))"
    )
    # The values are set behind whatever starts the launcher there.
    launch = (
        "import os, sys; os.environb.update(eval(open(sys.argv[1]).read()));"
        "os.execv(sys.argv[2], sys.argv[2:])"
    )
    flags = [
        *rig.ssh_flags(),
        "-np",
        "1",
        "-H",
        "node1:1",
        "--output-filename",
        str(tmp_path / "out"),
    ]
    command = [*python(launch, str(place)), *LAUNCHER, *flags, *python(show)]
    argv = [os.fsencode(word) for word in rig.argv(rig.hosts[0], command)] + words
    done = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found, arguments = eval((tmp_path / "out" / "rank.0" / "stdout").read_text())
    assert {name: found.get(name) for name in values} == values
    assert arguments == words


def test_masks_and_logins_of_this_host_stay_here(rig: Rig) -> None:
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "5",
        "HOSTNAME": "wrong",
        "SSH_CONNECTION": "wrong",
        "KEPT": "yes",
    }
    show = (
        "import os; print([os.environ.get(n) for n in ('CUDA_VISIBLE_DEVICES', 'HOSTNAME', 'KEPT')],"
        "'wrong' in os.environ.get('SSH_CONNECTION', ''))"
    )
    done = rig.launch("-np", "2", "-H", "node0:1,node1:1", *python(show), env=environment)
    assert sorted(done.stdout.decode().splitlines()) == [
        "[0]<stdout>:['5', 'wrong', 'yes'] True",
        "[1]<stdout>:[None, None, 'yes'] False",
    ]


# --- secrets ---------------------------------------------------------------------------------------


def test_the_key_of_a_job_is_seen_by_its_workers_alone(rig: Rig, tmp_path: Path) -> None:
    code = (
        "import os, sys, time; file = open(sys.argv[1] + '/' + os.environ['HOROVOD_RANK'], 'w');"
        "file.write(f'{os.getpid()} ' + os.environ['_HOROVOD_SECRET_KEY']); file.close(); time.sleep(60)"
    )
    command = [*LAUNCHER, *rig.ssh_flags(), "--verbose", "-np", "2", "-H", "node0:1,node1:1"]
    job = rig.start(
        rig.hosts[0],
        *command,
        *python(code, str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while len(written := [p.read_text().split() for p in tmp_path.iterdir()]) < 2 or not all(
        written
    ):
        assert time.monotonic() < deadline and job.poll() is None
        time.sleep(0.05)
    key = written[0][1]
    assert key == written[1][1] and len(key) == 44
    holders = {"cmdline": set(), "environ": set()}
    for process in Path("/proc").glob("[0-9]*"):
        for kind, found in holders.items():
            try:
                if key.encode() in (process / kind).read_bytes():
                    found.add(int(process.name))
            except OSError:
                continue
    job.send_signal(signal.SIGINT)
    out, err = job.communicate(timeout=30)
    assert holders == {"cmdline": set(), "environ": {int(pid) for pid, _ in written}}
    assert key.encode() not in out + err
    assert job.returncode == 130


# --- what is missing -------------------------------------------------------------------------------


def test_what_is_missing_on_a_host_is_one_sentence(rig: Rig, tmp_path: Path) -> None:
    done = rig.launch("-np", "2", "-H", "node0:1,node1:1", "/no/such/train.sh")
    assert re.search(
        r"on host node\d could not be started: the command '/no/such/train.sh'", error_of(done)
    )

    done = rig.launch("-np", "1", "-H", "node1:1", "true", "-i", "/dev/null")
    assert done.returncode == 0  # flags after the command are the command's

    (tmp_path / "here").mkdir()
    inner = f'cd {tmp_path}/here && exec "$@"'
    with Rig(2) as other:
        other.hosts[1].hidden.append(str(tmp_path))
        other.restart_sshd(other.hosts[1])
        command = [
            "sh",
            "-c",
            inner,
            "sh",
            *LAUNCHER,
            *other.ssh_flags(),
            "-np",
            "1",
            "-H",
            "node1:1",
            "pwd",
        ]
        done = subprocess.run(
            other.argv(other.hosts[0], command), capture_output=True, timeout=60, check=False
        )
    assert f"working directory {tmp_path}/here" in error_of(done) and "node1" in error_of(done)


def test_a_host_without_horovod_or_python(tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    with Rig(2) as rig:
        remote = rig.hosts[1]
        remote.hidden.append(sys.prefix)
        # What is found instead is the Python that this environment was made of.
        for path, reason in (
            (
                f"{sys.base_prefix}/bin:/usr/bin:/bin",
                "its Python has no horovod: install the same version",
            ),
            (str(tmp_path), f"it has no Python: neither {sys.executable} nor python3"),
        ):
            rig.restart_sshd(remote, f"SetEnv PATH={path}")
            error = error_of(rig.launch("-np", "1", "-H", "node1:1", "true"))
            assert f"Host node1: {reason}" in error


def test_a_key_that_is_refused_and_a_host_that_is_unknown(rig: Rig, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    flags = ["-p", "2222", "-i", str(other), "--ssh-accept-new-host-keys"]
    command = [*LAUNCHER, *flags, "-np", "1", "-H", "node1:1", "true"]
    started = time.monotonic()
    done = subprocess.run(
        rig.argv(rig.hosts[0], command), capture_output=True, timeout=60, check=False
    )
    assert re.search(r"Host node1: ssh was refused: a key .*Permission denied", error_of(done))

    with Rig(2) as fresh:
        command = [
            *LAUNCHER,
            "-p",
            "2222",
            "-i",
            str(fresh.identity),
            "-np",
            "1",
            "-H",
            "node1:1",
            "true",
        ]
        done = subprocess.run(
            fresh.argv(fresh.hosts[0], command), capture_output=True, timeout=60, check=False
        )
    error = error_of(done)
    assert re.search(
        r"Host node1: ssh does not know its host key.*--ssh-accept-new-host-keys", error
    )
    assert time.monotonic() - started < 60


def test_a_host_that_never_answers(rig: Rig) -> None:
    done = rig.launch("--start-timeout", "2", "-np", "2", "-H", "node0:1,no-such-host:1", "true")
    error = error_of(done)
    assert "Timed out waiting for the agent of no-such-host" in error
    assert "Could not resolve hostname" in error


def test_interfaces_are_a_filter(rig: Rig) -> None:
    own = rig.hosts[0].interface
    found = reports(
        rig.launch("--network-interfaces", own, "-np", "2", "-H", "node0:1,node1:1", *python(SUM))
    )
    assert [report["sum"] for report in found] == [3.0, 3.0]
    done = rig.launch("--network-interfaces", "nic9", "-np", "2", "-H", "node0:1,node1:1", "true")
    assert "no interface 'nic9'" in error_of(done) and own in error_of(done)


# --- ends ------------------------------------------------------------------------------------------


def test_exit_codes_and_output_come_back(rig: Rig) -> None:
    code = "import os, sys; print('to stdout'); print('to stderr', file=sys.stderr); sys.exit(7)"
    done = rig.launch("-np", "1", "-H", "node1:1", *python(code))
    assert done.returncode == 7
    assert b"[0]<stdout>:to stdout" in done.stdout and b"[0]<stderr>:to stderr" in done.stderr
    assert b"Rank 0 on host node1 exited with status 7." in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_launcher_ends(rig: Rig, tmp_path: Path, signum: int) -> None:
    code = "import sys, time; open(sys.argv[1] + '/x', 'w').close(); time.sleep(100)"
    command = [*LAUNCHER, *rig.ssh_flags(), "-np", "2", "-H", "node1:1,node2:1"]
    job = rig.start(
        rig.hosts[0],
        *command,
        *python(code, str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "x").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    job.send_signal(signum)
    job.communicate(timeout=30)
    while not all(rig.is_empty(host) for host in rig.hosts):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("how", ["link", "sshd"])
def test_a_host_that_dies_in_mid_training(tmp_path: Path, how: str) -> None:
    mark = tmp_path / "trains"
    with Rig(3) as rig:
        command = [*LAUNCHER, *rig.ssh_flags(), "-np", "3", "-H", "node0:1,node1:1,node2:1"]
        job = rig.start(
            rig.hosts[0],
            *command,
            *python(STEPS, str(mark)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 60
        while not mark.exists():
            assert time.monotonic() < deadline and job.poll() is None
            time.sleep(0.05)
        died = time.time()
        (rig.cut if how == "link" else rig.kill_sshd)(rig.hosts[2])
        out, err = job.communicate(timeout=60)
        text = out.decode() + err.decode()
        assert job.returncode != 0
        raised = re.findall(r"\[([01])\]<stdout>:raised at (\d+\.\d+): (.*)", text)
        assert {rank for rank, _, _ in raised} == {"0", "1"}, text
        for _, at, message in raised:
            assert "node2" in message
            # Not a measurement: without the watch it would be minutes, or for ever.
            assert float(at) - died < 20
        print(how, [round(float(at) - died, 2) for _, at, _ in raised])
        deadline = time.monotonic() + 60
        while not all(rig.is_empty(host) for host in rig.hosts):
            assert time.monotonic() < deadline
            time.sleep(0.2)
