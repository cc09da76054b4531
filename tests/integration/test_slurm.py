"""Jobs that srun starts, in a real SLURM: of one node, and of two in network namespaces."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import hosts_rig
import numpy as np
import pytest
import slurm_cluster

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("numpy_job.py")
LIMIT_SECONDS = 150

pytestmark = [
    pytest.mark.timeout(2 * LIMIT_SECONDS),
    pytest.mark.skipif(
        slurm_cluster.why_not() is not None, reason=str(slurm_cluster.why_not() or "")
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment for srun; the home folder, where the key comes to lie, is a new one."""
    home = tmp_path_factory.mktemp("home")
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as env:
        yield {**env, "HOME": str(home), "PYTHONPATH": os.pathsep.join(paths)}


def run(
    cluster: dict[str, str], folder: Path, *command: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**cluster, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def facts(output: str) -> list[dict[str, object]]:
    lines = (line for line in output.splitlines() if line.startswith("facts "))
    found = [json.loads(line.removeprefix("facts ")) for line in lines]
    return sorted(found, key=lambda fact: (fact["round"], fact["rank"]))


def check_two_rounds(output: str) -> None:
    found = facts(output)
    assert [(fact["round"], fact["rank"]) for fact in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for fact in found:
        assert fact["size"] == 2 and fact["processes"] == 2 and fact["ranks"] == [0, 1]
        assert fact["local"] == [fact["rank"], 2] and fact["cross"] == [0, 1]
        assert fact["sum"] == [3.0] * 5


def test_two_tasks_meet_twice(cluster: dict[str, str], tmp_path: Path) -> None:
    done = run(cluster, tmp_path, "srun", "-n", "2", sys.executable, str(JOB))
    assert done.returncode == 0, done.stdout + done.stderr
    check_two_rounds(done.stdout)
    secret = Path(cluster["HOME"]) / ".horovod" / "secret"
    assert secret.stat().st_mode & 0o777 == 0o600 and secret.stat().st_size == 32


def test_a_key_given_by_the_user_is_used(cluster: dict[str, str], tmp_path: Path) -> None:
    done = run(
        *(cluster, tmp_path, "srun", "-n", "2", sys.executable, str(JOB)),
        HOME="/nonexistent",
        _HOROVOD_SECRET_KEY="AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_two_rounds(done.stdout)


def test_tasks_with_different_keys_say_what_to_do(cluster: dict[str, str], tmp_path: Path) -> None:
    own_home = f'mkdir -p {tmp_path}/$SLURM_PROCID; HOME={tmp_path}/$SLURM_PROCID exec "$@"'
    done = run(
        *(cluster, tmp_path, "srun", "-n", "2", "bash", "-c", own_home, "bash"),
        *(sys.executable, str(JOB)),
        HOROVOD_START_TIMEOUT="4",
        HOROVOD_GLOO_TIMEOUT_SECONDS="4",
    )
    assert done.returncode != 0
    assert 'export _HOROVOD_SECRET_KEY="$(openssl rand -base64 32)" before srun' in done.stderr
    assert "does not hold the key of this job" in done.stderr


def test_the_death_of_a_task_ends_the_step(cluster: dict[str, str], tmp_path: Path) -> None:
    done = run(cluster, tmp_path, "srun", "-n", "2", sys.executable, str(JOB), "--die")
    assert done.returncode in (1, 3)
    assert "HorovodInternalError" in done.stderr


def test_a_single_task_is_a_job_of_one(cluster: dict[str, str], tmp_path: Path) -> None:
    done = run(cluster, tmp_path, "srun", "-n", "1", sys.executable, str(JOB))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [fact["size"] for fact in facts(done.stdout)] == [1, 1]


def test_torchrun_inside_of_one_task_wins(cluster: dict[str, str], tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = run(cluster, tmp_path, "srun", "-n", "1", "-c", "2", *torchrun, str(JOB))
    assert done.returncode == 0, done.stdout + done.stderr
    check_two_rounds(done.stdout)


def write_digits(folder: Path) -> None:
    """IDX files of made-up images: bars whose place is the digit."""
    folder.mkdir()
    random = np.random.default_rng(1)
    for prefix, count in (("train", 400), ("t10k", 100)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = random.integers(0, 60, (count, 28, 28), dtype=np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[:, 2 + 2 * label : 6 + 2 * label] += 180
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape)
            (folder / f"{prefix}-{kind}-ubyte").write_bytes(header + array.tobytes())


def test_the_mnist_example_trains(cluster: dict[str, str], tmp_path: Path) -> None:
    write_digits(tmp_path / "digits")
    done = run(
        *(cluster, tmp_path, "srun", "-n", "2", sys.executable, "-W", "ignore"),
        str(ROOT / "examples" / "pytorch" / "pytorch_mnist.py"),
        *("--data-dir", str(tmp_path / "digits"), "--batch-size", "20", "--epochs", "1"),
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"equal on all 2 rank", done.stdout), done.stdout


def test_the_documented_batch_script_runs(cluster: dict[str, str], tmp_path: Path) -> None:
    text = (ROOT / "docs" / "slurm.md").read_text()
    script = re.search(r"```bash\n(#!/bin/bash\n.*?)```", text, re.S)
    assert script is not None
    lines = script[1].replace("python train.py", f"{sys.executable} {JOB}")
    # This SLURM has one node with two cores, and no accelerator.
    lines = re.sub(r"--nodes=\d+", "--nodes=1", lines)
    lines = re.sub(r"--ntasks-per-node=\d+", "--ntasks-per-node=2", lines)
    lines = re.sub(r"--cpus-per-task=\d+", "--cpus-per-task=1", lines)
    lines = re.sub(r"#SBATCH --gpus.*\n", "", lines)
    (tmp_path / "job.sh").write_text(lines)
    done = run(cluster, tmp_path, "sbatch", "--wait", "--output=out", "job.sh")
    output = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + output
    check_two_rounds(output)


def batch(cluster: dict[str, str], folder: Path, *command: str, **variables: str) -> str:
    """Runs a command in a batch script for two tasks, which must succeed; its output."""
    (folder / "job.sh").write_text(f"#!/bin/bash\nexec {shlex.join(command)}\n")
    options = ("--wait", "--ntasks=2", "--output=out", "job.sh")
    done = run(cluster, folder, "sbatch", *options, **variables)
    output = (folder / "out").read_text() if (folder / "out").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + output
    return output


def test_without_srun_a_batch_script_runs_a_job_of_one(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    found = facts(batch(cluster, tmp_path, sys.executable, str(JOB)))
    assert [fact["size"] for fact in found] == [1, 1]


def test_horovodrun_works_in_a_batch_script(cluster: dict[str, str], tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "horovod.runner", "-np", "2")
    output = batch(cluster, tmp_path, *launcher, sys.executable, str(JOB))
    check_two_rounds(re.sub(r"^\[\d\]<stdout>: ?", "", output, flags=re.M))


@pytest.mark.parametrize("library", ["openmpi", "mpich", "impi-rt"])
def test_mpirun_works_in_a_batch_script(
    cluster: dict[str, str], tmp_path: Path, library: str
) -> None:
    binaries = ROOT / ".venv-bench" / library / "bin"
    if not (binaries / "mpirun").exists():
        pytest.skip(f"{binaries} is absent; tests/integration/test_mpi_launchers.py makes it")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = {"PATH": f"{binaries}{os.pathsep}{cluster['PATH']}"}
    check_two_rounds(
        batch(cluster, tmp_path, "mpirun", "-np", "2", sys.executable, str(JOB), **root, **path)
    )


def test_the_variables_of_pmi2_do_not_stand_for_an_mpi(
    cluster: dict[str, str], tmp_path: Path
) -> None:
    done = run(cluster, tmp_path, "srun", "--mpi=pmi2", "-n", "2", sys.executable, str(JOB))
    assert done.returncode == 0, done.stdout + done.stderr
    check_two_rounds(done.stdout)


# --- two nodes ---------------------------------------------------------------------------------


class TwoNodes:
    """A SLURM whose two nodes have a network and a name of their own."""

    def __init__(self, first: str, wrap: slurm_cluster.Wrap, env: dict[str, str]) -> None:
        self.first = first
        self.wrap = wrap
        self.env = env

    def srun(
        self, folder: Path, *command: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs srun on the first node to its end."""
        return run(self.env, folder, *self.wrap(self.first, ["srun", *command]), **variables)


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    """Skips where there can be no network namespaces."""
    reason = hosts_rig.why_not()
    if reason is not None:
        pytest.skip(reason)
    home = tmp_path_factory.mktemp("home")
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    with hosts_rig.Rig(2) as rig:
        hosts = {host.name: host for host in rig.hosts}

        def wrap(node: str, command: Sequence[str]) -> list[str]:
            # Not by `ip netns exec`: its new /sys lacks the cgroups that slurmd looks for.
            namespace = hosts[node].namespace
            script = (
                f"hostname {node} && mount --bind /etc/netns/{namespace}/hosts /etc/hosts && "
                'exec "$@"'
            )
            return [
                *("nsenter", f"--net=/run/netns/{namespace}", "unshare", "--uts", "--mount"),
                *("sh", "-c", script, "sh", *command),
            ]

        folder = tmp_path_factory.mktemp("slurm2")
        with slurm_cluster.running(folder, list(hosts), wrap) as env:
            python = {"HOME": str(home), "PYTHONPATH": os.pathsep.join(paths)}
            yield TwoNodes(rig.hosts[0].name, wrap, env | python)


@pytest.mark.parametrize(
    ("distribution", "places"),
    [
        ("block", [(0, [0, 2], [0, 2]), (1, [1, 2], [0, 1]), (2, [0, 1], [1, 2])]),
        ("cyclic", [(0, [0, 2], [0, 2]), (1, [0, 1], [1, 2]), (2, [1, 2], [0, 1])]),
    ],
)
def test_ranks_of_two_nodes_meet(
    two_nodes: TwoNodes, tmp_path: Path, distribution: str, places: list[tuple[int, list[int]]]
) -> None:
    command = ("-N", "2", "-n", "3", "-m", distribution, sys.executable, str(JOB))
    done = two_nodes.srun(tmp_path, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    found = facts(done.stdout)
    assert [(fact["rank"], fact["local"], fact["cross"]) for fact in found] == places * 2
    assert all(fact["sum"] == [6.0] * 5 and fact["processes"] == 3 for fact in found)


def test_homes_that_nodes_do_not_share_are_told_with_the_fix(
    two_nodes: TwoNodes, tmp_path: Path
) -> None:
    own_home = f'mkdir -p {tmp_path}/$SLURM_NODEID; HOME={tmp_path}/$SLURM_NODEID exec "$@"'
    task = ("-N", "2", "-n", "2", "bash", "-c", own_home, "bash", sys.executable, str(JOB))
    limits = {"HOROVOD_START_TIMEOUT": "4", "HOROVOD_GLOO_TIMEOUT_SECONDS": "4"}
    done = two_nodes.srun(tmp_path, *task, **limits)
    assert done.returncode != 0
    assert 'export _HOROVOD_SECRET_KEY="$(openssl rand -base64 32)" before srun' in done.stderr
    key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    done = two_nodes.srun(tmp_path, *task, _HOROVOD_SECRET_KEY=key)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(facts(done.stdout)) == 4


@pytest.mark.parametrize("flags", [["--srun"], ["--srun", "-np", "2"]], ids=["all tasks", "two"])
def test_horovodrun_reaches_the_other_node_with_srun(
    two_nodes: TwoNodes, tmp_path: Path, flags: list[str]
) -> None:
    launcher = [sys.executable, "-m", "horovod.runner", *flags, sys.executable, str(JOB)]
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\nexec {shlex.join(launcher)}\n")
    options = ("--wait", "--nodes=2", "--ntasks=3", "--output=out", "job.sh")
    done = run(two_nodes.env, tmp_path, *two_nodes.wrap(two_nodes.first, ["sbatch", *options]))
    output = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
    assert done.returncode == 0, done.stdout + done.stderr + output
    found = facts(re.sub(r"^\[\d\]<stdout>: ?", "", output, flags=re.M))
    size = 2 if "-np" in flags else 3
    assert sorted({fact["rank"] for fact in found}) == list(range(size)), output
    assert all(fact["size"] == size for fact in found)
