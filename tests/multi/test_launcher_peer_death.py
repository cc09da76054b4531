"""A rank dies in the middle of a training: the others say so at once, and the job ends."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from launcher_process import RunningJob, python

REPETITIONS = int(os.environ.get("HVD_TEST_REPETITIONS", "2"))
VICTIM = 2

TRAINING = """
import os, sys, time
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
try:
    for step in range(1_000_000):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        if step == 20:
            print("training", hvd.rank(), os.getpid(), flush=True)
except hvd.HorovodInternalError as error:
    print(f"caught {hvd.rank()} {time.time():.3f} {error}", flush=True)
    sys.exit(3)
"""


@pytest.mark.parametrize("repetition", range(REPETITIONS))
@pytest.mark.parametrize("hosts", ["localhost:4", "localhost:2,127.0.0.1:2"])
def test_survivors_name_the_dead_rank_and_the_job_ends(
    hosts: str, repetition: int, tmp_path: Path
) -> None:
    with RunningJob("-np", "4", "-H", hosts, *python(TRAINING)) as job:
        lines = job.wait_for_lines("training", 4)
        pids = {int(rank): int(pid) for _, rank, pid in (line.split() for line in lines)}
        killed_at = time.time()
        os.kill(pids[VICTIM], signal.SIGKILL)
        code, out, err = job.finish()
        ended_at = time.time()
        assert code == 128 + signal.SIGKILL
        caught = re.findall(r"caught (\d) ([\d.]+) (.*)", out)
        assert sorted(int(rank) for rank, _, _ in caught) == [0, 1, 3], out + err
        for _, _, text in caught:
            assert f"Rank {VICTIM} on host" in text
        assert f"Rank {VICTIM} on host" in err  # the launcher's report: the first failure
        assert job.pids() == []
        assert not list(Path.cwd().glob("core*[0-9]"))
        # Generous bounds: they tell a prompt end from one by time-out, not how fast the machine is.
        assert max(float(at) for _, at, _ in caught) - killed_at < 30.0
        assert ended_at - killed_at < 40.0
