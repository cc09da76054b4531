"""Gradients of the collectives: the documented rules, and true gradients where they are ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import horovod.torch as hvd

LAUNCHES = ["-np 1", "-np 2", "-np 3"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.fixture(scope="module")
def sets() -> Iterator[list]:
    chosen = [hvd.global_process_set]
    if hvd.size() > 2:
        chosen.append(hvd.add_process_set([0, 2]))
    yield chosen
    for process_set in chosen[1:]:
        hvd.remove_process_set(process_set)


def data_of(rank, rows=4, seed=0):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randn(rows, 3, generator=generator, dtype=torch.float64)


def leaf(rank, **options):
    return data_of(rank, **options).requires_grad_()


def gradient_of(result, tensor, seed=0):
    """The gradient of a loss of this rank that weighs every element of a result differently."""
    results = result if isinstance(result, (list, tuple)) else [result]
    loss = sum((r * weights_of(r, hvd.rank(), seed + i)).sum() for i, r in enumerate(results))
    (gradient,) = torch.autograd.grad(loss, tensor, retain_graph=True)
    return gradient


def weights_of(tensor, rank, seed=0):
    generator = torch.Generator().manual_seed(7 + 100 * seed + rank)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)


def average(tensors):
    return sum(tensors) / len(tensors)


def members(process_set):
    if not process_set.included():
        pytest.skip("this rank is not in the process set")
    return process_set.ranks


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_allreduce_gradient_is_the_allreduce_of_the_gradients(op, grouped, sets):
    for process_set in sets:
        if not process_set.included():
            continue
        ranks = process_set.ranks
        tensor = leaf(hvd.rank())
        options = {
            "op": op,
            "prescale_factor": 0.5,
            "postscale_factor": 3.0,
            "process_set": process_set,
        }
        if grouped:
            first, second = hvd.grouped_allreduce([tensor, tensor * 2], **options)
            result = first + second / 2
            factor = 2
        else:
            result, factor = hvd.allreduce(tensor, **options), 1
        expected = sum(weights_of(tensor, rank) for rank in ranks) * 1.5 * factor
        expected = expected / len(ranks) if op == hvd.Average else expected
        torch.testing.assert_close(gradient_of(result, tensor), expected)


def test_the_sum_of_all_losses_has_the_gradient_of_one_process():
    """`Sum` and the losses of all ranks added up: a true gradient, also the second one."""
    tensor = leaf(hvd.rank())
    tensors = [leaf(rank) for rank in range(hvd.size())]
    ours = hvd.allreduce(tensor.square(), op=hvd.Sum).sin() * weights_of(tensor, hvd.rank())
    (first,) = torch.autograd.grad(ours.sum(), tensor, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), tensor)
    total = sum(t.square() for t in tensors).sin()
    loss = sum((total * weights_of(tensor, rank)).sum() for rank in range(hvd.size()))
    all_first = torch.autograd.grad(loss, tensors, create_graph=True)
    torch.testing.assert_close(first, all_first[hvd.rank()])
    expected = torch.autograd.grad(sum(t.sum() for t in all_first), tensors)[hvd.rank()]
    torch.testing.assert_close(second, expected)


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_other_operators_reduce_the_gradient_alike(op):
    tensor = leaf(hvd.rank())
    weights = torch.stack([weights_of(tensor, rank) for rank in range(hvd.size())])
    expected = {hvd.Min: weights.amin(0), hvd.Max: weights.amax(0), hvd.Product: weights.prod(0)}
    torch.testing.assert_close(gradient_of(hvd.allreduce(tensor, op=op), tensor), expected[op])


def test_allreduce_with_compression_is_differentiable():
    tensor = leaf(hvd.rank())
    result = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
    expected = sum(weights_of(tensor, rank) for rank in range(hvd.size()))
    torch.testing.assert_close(gradient_of(result, tensor), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("grouped", [False, True])
def test_allgather_gradient_is_averaged_and_cut_to_the_own_rows(grouped, sets):
    for process_set in sets:
        if not process_set.included():
            continue
        ranks = process_set.ranks
        rows = [rank + 1 for rank in ranks]
        own = process_set.rank()
        tensor = leaf(hvd.rank(), rows=rows[own])
        if grouped:
            results = hvd.grouped_allgather([tensor, tensor[:1]], process_set=process_set)
        else:
            results = [hvd.allgather(tensor, process_set=process_set)]
        start = sum(rows[:own])
        expected = average([weights_of(results[0], rank) for rank in ranks])
        expected = expected[start : start + rows[own]].clone()
        if grouped:
            expected[:1] += average([weights_of(results[1], r, 1) for r in ranks])[own]
        torch.testing.assert_close(gradient_of(results, tensor), expected)


def test_broadcast_gradient_is_averaged_on_the_root_and_zero_elsewhere(sets):
    for process_set in sets:
        if not process_set.included():
            continue
        root = process_set.ranks[-1]
        tensor = leaf(hvd.rank())
        result = hvd.broadcast(tensor, root, process_set=process_set)
        expected = average([weights_of(tensor, rank) for rank in process_set.ranks])
        if hvd.rank() != root:
            expected = torch.zeros_like(expected)
        torch.testing.assert_close(gradient_of(result, tensor), expected)


@pytest.mark.parametrize("given", [False, True])
def test_alltoall_gradient_travels_back(given, sets):
    """A true gradient: rows are only moved. Rows that no split covers get zeros."""
    for process_set in sets:
        if not process_set.included():
            continue
        ranks, own = process_set.ranks, process_set.rank()
        n = len(ranks)
        splits = {
            r: [1 + (i + j) % 2 for j in range(n)] if given else [2] * n
            for i, r in enumerate(ranks)
        }
        spare = 1 if given else 0
        leaves = {r: leaf(r, rows=sum(splits[r]) + spare) for r in ranks}
        outputs = {
            r: torch.cat([leaves[q][: sum(splits[q])].split(splits[q])[j] for q in ranks])
            for j, r in enumerate(ranks)
        }
        loss = sum((outputs[r] * weights_of(outputs[r], r)).sum() for r in ranks)
        expected = torch.autograd.grad(loss, list(leaves.values()))[own]
        tensor = leaf(hvd.rank(), rows=sum(splits[hvd.rank()]) + spare)
        if given:
            chosen = torch.tensor(splits[hvd.rank()], dtype=torch.int32)
            result, received = hvd.alltoall(tensor, chosen, process_set=process_set)
            assert not received.requires_grad
        else:
            result = hvd.alltoall(tensor, process_set=process_set)
        torch.testing.assert_close(result, outputs[hvd.rank()])
        torch.testing.assert_close(gradient_of(result, tensor), expected)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("rows", [1, 5])
def test_reducescatter_gradient_is_scaled_and_gathered(op, grouped, rows, sets):
    for process_set in sets:
        if not process_set.included():
            continue
        ranks = process_set.ranks
        n = len(ranks)
        tensor = leaf(hvd.rank(), rows=rows)
        options = {
            "op": op,
            "prescale_factor": 0.5,
            "postscale_factor": 3.0,
            "process_set": process_set,
        }
        if grouped:
            (result,) = hvd.grouped_reducescatter([tensor], **options)
        else:
            result = hvd.reducescatter(tensor, **options)
        shares = [rows // n + (i < rows % n) for i in range(n)]
        assert result.shape[0] == shares[process_set.rank()]
        parts = [
            weights_of(torch.empty(share, 3), rank)
            for share, rank in zip(shares, ranks, strict=True)
        ]
        expected = torch.cat(parts) * (n if op == hvd.Sum else 1) * 1.5
        given = weights_of(result, hvd.rank())
        kept = given.clone()
        (gradient,) = torch.autograd.grad(result, tensor, given)
        torch.testing.assert_close(gradient, expected)
        assert torch.equal(given, kept)  # the incoming gradient is not scaled in place


def test_no_graph_is_built_where_none_is_wanted():
    tensor = leaf(hvd.rank())
    with torch.no_grad():
        assert not hvd.allreduce(tensor).requires_grad
    assert not hvd.allreduce(tensor.detach()).requires_grad
    assert not hvd.synchronize(hvd.allreduce_async(tensor)).requires_grad
    assert hvd.allreduce(tensor).requires_grad
