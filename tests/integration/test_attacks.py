"""Strangers at every listening port of a running job: it must not be harmed, and not grow.

HVD_ATTACK_SECONDS=300 makes it last as long as that; the suite has a few seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
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


def test_strangers_at_every_port_harm_nothing(tmp_path: Path) -> None:
    with Rig(3) as rig:
        command = [*LAUNCHER, *rig.ssh_flags(), "-np", "2", "-H", "node0:1,node1:1"]
        job = rig.start(
            rig.hosts[0],
            *command,
            *(sys.executable, "-c", JOB, str(tmp_path)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        deadline = time.monotonic() + 60
        while len(pids := [p.read_text() for p in tmp_path.iterdir()]) < 2 or not all(pids):
            assert time.monotonic() < deadline and job.poll() is None
            time.sleep(0.05)
        workers = [int(pid) for pid in pids]
        targets = [*listening(rig, rig.hosts[0]), *listening(rig, rig.hosts[1])]
        assert len(targets) == 3, targets  # the store, and one port of each rank
        watched = [*workers, job.pid]
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
        out, err = job.communicate(timeout=60)
    print(f"{dict(zip(KINDS, counts, strict=True))}, memory grew by {growth >> 10} KiB")
    assert min(counts) > 0
    assert job.returncode == 0, err.decode()
    steps = [int(n) for n in re.findall(r"steps (\d+)", out.decode())]
    assert len(steps) == 2 and steps[0] == steps[1] and steps[0] > 100
    assert growth < GROWTH_LIMIT
    # One line for each offender, of which there is one address, in each of the three processes.
    complaints = [line for line in err.decode().splitlines() if rig.hosts[2].address in line]
    assert 1 <= len(complaints) <= 3, complaints
