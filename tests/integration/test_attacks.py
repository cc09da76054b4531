"""Strangers at every listening port of a running job: it must not be harmed, and not grow.

HVD_ATTACK_SECONDS=300 makes it last as long as that; the suite has a few seconds.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hosts_rig import LAUNCHER, Host, Rig, why_not

REASON = why_not()
SECONDS = float(os.environ.get("HVD_ATTACK_SECONDS", "6"))
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(120 + SECONDS),
]
GROWTH_LIMIT = 64 << 20

JOB = """
import os, signal, sys, time
import numpy as np
import horovod.numpy as hvd
hvd.init()
stop = []
signal.signal(signal.SIGUSR1, lambda *_: stop.append(1))
open(f"{sys.argv[1]}/{hvd.rank()}", "w").write(str(os.getpid()))
step = 0
while True:
    total = hvd.allreduce(np.array([step, bool(stop)], np.int64), op=hvd.Sum)
    assert total[0] == step * hvd.size()
    if total[1]:
        break
    step += 1
    time.sleep(0.002)
print(f"steps {step}", flush=True)
"""

# Each stranger is a process on a host that takes no part in the job, with at most 40 connections at a time.
STRANGER = r"""
import json, os, random, socket, struct, sys, time
kind, seconds, targets = sys.argv[1], float(sys.argv[2]), json.loads(sys.argv[3])
rng = random.Random(kind)
end = time.monotonic() + seconds
held, count = [], 0

def connect():
    where = tuple(rng.choice(targets))
    return socket.create_connection(where, 2)

def attack():
    global held
    sock = connect()
    sock.settimeout(1)
    if kind == "garbage":
        sock.sendall(rng.randbytes(rng.randrange(1, 4096)))
    elif kind == "huge":
        sock.sendall(rng.randbytes(32))
        sock.recv(64)
        sock.sendall(b"\xff" * 36 + rng.randbytes(65536))
    elif kind == "wrong key":
        sock.sendall(rng.randbytes(32))
        sock.recv(64)
        sock.sendall(rng.randbytes(32))
        sock.recv(1)
    elif kind == "reflection":
        sock.sendall(rng.randbytes(32))
        sock.sendall(sock.recv(64)[-32:])
        sock.recv(1)
    elif kind == "replay":
        said = globals().setdefault("said", rng.randbytes(64))
        sock.sendall(said)
        sock.recv(64)
    elif kind == "slow":
        sock.sendall(rng.randbytes(1))
        held.append(sock)
        return
    elif kind == "half open":
        held.append(sock)
        return
    sock.close()

while time.monotonic() < end:
    try:
        attack()
        count += 1
    except OSError:
        pass
    if len(held) > 40:
        for sock in held[:20]:
            try:
                sock.send(b"x")
            except OSError:
                pass
            sock.close()
        held = held[20:]
    time.sleep(0.005)
print(count)
"""
Way = Callable[[Rig, Path], list[subprocess.Popen[bytes]]]
KINDS = ("garbage", "huge", "wrong key", "reflection", "replay", "slow", "half open")


def listening(rig: Rig, host: Host) -> list[tuple[str, int]]:
    """The TCP ports at which a host can be reached, its ssh server left out."""
    code = "print(open('/proc/net/tcp').read(), open('/proc/net/tcp6').read())"
    shown = subprocess.run(
        rig.argv(host, [sys.executable, "-c", code]), capture_output=True, text=True, check=True
    )
    found = set()
    for line in shown.stdout.splitlines():
        fields = line.split()
        if len(fields) > 3 and fields[3] == "0A":
            found.add(int(fields[1].rpartition(":")[2], 16))
    return [(host.address, port) for port in sorted(found - {2222})]


def memory_of(pids: list[int]) -> int:
    """Bytes that are resident of these processes."""
    total = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/status").read_text()
        total += int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024
    return total


def start_with_horovodrun(rig: Rig, folder: Path) -> list[subprocess.Popen[bytes]]:
    command = [*LAUNCHER, *rig.ssh_flags(), "-np", "2", "-H", "node0:1,node1:1"]
    return [start(rig, rig.hosts[0], command, folder, {})]


def start_as_srun_does(rig: Rig, folder: Path) -> list[subprocess.Popen[bytes]]:
    """Two tasks with the variables of a step, on two nodes; rank 0 serves the meeting."""
    step = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_STEP_NODELIST": "node[0-1]",
        "SLURM_LOCALID": "0",
        "_HOROVOD_SECRET_KEY": base64.b64encode(os.urandom(32)).decode(),
    }
    return [
        start(
            rig, rig.hosts[i], [], folder, {**step, "SLURM_PROCID": str(i), "SLURM_NODEID": str(i)}
        )
        for i in range(2)
    ]


def start(
    rig: Rig, host: Host, before: list[str], folder: Path, variables: dict[str, str]
) -> subprocess.Popen[bytes]:
    return rig.start(
        host,
        *before,
        *(sys.executable, "-c", JOB, str(folder)),
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.parametrize("way", [start_with_horovodrun, start_as_srun_does])
def test_strangers_at_every_port_harm_nothing(tmp_path: Path, way: Way) -> None:
    with Rig(3) as rig:
        processes = way(rig, tmp_path)
        deadline = time.monotonic() + 60
        while len(pids := [p.read_text() for p in tmp_path.iterdir()]) < 2 or not all(pids):
            assert time.monotonic() < deadline
            assert all(process.poll() is None for process in processes)
            time.sleep(0.05)
        workers = [int(pid) for pid in pids]
        targets = [*listening(rig, rig.hosts[0]), *listening(rig, rig.hosts[1])]
        assert len(targets) == 3, targets  # where ranks meet, and one port of each rank
        watched = [*workers, *(process.pid for process in processes)]
        before = memory_of(watched)
        strangers = [
            rig.start(
                rig.hosts[2],
                *(sys.executable, "-c", STRANGER, kind, str(SECONDS), json.dumps(targets)),
                stdout=subprocess.PIPE,
            )
            for kind in KINDS
        ]
        counts = [int(stranger.communicate(timeout=60 + SECONDS)[0]) for stranger in strangers]
        growth = memory_of(watched) - before
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
        ends = [process.communicate(timeout=60) for process in processes]
    out, err = ("".join(part.decode() for part in parts) for parts in zip(*ends, strict=True))
    print(f"{dict(zip(KINDS, counts, strict=True))}, memory grew by {growth >> 10} KiB")
    assert min(counts) > 0
    assert [process.returncode for process in processes] == [0] * len(processes), err
    steps = [int(n) for n in re.findall(r"steps (\d+)", out)]
    assert len(steps) == 2 and steps[0] == steps[1] and steps[0] > 100
    assert growth < GROWTH_LIMIT
    # One line for each offender, of which there is one address, at each of the three ports.
    complaints = [line for line in err.splitlines() if rig.hosts[2].address in line]
    assert 1 <= len(complaints) <= 3, complaints
