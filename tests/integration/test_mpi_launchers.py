"""Jobs that the real mpirun of Open MPI, MPICH and Intel MPI starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hosts_rig
import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / ".venv-bench"
JOB = Path(__file__).with_name("numpy_job.py")
INSTALL_SECONDS = 240
LIMIT_SECONDS = 60
LIBRARIES = ("openmpi", "mpich", "impi-rt")

pytestmark = pytest.mark.timeout(INSTALL_SECONDS + 2 * LIMIT_SECONDS)

WITHOUT_LOCAL_VARIABLES = (
    "unset OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS; "
    'exec "$@"'
)
TWO_HOSTS = (
    "export HOROVOD_HOSTNAME=host${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; " + WITHOUT_LOCAL_VARIABLES
)
LATE = """
import os, sys, time
import horovod.numpy as hvd
hvd.init()
rank = hvd.rank()
hvd.shutdown()
if rank == 1:
    time.sleep(60)
try:
    hvd.init()
except hvd.HorovodInternalError as error:
    print(error, flush=True)
    os._exit(5)
"""
TOGETHER = """
import sys
import numpy as np
import horovod.numpy as hvd
if "--horovod-first" in sys.argv:
    hvd.init()
    hvd.shutdown()
from mpi4py import MPI
world = MPI.COMM_WORLD
for _ in range(2):
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (world.rank, world.size) == (world.rank, 2)
    assert world.allreduce(world.rank + 1) == 3
    assert hvd.allreduce(np.array([hvd.rank() + 1.0]), op=hvd.Sum).tolist() == [3.0]
    hvd.shutdown()
sys.stdout.write("together\\n")
"""
# Every process of the machine can be seen here, ssh and the agents of mpirun too.
SEEKS_SECRETS = """
import glob, os, sys
secret = os.environ["JOB_TOKEN"].encode()
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        line = open(path, "rb").read()
    except OSError:
        continue
    if secret in line:
        sys.exit(f"found in {path}: {line}")
"""
FUNCTION = """
import contextlib, glob, os, sys
import horovod
def train(fails):
    import numpy as np
    import horovod.numpy as hvd
    hvd.init()
    total = hvd.allreduce(np.array([hvd.rank() + 1.0]), op=hvd.Sum)
    key = os.environ["_HOROVOD_SECRET_KEY"].encode()
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            assert key not in file.read(), path
    if fails and hvd.rank() == 1:
        raise KeyError("enough")
    facts = (hvd.rank(), hvd.size(), float(total[0]))
    hvd.shutdown()
    return facts
results = horovod.run(train, ("--raise" in sys.argv,), num_proc=2, use_mpi=True)
sys.stdout.write(f"results {results}\\n")
"""


@pytest.fixture(scope="module", params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Path:
    """The folder of an environment with an MPI and mpi4py; made if it is not there."""
    folder = ENVIRONMENTS / request.param
    if not (folder / "installed.txt").exists():
        script = ROOT / "benchmarks" / "mpi_environments.py"
        try:
            done = subprocess.run(
                [sys.executable, str(script), request.param],
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"{folder} could not be made within {INSTALL_SECONDS} s")
        if not (folder / "installed.txt").exists():
            pytest.skip(f"{folder} could not be made: {(done.stdout + done.stderr)[-500:]}")
    return folder


def mpirun(
    library: Path,
    *command: str,
    processes: int = 2,
    wrap: Callable[[list[str]], list[str]] = list,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end; only mpirun itself tells where its library lies."""
    words = [str(library / "bin" / "mpirun"), "-np", str(processes), *command]
    return run(library, wrap(words), **variables)


