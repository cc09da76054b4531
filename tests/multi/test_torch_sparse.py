"""Sparse gradients: coalesced, gathered or dense, and always what one process would compute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch_reference import assert_same_parameters

import horovod.torch as hvd
from horovod.torch.sparse import SparseReduction

LAUNCHES = ["-np 1", "-np 2", "-np 4"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    torch.sparse.check_sparse_tensor_invariants.enable()
    hvd.init()
    yield
    hvd.shutdown()


def rows_of(rank):
    return torch.tensor([rank, rank, 3, 7 - rank])


def sparse_of(rank, dtype=torch.float32):
    values = torch.arange(8, dtype=dtype).reshape(4, 2) + rank
    return torch.sparse_coo_tensor(rows_of(rank)[None], values, (9, 2))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("name", [None, "embedding"])
def test_sparse_allreduce_async(op, name):
    handle = hvd.sparse_allreduce_async(sparse_of(hvd.rank()), name=name, op=op)
    result = handle()
    assert result.is_sparse
    assert result.shape == (9, 2)
    expected = sum(sparse_of(rank).to_dense() for rank in range(hvd.size()))
    if op == hvd.Average:
        expected = expected / hvd.size()
    torch.testing.assert_close(result.to_dense(), expected)
    # Two entries of the same row are merged before they are sent.
    assert result._nnz() == sum(sparse_of(rank).coalesce()._nnz() for rank in range(hvd.size()))


def test_sparse_allreduce_of_nothing_and_of_integers():
    empty = torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.long), torch.empty(0, 2), (9, 2))
    mine = sparse_of(0) if hvd.rank() == hvd.size() - 1 else empty
    result = hvd.sparse_allreduce_async(mine, name="some", op=hvd.Sum)()
    torch.testing.assert_close(result.to_dense(), sparse_of(0).to_dense())
    result = hvd.sparse_allreduce_async(sparse_of(0, torch.int64), name="ints", op=hvd.Average)()
    assert torch.equal(result.to_dense(), sparse_of(0, torch.int64).to_dense())


def test_handles_may_be_waited_for_in_any_order():
    handles = [
        hvd.sparse_allreduce_async(sparse_of(hvd.rank()), name=f"order.{i}", op=hvd.Sum)
        for i in range(3)
    ]
    for i in sorted(range(3), key=lambda i: (i + hvd.rank()) % 3):
        handles[i]()


def test_operators_without_meaning_for_sparse_are_refused():
    with pytest.raises(ValueError, match="Average and Sum only"):
        hvd.sparse_allreduce_async(sparse_of(0), name="max", op=hvd.Max)
    with pytest.raises(ValueError, match="sparse_allreduce_async"):
        hvd.allreduce(sparse_of(0))
    assert hvd.allreduce(torch.ones(1)).item() == 1


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
@pytest.mark.parametrize("rows", [3, 1000])
def test_both_ways_of_a_sparse_reduction_give_the_union_of_rows(op, rows):
    """With three rows the dense way is chosen as soon as there are two ranks."""
    mine = torch.sparse_coo_tensor(
        torch.tensor([[0, 1 + hvd.rank() % 2]]), torch.tensor([[1.0], [2.0]]), (rows, 1)
    )
    reduction = SparseReduction(mine, f"union.{rows}", op, hvd.global_process_set)
    reduction.exchange_values()
    assert reduction._dense is (rows == 3 and hvd.size() > 1)
    result = reduction.finish()
    assert result.is_coalesced()
    everyone = [
        torch.sparse_coo_tensor(
            torch.tensor([[0, 1 + r % 2]]), torch.tensor([[1.0], [2.0]]), (rows, 1)
        )
        for r in range(hvd.size())
    ]
    expected = sum(tensor.to_dense() for tensor in everyone)
    expected = expected / hvd.size() if op == hvd.Average else expected
    torch.testing.assert_close(result.to_dense(), expected)
    assert result.indices()[0].tolist() == sorted({0, *(1 + r % 2 for r in range(hvd.size()))})


class Bag(nn.Module):
    def __init__(self, rows):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(rows, 3, sparse=True).double()
        self.rare = nn.Embedding(rows, 3, sparse=True).double()
        self.out = nn.Linear(3, 1).double()


def bag_loss(model, rank, step):
    words = torch.tensor([0, (rank + step) % 5, 2, 2])
    hidden = model.words(words).sum(0)
    if rank == 0 and step % 2 == 1:  # only one rank, and not in the first step
        hidden = hidden + model.rare(torch.tensor([step % 5])).sum(0)
    return model.out(torch.tanh(hidden)).square().sum()


def optimizers_of(model, kind):
    embeddings = [model.words.weight, model.rare.weight]
    if kind == "SparseAdam":
        return [
            torch.optim.SparseAdam(embeddings, lr=0.1),
            torch.optim.SGD(model.out.parameters(), lr=0.1),
        ]
    if kind == "Adagrad":
        return [torch.optim.Adagrad(model.parameters(), lr=0.1)]
    return [torch.optim.SGD(model.parameters(), lr=0.1)]


@pytest.mark.parametrize("kind", ["SparseAdam", "Adagrad", "SGD"])
@pytest.mark.parametrize("rows", [6, 500], ids=["dense is denser", "sparse is sparser"])
@pytest.mark.parametrize("options", [{}, {"groups": 1}, {"sparse_as_dense": True}], ids=str)
def test_training_with_embeddings_equals_one_process(kind, rows, options):
    model, reference = Bag(rows), Bag(rows)
    ours = [
        hvd.DistributedOptimizer(optimizer, **options) for optimizer in optimizers_of(model, kind)
    ]
    alone = optimizers_of(reference, kind)
    for step in range(5):
        for optimizer in (*ours, *alone):
            optimizer.zero_grad()
        bag_loss(model, hvd.rank(), step).backward()
        (sum(bag_loss(reference, rank, step) for rank in range(hvd.size())) / hvd.size()).backward()
        for optimizer in (*ours, *alone):
            optimizer.step()
        assert model.words.weight.grad.is_sparse
    assert_same_parameters(model, reference)


def test_accumulation_of_sparse_gradients():
    model, reference = Bag(50), Bag(50)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), backward_passes_per_step=2
    )
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        alone.zero_grad()
        for part in range(2 if step < 2 else 1):
            bag_loss(model, hvd.rank(), 2 * step + part).backward()
            for rank in range(hvd.size()):
                (bag_loss(reference, rank, 2 * step + part) / hvd.size()).backward()
        optimizer.step()
        alone.step()
    assert_same_parameters(model, reference)
