"""Collectives inside torch.compile, with the backends eager and inductor; compiled models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch_reference import assert_same_parameters, loss_of, small_model, train_alone

import horovod.torch as hvd

LAUNCHES = ["-np 2"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.fixture(params=["eager", "inductor"])
def backend(request):
    torch._dynamo.reset()
    return request.param


def data(rows=4):
    generator = torch.Generator().manual_seed(hvd.rank())
    return torch.randn(rows, 3, generator=generator)


def compare(function, *tensors, backend, fullgraph=True):
    """Values and gradients of the compiled function equal those of the plain one."""
    compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
    outcomes = []
    for some in (function, compiled):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        results = some(*leaves)
        results = results if isinstance(results, (list, tuple)) else [results]
        loss = sum((r * (torch.arange(r.numel()).reshape(r.shape) + 1)).sum() for r in results)
        outcomes.append([*results, *torch.autograd.grad(loss, leaves)])
    for plain, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(other, plain)


def uneven_rows():
    return hvd.rank() + 1


FUNCTIONS = {
    "allreduce": lambda t: hvd.allreduce(t * 2, name="loss") + 1,
    "allreduce with factors": lambda t: hvd.allreduce(
        t, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0
    ),
    "allreduce max": lambda t: hvd.allreduce(t * 2, op=hvd.Max),
    "allreduce compressed": lambda t: hvd.allreduce(t, compression=hvd.Compression.bf16),
    "grouped_allreduce": lambda t: hvd.grouped_allreduce([t * 2, t + 1], op=hvd.Sum),
    "allgather": lambda t: hvd.allgather(t * 2).sin(),
    "allgather of uneven rows": lambda t: hvd.allgather(t[: uneven_rows()] * 2),
    "grouped_allgather": lambda t: hvd.grouped_allgather([t * 2, t]),
    "broadcast": lambda t: hvd.broadcast(t * 2, hvd.size() - 1),
    "alltoall": lambda t: hvd.alltoall(t * 2),
    "alltoall with splits": lambda t: hvd.alltoall(t, splits=[1] * hvd.size())[0],
    "reducescatter": lambda t: hvd.reducescatter(t * 2, op=hvd.Sum),
    "grouped_reducescatter": lambda t: hvd.grouped_reducescatter([t, t[:3]], op=hvd.Sum),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocking_collectives_in_one_graph(name, backend):
    rows = 4 * hvd.size() if name.startswith("alltoall") else 5
    compare(FUNCTIONS[name], data(rows), backend=backend)


def test_in_place_forms(backend):
    def change(tensor):
        doubled = tensor * 2
        hvd.allreduce_(doubled, op=hvd.Sum)
        hvd.broadcast_(doubled, 0)
        first, second = hvd.grouped_allreduce_([doubled + 1, doubled - 1], op=hvd.Max)
        return first + second

    compiled = torch.compile(change, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(data()), change(data()))


def test_ranks_that_do_not_use_a_result_still_take_part(backend):
    """Compilers drop what is not needed; a rank that dropped a collective would hang the others."""

    def lopsided(tensor):
        total = hvd.allreduce(tensor * 2, op=hvd.Sum)
        return tensor + total if hvd.rank() == 0 else tensor + 1

    compiled = torch.compile(lopsided, backend=backend)
    torch.testing.assert_close(compiled(data()), lopsided(data()))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == hvd.size()


def test_independent_collectives_keep_their_order(backend):
    def several(tensor):
        parts = [hvd.allreduce(tensor * i, op=hvd.Sum, name=f"part.{i}") for i in range(1, 4)]
        parts.append(hvd.broadcast(tensor, 0))
        return sum(part.sum() * i for i, part in enumerate(reversed(parts), 1))

    compare(several, data(), backend=backend)


def test_a_process_set_inside_a_graph(backend):
    if hvd.size() == 1:
        pytest.skip("the global set is the only one that one rank can form")
    members = hvd.add_process_set([0])
    if members.included():
        compare(
            lambda t: hvd.allreduce(t, op=hvd.Sum, process_set=members), data(), backend=backend
        )
    hvd.remove_process_set(members)


def test_asynchronous_forms_break_the_graph_and_work(backend):
    def overlapped(tensor):
        handle = hvd.allreduce_async(tensor * 2, op=hvd.Sum)
        other = tensor.sin()
        result = hvd.synchronize(handle)
        hvd.barrier()
        return result + other

    compiled = torch.compile(overlapped, backend=backend)
    torch.testing.assert_close(compiled(data()), overlapped(data()))


def test_changing_sizes_are_compiled_again(backend):
    def total(tensor):
        return hvd.allreduce(tensor, op=hvd.Sum) * 2

    compiled = torch.compile(total, backend=backend)
    for rows in (2, 5, 7):
        torch.testing.assert_close(compiled(data(rows)), total(data(rows)))


def test_compiled_models_train_with_the_distributed_optimizer(backend):
    def make(parameters):
        return torch.optim.Adam(parameters, lr=0.05)

    model = small_model()
    compiled = torch.compile(model, backend=backend)
    optimizer = hvd.DistributedOptimizer(make(model.parameters()), model.named_parameters())
    for step in range(4):
        optimizer.zero_grad()
        loss_of(compiled, hvd.rank(), step).backward()
        optimizer.step()
    assert_same_parameters(model, train_alone(make, steps=4))


def test_compiled_models_with_sync_batch_norm(backend):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), hvd.SyncBatchNorm(4), nn.Linear(4, 1))

    plain, model = build(), build()
    compiled = torch.compile(model, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the break of the graph at the count of rows
        for some in (plain, compiled):
            some(data()).square().sum().backward()
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(model[1].running_var, plain[1].running_var)
