"""HOROVOD_METRICS_PORT in real jobs: every rank is scraped while it runs, and what is read is what it did."""

from __future__ import annotations

import socket
import sys
import urllib.request

from launcher_process import RunningJob, launch, wait_until
from prometheus_client.parser import text_string_to_metric_families

HERE = "127.0.0.1"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

JOB = """
import os, sys, time
import numpy as np
import horovod.numpy as hvd

def work(steps):
    for _ in range(steps):
        hvd.allreduce(np.ones(1000, np.float32), name="a")
        hvd.grouped_allreduce([np.ones(10, np.float32)] * 3, name="g")
    hvd.broadcast(np.ones(4, np.float64), 0, name="b")

for steps in (5, 7):
    hvd.init()
    work(steps)
    print("ready", steps, flush=True)
    while not os.path.exists(f"{sys.argv[1]}.{steps}"):
        time.sleep(0.05)
    hvd.shutdown()
"""


def free_ports(count: int) -> int:
    """The first of some ports in a row that nobody holds."""
    for _ in range(100):
        with socket.create_server((HERE, 0)) as probe:
            first = probe.getsockname()[1]
        try:
            for port in range(first, first + count):
                socket.create_server((HERE, port)).close()
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def scrape(port: int) -> Samples:
    with urllib.request.urlopen(f"http://{HERE}:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def refuses(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HERE, port)) != 0


def labels(rank: int, host: str = "localhost", **more: str) -> frozenset[tuple[str, str]]:
    return frozenset({"rank": str(rank), "host": host, **more}.items())


def test_every_rank_says_what_it_did_and_begins_anew_with_each_init(tmp_path) -> None:
    port = free_ports(2)
    flags = ("-np", "2", "--metrics-port", str(port))
    with RunningJob(*flags, sys.executable, "-c", JOB, str(tmp_path / "go")) as job:
        for steps in (5, 7):
            job.wait_for_lines(f"ready {steps}", 2)
            for rank in range(2):
                found = scrape(port + rank)
                # A training step has one "a" and three members of the group.
                assert (
                    found["horovod_operations_total", labels(rank, kind="allreduce")] == 4 * steps
                )
                assert found["horovod_operations_total", labels(rank, kind="broadcast")] == 1
                size = 4 * (1000 + 3 * 10) * steps
                assert found["horovod_input_bytes_total", labels(rank, kind="allreduce")] == size
                assert found["horovod_operations_failed_total", labels(rank)] == 0
                assert found["horovod_world_size", labels(rank)] == 2
                assert found["horovod_steps_total", labels(rank)] == steps
                assert found["horovod_wait_seconds_total", labels(rank)] > 0
                responses = found["horovod_responses_total", labels(rank)]
                assert 1 <= responses <= 4 * steps + 1
                assert found["horovod_execution_seconds_count", labels(rank)] == responses
                inf = labels(rank, le="+Inf")
                assert found["horovod_response_tensors_bucket", inf] == responses
                assert found["horovod_negotiation_seconds_bucket", inf] == 4 * steps + 1
                counts = [
                    (float(dict(key)["le"]), value)
                    for (name, key), value in found.items()
                    if name == "horovod_execution_seconds_bucket"
                ]
                values = [value for _, value in sorted(counts)]
                assert values == sorted(values) and len(values) > 3
            (tmp_path / f"go.{steps}").touch()
        code, _, err = job.finish()
    assert code == 0, err
    assert refuses(port) and refuses(port + 1)


def test_a_port_in_use_is_one_line_and_training_goes_on() -> None:
    code = (
        "import numpy as np, horovod.numpy as hvd\n"
        "hvd.init()\n"
        "print(hvd.allreduce(np.ones(2), name='a', op=hvd.Sum).tolist())\n"
    )
    port = free_ports(2)
    with socket.create_server((HERE, port + 1)):
        done = launch("-np", "2", "--metrics-port", str(port), sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"[2.0, 2.0]") == 2
    lines = [line for line in done.stderr.decode().splitlines() if "metrics" in line]
    assert len(lines) == 1
    for part in ("[1]<stderr>", "rank 1 on host localhost", str(port + 1), "already in use"):
        assert part in lines[0]


def test_data_loaders_forked_after_init_neither_serve_nor_hold_the_port() -> None:
    code = (
        "import os, sys, numpy as np, horovod.numpy as hvd\n"
        "hvd.init()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    import signal; signal.pause()\n"
        "hvd.shutdown()\n"
        "import socket\n"
        "port = int(sys.argv[1]) + int(os.environ['HOROVOD_LOCAL_RANK'])\n"
        "print('port is free', socket.socket().connect_ex(('127.0.0.1', port)) != 0, flush=True)\n"
        "hvd.init()\n"
        "print('serves again', socket.socket().connect_ex(('127.0.0.1', port)) == 0, flush=True)\n"
        "hvd.shutdown()\n"
        "os.kill(child, 9)\n"
    )
    port = str(free_ports(2))
    done = launch("-np", "2", "--metrics-port", port, sys.executable, "-c", code, port)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"port is free True") == 2, done.stdout
    assert done.stdout.count(b"serves again True") == 2, done.stdout
    assert b"metrics" not in done.stderr


def test_a_job_with_metrics_ends_by_itself_without_shutdown() -> None:
    port = free_ports(2)
    code = "import horovod.numpy as hvd; hvd.init(); print('done', flush=True)"
    done = launch("-np", "2", "--metrics-port", str(port), sys.executable, "-c", code)
    assert (done.returncode, done.stdout.count(b"done")) == (0, 2), done.stderr
    wait_until(lambda: refuses(port))
