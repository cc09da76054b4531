"""The allocation of SLURM that horovodrun runs in: its hosts, and its own way to start agents on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from horovod.common.slurm_notation import nodes, tasks_per_node
from horovod.runner.hosts import HostInfo

_TASKS = "SLURM_TASKS_PER_NODE"
_CPUS = "SLURM_JOB_CPUS_PER_NODE"


def is_in_allocation(env: Mapping[str, str]) -> bool:
    """Whether sbatch or salloc has started this process, or something that they have started."""
    return bool(env.get("SLURM_JOB_ID") and env.get("SLURM_JOB_NODELIST"))


def processes_of_allocation(env: Mapping[str, str]) -> int | None:
    """As many as the job has tasks; None outside of a job, or where it did not ask for tasks."""
    tasks = env.get("SLURM_NTASKS", "")
    return int(tasks) if is_in_allocation(env) and tasks.isdecimal() else None


def hosts_of_allocation(env: Mapping[str, str], processes: int) -> list[HostInfo]:
    """The nodes with as many slots as SLURM gave them tasks, or CPUs if there are fewer tasks than processes.

    Raises:
        ValueError: a variable is not in SLURM's notation, or they contradict each other.
    """
    names = list(nodes(env["SLURM_JOB_NODELIST"]))
    counts: list[int] = []
    for source in (_TASKS, _CPUS):
        if not env.get(source) or sum(counts) >= processes:
            continue
        counts = tasks_per_node(env[source])
        if len(counts) != len(names):
            raise ValueError(
                f"SLURM's variables contradict each other: {len(names)} nodes in SLURM_JOB_NODELIST, counts "
                f"for {len(counts)} in {source}={env[source]}; give the hosts with -H"
            )
    if not counts:
        raise ValueError(
            f"in a job of SLURM, but neither {_TASKS} nor {_CPUS} is set; give the hosts with -H"
        )
    return [HostInfo(name, count) for name, count in zip(names, counts, strict=True)]


def over_srun(node: str, command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """What runs an agent's command on a node of the allocation.

    The agent gets all CPUs that the job has there, beside the step that this process may be in.
    """
    words = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
    words += ["--cpu-bind=none", "--unbuffered", "--input=all", "--mpi=none", "--export=ALL"]
    names = list(nodes(env["SLURM_JOB_NODELIST"]))
    if env.get(_CPUS) and node in names:
        counts = tasks_per_node(env[_CPUS])
        if len(counts) == len(names):
            words.append(f"--cpus-per-task={counts[names.index(node)]}")
    return [*words, *command]
