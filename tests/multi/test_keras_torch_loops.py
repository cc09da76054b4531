"""`horovod.keras` with Keras 3 on torch: `torch.compile`, and loops of one's own."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

from collections.abc import Iterator

import keras
import pytest
import torch
from keras_reference import (
    BATCH,
    assert_equal_on_all_ranks,
    assert_same,
    numbers,
    sgd,
    share,
    small_model,
    train_alone,
    train_together,
    weights,
)

import horovod.keras as hvd
import horovod.torch as hvd_torch

LAUNCHES = ["-np 2"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


def test_torch_compile():
    passes = 2
    optimizer = hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    ours = train_together(optimizer, jit_compile=True)
    assert_same(ours, train_alone(sgd(), batch=passes * BATCH))


@pytest.mark.parametrize("passes", [1, 2])
def test_a_loop_of_ones_own(passes):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(), backward_passes_per_step=passes, average_aggregated_gradients=True
    )
    x, y = (torch.as_tensor(share(array)) for array in numbers())
    for begin in range(0, len(x), BATCH // 2):
        part = slice(begin, begin + BATCH // 2)
        model.zero_grad()
        torch.mean((model(x[part], training=True) - y[part]) ** 2).backward()
        gradients = [v.value.grad for v in model.trainable_variables]
        kept = [gradient.clone() for gradient in gradients]
        with torch.no_grad():
            optimizer.apply(gradients, model.trainable_variables)
        for gradient, before in zip(gradients, kept, strict=True):
            assert torch.equal(gradient, before)  # this rank's own are left alone
    assert_same(model, train_alone(sgd(), batch=passes * BATCH))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("passes", [1, 2])
def test_a_gradient_that_one_rank_lacks_counts_as_zero(passes):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=passes)
    variables = model.trainable_variables
    before = weights(model)
    for number in range(passes):
        gradients = [torch.ones(tuple(v.shape)) for v in variables]
        gradients[1] = None  # on all ranks
        if hvd.rank() == 1 or number > 0:
            gradients[0] = None
        with torch.no_grad():
            optimizer.apply(gradients, variables)
    after = weights(model)
    steps = [float((a - b).max()) for a, b in zip(before, after, strict=True)]
    assert steps == pytest.approx([0.5, 0.0, passes, passes])
    assert_equal_on_all_ranks(after, "weights")


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_sums_of_passes_begin_anew_where_a_gradient_is_missing():
    variable = keras.Variable([0.0])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), backward_passes_per_step=2)
    one, none = torch.ones(1), None
    other = keras.Variable([0.0])  # always has one, as Keras wants
    with torch.no_grad():
        for gradient in (one, one, none, one, none, none):
            optimizer.apply([gradient, one], [variable, other])
    assert variable.numpy().tolist() == [-3.0]
    assert other.numpy().tolist() == [-6.0]


def test_the_door_of_torch_serves_the_same_job():
    assert hvd_torch.size() == hvd.size()
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=0.1)
    with pytest.raises(ValueError, match="needs an optimizer of keras"):
        hvd.DistributedOptimizer(optimizer)
    with pytest.raises(NotImplementedError, match="give them to apply"):
        hvd.DistributedOptimizer(sgd()).compute_gradients(torch.ones(1), [])