def horovodrun(
    library: Path,
    *arguments: str,
    wrap: Callable[[list[str]], list[str]] = list,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs horovodrun --mpi, which finds the mpirun of the library in the PATH."""
    words = [sys.executable, "-m", "horovod.runner", "--mpi", *arguments]
    return run(library, wrap(words), **variables)


def run(library: Path, argv: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    env = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    env |= {
        # The mpirun of Intel MPI is a script that looks for its parts there.
        "PATH": f"{library / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    return subprocess.run(
        argv,
        env=env | variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )


def facts(output: str) -> list[dict[str, object]]:
    """What every rank said in every round. Launchers pass on pieces: a line may begin in another."""
    decoder = json.JSONDecoder()
    found = [decoder.raw_decode(piece)[0] for piece in output.split("facts ")[1:]]
    return sorted(found, key=lambda fact: (fact["round"], fact["rank"]))


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("processes", [2, 3])
def test_a_job_runs_twice_in_its_processes(library: Path, processes: int) -> None:
    oversubscribe = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}  # Open MPI's
    done = mpirun(library, sys.executable, str(JOB), processes=processes, **oversubscribe)
    found = facts(succeeded(done))
    ranks = list(range(processes))
    assert [(fact["round"], fact["rank"]) for fact in found] == [
        (number, rank) for number in range(2) for rank in ranks
    ]
    for fact in found:
        assert fact["size"] == fact["processes"] == processes and fact["ranks"] == ranks
        assert fact["local"][1] == processes and fact["cross"] == [0, 1]
        assert fact["sum"] == [sum(ranks) + processes] * 5
    # With more processes than cores Open MPI numbers them in another order than the ranks.
    for number in range(2):
        assert sorted(fact["local"][0] for fact in found if fact["round"] == number) == ranks
    assert "Warning" not in done.stderr


def test_ranks_of_several_hosts_are_placed_by_their_names(library: Path) -> None:
    command = ("bash", "-c", TWO_HOSTS, "bash", sys.executable, str(JOB))
    found = facts(succeeded(mpirun(library, *command)))
    places = [(fact["rank"], fact["local"], fact["cross"]) for fact in found]
    assert places == [(0, [0, 1], [0, 2]), (1, [0, 1], [1, 2])] * 2


def test_ranks_of_one_host_are_placed_without_local_variables(library: Path) -> None:
    command = ("bash", "-c", WITHOUT_LOCAL_VARIABLES, "bash", sys.executable, str(JOB))
    found = facts(succeeded(mpirun(library, *command)))
    places = [(fact["rank"], fact["local"], fact["cross"]) for fact in found]
    assert places == [(0, [0, 2], [0, 1]), (1, [1, 2], [0, 1])] * 2


def test_one_process_is_a_job_of_one(library: Path) -> None:
    found = facts(succeeded(mpirun(library, sys.executable, str(JOB), processes=1)))
    assert [fact["size"] for fact in found] == [1, 1]


@pytest.mark.parametrize("end", ["--die", "--raise", "--leave"])
def test_the_end_of_a_rank_ends_the_job(library: Path, end: str) -> None:
    started = time.monotonic()
    done = mpirun(library, sys.executable, str(JOB), end)
    assert done.returncode != 0
    assert time.monotonic() - started < LIMIT_SECONDS / 2
    assert len(facts(done.stdout)) == 4


def test_a_rank_that_does_not_come_is_named(library: Path) -> None:
    limits = {"HOROVOD_START_TIMEOUT": "2", "HOROVOD_GLOO_TIMEOUT_SECONDS": "2"}
    done = mpirun(library, sys.executable, "-c", LATE, **limits)
    assert done.returncode != 0
    assert "over MPI for rank(s) [1]" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("first", ["--horovod-first", "--mpi4py-first"])
def test_mpi4py_works_beside_it(library: Path, first: str) -> None:
    packages = f"{library}/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    if not Path(packages).exists():
        pytest.skip(f"mpi4py was installed for another Python than {sys.version.split()[0]}")
    paths = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    done = mpirun(
        *(library, sys.executable, "-c", TOGETHER, first),
        PYTHONPATH=os.pathsep.join([*paths, packages]),
        LD_LIBRARY_PATH=f"{library}/lib",  # for mpi4py, which lies in another environment here
    )
    assert succeeded(done).count("together") == 2


def test_without_the_library_the_error_says_where_it_was_looked_for(
    library: Path,
) -> None:
    code = "import horovod.numpy as hvd; from horovod.common.bootstrap import libmpi; "
    code += "libmpi.FILE_NAMES = ('libelsewhere.so',); hvd.init()"
    command = ("bash", "-c", WITHOUT_LOCAL_VARIABLES, "bash", sys.executable, "-c", code)
    done = mpirun(library, *command)
    assert done.returncode != 0
    assert "the MPI library that belongs to it was not found" in done.stderr
    assert str(library / "lib") in done.stderr and "LD_LIBRARY_PATH" in done.stderr


def test_a_library_that_does_not_fit_mpirun_is_an_error(library: Path) -> None:
    if library.name != "openmpi":
        pytest.skip("MPICH and Intel MPI understand each other")
    # An Open MPI that does not hear of the launcher takes each process for a job of its own.
    command = ("bash", "-c", 'unset ${!PMIX_*} ${!OMPI_MCA_*}; exec "$@"', "bash")
    done = mpirun(library, *command, *(sys.executable, str(JOB)))
    assert done.returncode != 0
    assert "it does not belong to the mpirun that started this process" in done.stderr


# --- horovodrun --mpi --------------------------------------------------------------------------


def test_horovodrun_starts_it(library: Path) -> None:
    flags = ("-np", "2", "--mpi-threads-disable", "--verbose")
    done = horovodrun(library, *flags, sys.executable, str(JOB), JOB_TOKEN="horse-battery")
    found = facts(succeeded(done))
    assert [(fact["rank"], fact["size"], fact["local"]) for fact in found] == 2 * [
        (0, 2, [0, 2]),
        (1, 2, [1, 2]),
    ]
    assert f"horovodrun: {library / 'bin' / 'mpirun'}" in done.stderr
    assert "horse-battery" not in done.stderr


def test_variables_of_any_bytes_reach_its_processes(library: Path) -> None:
    value = "a;b,c\nd\"e' $HOME %r"
    code = "import os, sys; sys.exit(os.environ['MIXED'] != " + repr(value) + ")"
    done = horovodrun(library, "-np", "2", sys.executable, "-c", code, MIXED=value)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_exit_code_of_a_failing_process_is_that_of_horovodrun(library: Path) -> None:
    done = horovodrun(library, "-np", "2", sys.executable, str(JOB), "--die")
    # Intel's mpirun does not pass on the code where two processes end: the other raised an error.
    assert done.returncode in ((3, 1, 255) if library.name == "impi-rt" else (3,)), done.stderr
    assert len(facts(done.stdout)) == 4


def test_a_function_is_called_on_every_rank(library: Path) -> None:
    done = run(library, [sys.executable, "-c", FUNCTION])
    assert succeeded(done).endswith("results [(0, 2, 3.0), (1, 2, 3.0)]\n"), done.stderr


def test_an_exception_of_a_function_comes_back(library: Path) -> None:
    done = run(library, [sys.executable, "-c", FUNCTION, "--raise"])
    assert done.returncode == 1
    assert "RuntimeError: mpirun failed with exit code 1" in done.stderr
    assert "Exception on rank 1 of 2:" in done.stderr and "KeyError: 'enough'" in done.stderr


# --- several hosts -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[hosts_rig.Rig, Path]]:
    """Three hosts without a default route, and a program that calls ssh as they want it."""
    reason = hosts_rig.why_not()
    if reason is not None:
        pytest.skip(reason)
    with hosts_rig.Rig(3) as rig:
        shell = tmp_path_factory.mktemp("ssh") / "ssh"
        options = f"-o StrictHostKeyChecking=no -o BatchMode=yes -p {hosts_rig.PORT}"
        shell.write_text(f'#!/bin/sh\nexec ssh {options} -i {rig.identity} "$@"\n')
        shell.chmod(0o755)
        yield rig, shell


def test_ranks_of_several_hosts_meet(
    library: Path, hosts: tuple[hosts_rig.Rig, Path], tmp_path: Path
) -> None:
    rig, shell = hosts
    first, *others = [host.name for host in rig.hosts]
    launcher = ("-launcher", "ssh", "-launcher-exec", str(shell))
    machines = tmp_path / "machines"
    machines.write_text("\n".join([f"{first}:2", *(f"{name}:1" for name in others)]) + "\n")
    options = {
        "openmpi": (
            *("--host", ",".join([f"{first}:2", *others]), "--prefix", str(library)),
            *("--prtemca", "plm_ssh_agent", str(shell), "-x", "PYTHONPATH"),
        ),
        "mpich": (*launcher, "-machinefile", str(machines)),
        "impi-rt": (*launcher, "-machinefile", str(machines)),
    }[library.name]
    command = (*options, sys.executable, str(JOB))
    # As Intel's setvars.sh has it: its library looks there for libfabric when there are several hosts.
    search = {"LD_LIBRARY_PATH": str(library / "lib")} if library.name == "impi-rt" else {}
    done = mpirun(
        *(library, *command),
        processes=4,
        wrap=lambda argv: rig.argv(rig.hosts[0], argv),
        **search,
    )
    found = facts(succeeded(done))
    assert [(fact["rank"], fact["local"], fact["cross"]) for fact in found] == 2 * [
        (0, [0, 2], [0, 3]),
        (1, [1, 2], [0, 1]),
        (2, [0, 1], [1, 3]),
        (3, [0, 1], [2, 3]),
    ]
    assert all(fact["sum"] == [10.0] * 5 and fact["processes"] == 4 for fact in found)


def test_horovodrun_starts_it_on_several_hosts(
    library: Path, hosts: tuple[hosts_rig.Rig, Path]
) -> None:
    rig, _ = hosts
    first, *others = [host.name for host in rig.hosts]
    ssh = ("-p", str(hosts_rig.PORT), "-i", str(rig.identity), "--ssh-accept-new-host-keys")
    where = ("-np", "4", "-H", ",".join([f"{first}:2", *(f"{name}:1" for name in others)]))
    search = {"LD_LIBRARY_PATH": str(library / "lib")} if library.name == "impi-rt" else {}
    done = horovodrun(
        *(library, *where, *ssh, sys.executable, str(JOB)),
        wrap=lambda argv: rig.argv(rig.hosts[0], argv),
        **search,
    )
    found = facts(succeeded(done))
    assert [(fact["rank"], fact["local"], fact["cross"]) for fact in found] == 2 * [
        (0, [0, 2], [0, 3]),
        (1, [1, 2], [0, 1]),
        (2, [0, 1], [1, 3]),
        (3, [0, 1], [2, 3]),
    ]


def test_secrets_are_on_no_command_line_of_any_host(
    library: Path, hosts: tuple[hosts_rig.Rig, Path]
) -> None:
    rig, _ = hosts
    ssh = ("-p", str(hosts_rig.PORT), "-i", str(rig.identity), "--ssh-accept-new-host-keys")
    where = ("-np", "2", "-H", ",".join(f"{host.name}:1" for host in rig.hosts[:2]))
    done = horovodrun(
        *(library, *where, *ssh, sys.executable, "-c", SEEKS_SECRETS),
        wrap=lambda argv: rig.argv(rig.hosts[0], argv),
        JOB_TOKEN=os.urandom(8).hex(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
