"""Gradients of the collectives, by the documented rules of `horovod.torch`.

The rules follow Horovod: a reduction's gradient is the same reduction of the gradients (not a true
gradient for Min, Max and Product), an allgather's and a broadcast's gradients are averaged.
"""

# ruff: noqa: D102 (forward and backward are torch's protocol; each class states its rule)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from horovod.common.collectives import resolve_op
from horovod.common.dtypes import Average, ReduceOp, Sum
from horovod.common.process_sets import ProcessSet
from horovod.torch import submission
from horovod.torch.submission import wait


def averaged(tensor: Tensor, process_set: ProcessSet) -> Tensor:
    """Returns the average over the ranks of a gradient; differentiable again."""
    result: Tensor = HorovodAllreduce.apply(tensor, None, None, Average, 1.0, 1.0, process_set)
    return result


def pad_rows(tensor: Tensor, rows: int) -> Tensor:
    """Appends zero rows: rows that no split covered were sent nowhere and have no gradient."""
    missing = rows - tensor.shape[0]
    if missing == 0:
        return tensor
    return torch.cat([tensor, tensor.new_zeros((missing, *tensor.shape[1:]))])


def own_rows(gathered: list[Tensor], rows: list[int], process_set: ProcessSet) -> list[Tensor]:
    """Returns of each gathered tensor the rows that this rank contributed."""
    counts = torch.tensor([rows], dtype=torch.int64)
    table: Tensor = wait(submission.allgather([counts], None, process_set, urgent=True))
    rank = process_set.rank()
    starts = table[:rank].sum(0).tolist()
    return [
        tensor.narrow(0, start, count)
        for tensor, start, count in zip(gathered, starts, rows, strict=True)
    ]


class HorovodAllreduce(torch.autograd.Function):
    """Allreduce whose gradient is the allreduce of the gradient with the same parameters."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        average: bool | None,
        name: str | None,
        op: ReduceOp | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> Tensor:
        resolved = resolve_op(average, op, name, process_set)
        ctx.rule = (resolved, prescale_factor, postscale_factor, process_set)
        handle = submission.allreduce(tensor, name, *ctx.rule, urgent=True)
        result: Tensor = wait(handle)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        grad = HorovodAllreduce.apply(grad_output, None, None, *ctx.rule)
        return grad, None, None, None, None, None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    """Grouped allreduce; the gradients are reduced as one group too."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: ReduceOp | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        resolved = resolve_op(average, op, name, process_set)
        ctx.rule = (resolved, prescale_factor, postscale_factor, process_set)
        handle = submission.grouped_allreduce(tensors, name, *ctx.rule, urgent=True)
        return tuple(wait(handle))

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        grads = HorovodGroupedAllreduce.apply(None, None, *ctx.rule, *grad_output)
        return None, None, None, None, None, None, *grads


class HorovodAllgather(torch.autograd.Function):
    """Allgather; the gradient is averaged over the ranks, then each takes its own rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
        ctx.process_set = process_set
        ctx.rows = tensor.shape[0] if tensor.dim() else 0
        result: Tensor = wait(submission.allgather([tensor], name, process_set, urgent=True))
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        grad = averaged(grad_output, ctx.process_set)
        return own_rows([grad], [ctx.rows], ctx.process_set)[0], None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    """Grouped allgather; per tensor the rule of `HorovodAllgather`."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.process_set = process_set
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        handle = submission.allgather(tensors, name, process_set, grouped=True, urgent=True)
        return tuple(wait(handle))

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        rule = (None, None, Average, 1.0, 1.0, ctx.process_set)
        grads = list(HorovodGroupedAllreduce.apply(*rule, *grad_output))
        return None, None, *own_rows(grads, ctx.rows, ctx.process_set)


class HorovodBroadcast(torch.autograd.Function):
    """Broadcast; the gradient is averaged over the ranks and reaches the root only."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> Tensor:
        ctx.root_rank = root_rank
        ctx.process_set = process_set
        handle = submission.broadcast(tensor, root_rank, name, process_set, urgent=True)
        result: Tensor = wait(handle)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        grad = averaged(grad_output, ctx.process_set)
        if not is_root(ctx.root_rank, ctx.process_set):
            grad = torch.zeros_like(grad)
        return grad, None, None, None


def is_root(root_rank: int, process_set: ProcessSet) -> bool:
    """Tells whether this rank is the global rank `root_rank`."""
    ranks = process_set.ranks
    rank = process_set.rank()
    return ranks is not None and rank is not None and ranks[rank] == root_rank


class HorovodAlltoall(torch.autograd.Function):
    """Alltoall; the gradient goes back by the received splits."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> tuple[Tensor, Tensor]:
        handle = submission.alltoall(tensor, splits, name, process_set, urgent=True)
        output, received_splits = wait(handle)
        ctx.process_set = process_set
        ctx.received_splits = received_splits
        ctx.rows = tensor.shape[0]
        ctx.mark_non_differentiable(received_splits)
        return output, received_splits

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor, *_: Any) -> Any:
        grad, _ = HorovodAlltoall.apply(grad_output, ctx.received_splits, None, ctx.process_set)
        return pad_rows(grad, ctx.rows), None, None, None


def scatter_gradient_factor(
    op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet
) -> float:
    """Returns what a reducescatter's gradient is multiplied with before it is gathered."""
    return (process_set.size() or 1 if op == Sum else 1) * prescale * postscale


class HorovodReducescatter(torch.autograd.Function):
    """Reducescatter; the gradient is scaled, then gathered."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        name: str | None,
        op: ReduceOp,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> Tensor:
        rule = (op, prescale_factor, postscale_factor, process_set)
        ctx.process_set = process_set
        handle = submission.reducescatter([tensor], name, *rule, urgent=True)
        ctx.factor = scatter_gradient_factor(*rule)
        result: Tensor = wait(handle)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        grad = grad_output * ctx.factor
        grad = HorovodAllgather.apply(grad, None, ctx.process_set)
        return grad, None, None, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    """Grouped reducescatter; per tensor the rule of `HorovodReducescatter`."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: ReduceOp,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        rule = (op, prescale_factor, postscale_factor, process_set)
        ctx.process_set = process_set
        handle = submission.reducescatter(tensors, name, *rule, grouped=True, urgent=True)
        ctx.factor = scatter_gradient_factor(*rule)
        return tuple(wait(handle))

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor) -> Any:
        grads = [grad * ctx.factor for grad in grad_output]
        grads = HorovodGroupedAllgather.apply(None, ctx.process_set, *grads)
        return None, None, None, None, None, *grads
