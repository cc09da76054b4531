"""Hosts and slots from SLURM's variables, and how an agent is started with srun."""

from __future__ import annotations

import pytest

from horovod.runner.slurm_job import hosts_of_allocation, is_in_allocation, over_srun

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "gpu[01-02],big",
    "SLURM_TASKS_PER_NODE": "2(x2),4",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2),16",
}


def test_slots_are_tasks_and_where_these_are_too_few_cpus() -> None:
    assert is_in_allocation(JOB) and not is_in_allocation({})
    assert hosts_of_allocation(JOB, 8) == [("gpu01", 2), ("gpu02", 2), ("big", 4)]
    assert hosts_of_allocation(JOB, 9) == [("gpu01", 8), ("gpu02", 8), ("big", 16)]
    few = {name: value for name, value in JOB.items() if "CPUS" not in name}
    assert hosts_of_allocation(few, 9) == [("gpu01", 2), ("gpu02", 2), ("big", 4)]


def test_contradictions_are_errors() -> None:
    with pytest.raises(ValueError, match=r"contradict.*3 nodes.*2 in SLURM_TASKS_PER_NODE.*-H"):
        hosts_of_allocation({**JOB, "SLURM_TASKS_PER_NODE": "2,4"}, 2)
    with pytest.raises(ValueError, match="neither SLURM_TASKS_PER_NODE nor"):
        hosts_of_allocation({"SLURM_JOB_NODELIST": "a"}, 2)
    with pytest.raises(ValueError, match="node list"):
        hosts_of_allocation({**JOB, "SLURM_JOB_NODELIST": "gpu[1-"}, 2)


def test_an_agent_gets_all_cpus_of_its_node() -> None:
    command = over_srun("big", ["sh", "-c", "x"], JOB)
    assert command[0] == "srun" and command[-3:] == ["sh", "-c", "x"]
    assert "--nodelist=big" in command and "--cpus-per-task=16" in command
