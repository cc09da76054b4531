"""A rank dies in the middle of a TensorFlow training: the others get an error that names it, at once."""

from __future__ import annotations

import os
import re
import signal

import pytest
from launcher_process import RunningJob, python

TRAINING = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
weights = [tf.Variable(tf.ones([64, 64])) for _ in range(4)]

def step(x):
    with tf.GradientTape() as tape:
        for w in weights:
            x = tf.nn.relu(x @ w)
        loss = tf.reduce_mean(x)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
    for w, g in zip(weights, gradients):
        w.assign_sub(1e-9 * g)

if MODE == "function":
    step = tf.function(step)
try:
    for number in range(1_000_000):
        step(tf.ones([8, 64]))
        if number == 20:
            print("training", hvd.rank(), os.getpid(), flush=True)
except tf.errors.UnknownError as error:
    text = " ".join(error.message.split())
    print(f"caught {hvd.rank()} {text}", flush=True)
    sys.exit(3)
"""


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_survivors_name_the_dead_rank(mode: str) -> None:
    victim = 1
    program = TRAINING.replace("MODE", repr(mode))
    with RunningJob("-np", "3", *python(program)) as job:
        lines = job.wait_for_lines("training", 3)
        pids = {int(rank): int(pid) for _, rank, pid in (line.split() for line in lines)}
        os.kill(pids[victim], signal.SIGKILL)
        code, out, err = job.finish()
        assert code == 128 + signal.SIGKILL
        caught = re.findall(r"caught (\d) (.*)", out)
        assert sorted(int(rank) for rank, _ in caught) == [0, 2], out + err
        for _, text in caught:
            assert f"Rank {victim} on host" in text
        assert job.pids() == []
