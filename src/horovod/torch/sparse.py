"""Reduction of sparse gradients: gather the rows that ranks have, or go dense when that is less."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from horovod.common.dtypes import Average, ReduceOp, Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import submission


def _check_op(op: ReduceOp) -> None:
    if op not in (Average, Sum):
        raise ValueError(
            f"sparse tensors can be reduced with Average and Sum only, not {op!r}; "
            "use tensor.to_dense() first"
        )


def _averaged(tensor: Tensor, op: ReduceOp, process_set: ProcessSet) -> Tensor:
    """Divides a sum by the number of ranks if `op` says so; integers towards zero, once summed."""
    if op != Average:
        return tensor
    size = process_set.size() or 1
    if tensor.is_floating_point() or tensor.is_complex():
        return tensor / size
    summed = tensor.coalesce()
    values = torch.div(summed.values(), size, rounding_mode="trunc")
    return torch.sparse_coo_tensor(summed.indices(), values, summed.shape, is_coalesced=True)


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None,
    op: ReduceOp,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Tensor]:
    """Reduces a sparse COO tensor by gathering the entries of all ranks.

    Entries that a rank holds twice are merged before they are sent. Call the returned handle to
    wait; it yields an uncoalesced sparse tensor in which ranks may have entries in common.

    Args:
        tensor: sparse COO tensor; same shape and numbers of sparse and dense dimensions everywhere.
        name: pairs the calls of the ranks; `<name>.indices` and `<name>.values` travel.
        op: `hvd.Average` or `hvd.Sum`.
        process_set: the ranks that take part.
    """
    _check_op(op)
    merged = tensor.coalesce()
    indices_name, values_name = (
        (None, None) if name is None else (f"{name}.indices", f"{name}.values")
    )
    indices = submission.allgather([merged.indices().t()], indices_name, process_set)
    values = submission.allgather([merged.values()], values_name, process_set)

    def handle() -> Tensor:
        gathered_values: Tensor = submission.wait(values)
        gathered_indices: Tensor = submission.wait(indices)
        summed = torch.sparse_coo_tensor(gathered_indices.t(), gathered_values, tensor.shape)
        return _averaged(summed, op, process_set)

    return handle


class SparseReduction:
    """One sparse gradient on its way through the ranks, in two phases.

    First the indices are gathered, so that all ranks know how many rows there are in all. If these
    are as many as the dense gradient has, a dense allreduce moves less; every rank decides alike.
    """

    def __init__(self, tensor: Tensor, name: str, op: ReduceOp, process_set: ProcessSet) -> None:
        _check_op(op)
        self._tensor = tensor.coalesce()
        self._name = name
        self._op = op
        self._process_set = process_set
        self._dense = False
        self._indices: Tensor | None = None
        self._handle = submission.allgather(
            [self._tensor.indices().t()], f"{name}.indices", process_set
        )

    def exchange_values(self) -> None:
        """Waits for the indices and submits the values."""
        gathered: Tensor = submission.wait(self._handle)
        self._indices = gathered.t()
        tensor = self._tensor
        positions = tensor.shape[: tensor.sparse_dim()].numel()
        self._dense = gathered.shape[0] >= positions
        if self._dense:
            self._handle = submission.allreduce(
                tensor.to_dense(), f"{self._name}.dense", self._op, 1.0, 1.0, self._process_set
            )
        else:
            self._handle = submission.allgather(
                [tensor.values()], f"{self._name}.values", self._process_set
            )

    def finish(self) -> Tensor:
        """Waits for the values; returns the reduced gradient, coalesced, on the union of rows."""
        assert self._indices is not None
        answer: Tensor = submission.wait(self._handle)
        shape, sparse_dim = self._tensor.shape, self._tensor.sparse_dim()
        if not self._dense:
            summed = torch.sparse_coo_tensor(self._indices, answer, shape)
            return _averaged(summed, self._op, self._process_set).coalesce()
        marks = torch.ones(self._indices.shape[1], device=answer.device)
        union = torch.sparse_coo_tensor(self._indices, marks, shape[:sparse_dim])
        rows = union.coalesce().indices()
        return torch.sparse_coo_tensor(rows, answer[tuple(rows)], shape, is_coalesced=True)


def empty_like(parameter: Tensor, sparse_dim: int) -> Tensor:
    """Returns the sparse gradient of a parameter that this rank did not use."""
    return torch.sparse_coo_tensor(
        torch.empty((sparse_dim, 0), dtype=torch.int64, device=parameter.device),
        torch.empty((0, *parameter.shape[sparse_dim:]), dtype=parameter.dtype).to(parameter.device),
        parameter.shape,
        is_coalesced=True,
    )


def none_if_empty(gradient: Tensor) -> Tensor | None:
    """Returns None if no rank used a row: as in one process, the optimizer then skips it."""
    return gradient if gradient._nnz() else None
