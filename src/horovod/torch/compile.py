"""Collectives as torch operators, so that they may stand inside `torch.compile`.

Each is a custom operator of the library `horovod` with a fake kernel (shapes and dtypes of results
without communication) and a registered gradient by the rules of `autograd.py`. The blocking public
functions call the functions at the end of this file while torch traces them; outside of compilation
these operators are never used, because calling one costs several microseconds.

Process sets travel through a graph as their ids. Torch keeps compiled graphs in a cache on disk that
all ranks and later jobs share, under a key made of the graph's text; so whatever shapes or gradients
depend on (size, rank) is an argument of the operator, or is looked up when it runs. Results whose
number of rows is not known come in a list, because inductor (torch 2.13) loses such sizes in tuples.
"""

# ruff: noqa: ARG001 (fake kernels take the arguments of the real ones)
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from horovod.common import engine
from horovod.common.dtypes import Average, ReduceOp, Sum
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import submission
from horovod.torch.autograd import averaged, own_rows

_OPS = torch.ops.horovod

# Stand-ins for the users' process sets, by round of init and id.
_sets: dict[tuple[int, int], ProcessSet] = {}


def _set(process_set: int) -> ProcessSet:
    if process_set == 0:
        return global_process_set
    ranks = engine.registered_set(process_set).ranks
    key = (engine.state.rounds, process_set)
    found = _sets.get(key)
    if found is None or found.ranks != ranks:
        found = _sets[key] = ProcessSet(ranks)
        found.attach(process_set, ranks)
    return found


def _set_id(process_set: ProcessSet) -> int:
    if process_set.process_set_id is None:
        raise ValueError("Process set provided does not exist, or has not been registered.")
    return process_set.process_set_id


def _place(process_set: ProcessSet) -> tuple[int, int]:
    """Returns size and rank within the set."""
    registered = engine.registered_set(_set_id(process_set))
    return len(registered.ranks), registered.set_rank


# -- operators: the real kernels ---------------------------------------------------------------------


@custom_op(
    "horovod::allreduce",
    mutates_args=(),
    schema="(Tensor tensor, str? name, int op, float prescale, float postscale, int "
    "process_set) -> Tensor",
)
def _allreduce(
    tensor: Tensor, name: str | None, op: int, prescale: float, postscale: float, process_set: int
) -> Tensor:
    rule = (ReduceOp(op), prescale, postscale, _set(process_set))
    return submission.wait(submission.allreduce(tensor, name, *rule, urgent=True))


@custom_op(
    "horovod::grouped_allreduce",
    mutates_args=(),
    schema="(Tensor[] tensors, str? name, int op, float prescale, float postscale, int "
    "process_set) -> Tensor[]",
)
def _grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
) -> list[Tensor]:
    rule = (ReduceOp(op), prescale, postscale, _set(process_set))
    return submission.wait(submission.grouped_allreduce(tensors, name, *rule, urgent=True))


@custom_op(
    "horovod::grouped_allgather",
    mutates_args=(),
    schema="(Tensor[] tensors, str? name, int process_set, bool grouped) -> Tensor[]",
)
def _grouped_allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: int, grouped: bool
) -> list[Tensor]:
    ranks = _set(process_set)
    handle = submission.allgather(tensors, name, ranks, grouped=grouped, urgent=True)
    return submission.wait(handle) if grouped else [submission.wait(handle)]


@custom_op(
    "horovod::own_rows",
    mutates_args=(),
    schema="(Tensor gathered, SymInt rows, int process_set) -> Tensor",
)
def _own_rows(gathered: Tensor, rows: int, process_set: int) -> Tensor:
    return own_rows([gathered], [rows], _set(process_set))[0].clone()


@custom_op(
    "horovod::broadcast",
    mutates_args=(),
    schema="(Tensor tensor, int root_rank, str? name, int process_set) -> Tensor",
)
def _broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: int) -> Tensor:
    handle = submission.broadcast(tensor, root_rank, name, _set(process_set), urgent=True)
    return submission.wait(handle)


@custom_op(
    "horovod::broadcast_gradient",
    mutates_args=(),
    schema="(Tensor grad, int root_rank, int process_set) -> Tensor",
)
def _broadcast_gradient(grad: Tensor, root_rank: int, process_set: int) -> Tensor:
    # One operator, so that no rank drops an allreduce whose result it would not need.
    reduced = averaged(grad, _set(process_set))
    return reduced if engine.identity().rank == root_rank else torch.zeros_like(reduced)


@custom_op(
    "horovod::alltoall",
    mutates_args=(),
    schema="(Tensor tensor, Tensor? splits, str? name, int process_set, int size) -> Tensor[]",
)
def _alltoall(
    tensor: Tensor, splits: Tensor | None, name: str | None, process_set: int, size: int
) -> list[Tensor]:
    handle = submission.alltoall(tensor, splits, name, _set(process_set), urgent=True)
    return list(submission.wait(handle))


@custom_op(
    "horovod::grouped_reducescatter",
    mutates_args=(),
    schema="(Tensor[] tensors, str? name, int op, float prescale, float postscale, int "
    "process_set, int size, int rank, bool grouped) -> Tensor[]",
)
def _grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
    size: int,
    rank: int,
    grouped: bool,
) -> list[Tensor]:
    rule = (ReduceOp(op), prescale, postscale, _set(process_set))
    handle = submission.reducescatter(tensors, name, *rule, grouped=grouped, urgent=True)
    return submission.wait(handle) if grouped else [submission.wait(handle)]


# -- fake kernels ------------------------------------------------------------------------------------


def _unknown_rows(tensor: Tensor) -> Tensor:
    rows = torch.library.get_ctx().new_dynamic_size()
    return tensor.new_empty((rows, *tensor.shape[1:]))


@_allreduce.register_fake
def _(tensor: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(tensor)


@_grouped_allreduce.register_fake
def _(tensors: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [torch.empty_like(tensor) for tensor in tensors]


@_grouped_allgather.register_fake
def _(tensors: Sequence[Tensor], *_: Any) -> list[Tensor]:
    return [_unknown_rows(tensor) for tensor in tensors]


@_own_rows.register_fake
def _(gathered: Tensor, rows: int, process_set: int) -> Tensor:
    return gathered.new_empty((rows, *gathered.shape[1:]))


@_broadcast.register_fake
def _(tensor: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(tensor)


@_broadcast_gradient.register_fake
def _(grad: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(grad)


@_alltoall.register_fake
def _(
    tensor: Tensor, splits: Tensor | None, name: str | None, process_set: int, size: int
) -> list[Tensor]:
    device = torch.device("cpu") if splits is None else splits.device
    received_splits = torch.empty((size,), dtype=torch.int32, device=device)
    return [_unknown_rows(tensor), received_splits]


@_grouped_reducescatter.register_fake
def _(
    tensors: Sequence[Tensor],
    name: str | None,
    op: int,
    prescale: float,
    postscale: float,
    process_set: int,
    size: int,
    rank: int,
    grouped: bool,
) -> list[Tensor]:
    return [
        tensor.new_empty(((tensor.shape[0] + size - 1 - rank) // size, *tensor.shape[1:]))
        for tensor in tensors
    ]


# -- gradients ---------------------------------------------------------------------------------------


def _keep_rule(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, *ctx.rule = inputs


def _allreduce_gradient(ctx: Any, grad: Tensor) -> Any:
    return _OPS.allreduce(grad, None, *ctx.rule), None, None, None, None, None


def _grouped_allreduce_gradient(ctx: Any, grads: list[Tensor]) -> Any:
    return _OPS.grouped_allreduce(grads, None, *ctx.rule), None, None, None, None, None


_allreduce.register_autograd(_allreduce_gradient, setup_context=_keep_rule)
_grouped_allreduce.register_autograd(_grouped_allreduce_gradient, setup_context=_keep_rule)


def _keep_rows(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensors, _, ctx.process_set, _ = inputs
    ctx.rows = [tensor.shape[0] for tensor in tensors]


def _grouped_allgather_gradient(ctx: Any, grads: list[Tensor]) -> Any:
    rule = (int(Average), 1.0, 1.0, ctx.process_set)
    reduced = _OPS.grouped_allreduce(grads, None, *rule)
    own = [
        _OPS.own_rows(tensor, rows, ctx.process_set)
        for tensor, rows in zip(reduced, ctx.rows, strict=True)
    ]
    return own, None, None, None


_grouped_allgather.register_autograd(_grouped_allgather_gradient, setup_context=_keep_rows)


def _keep_root(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, ctx.root_rank, _, ctx.process_set = inputs


def _broadcast_backward(ctx: Any, grad: Tensor) -> Any:
    return _OPS.broadcast_gradient(grad, ctx.root_rank, ctx.process_set), None, None, None


_broadcast.register_autograd(_broadcast_backward, setup_context=_keep_root)


def _keep_splits(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    tensor, _, _, ctx.process_set, ctx.size = inputs
    ctx.rows = tensor.shape[0]
    ctx.save_for_backward(output[1])


def _alltoall_gradient(ctx: Any, grads: list[Tensor]) -> Any:
    (received_splits,) = ctx.saved_tensors
    back, _ = _OPS.alltoall(grads[0], received_splits, None, ctx.process_set, ctx.size)
    missing = ctx.rows - back.shape[0]  # rows that no split covered
    padding = back.new_zeros((missing, *back.shape[1:]))
    return torch.cat([back, padding]), None, None, None, None


_alltoall.register_autograd(_alltoall_gradient, setup_context=_keep_splits)


def _keep_factor(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, op, prescale, postscale, ctx.process_set, size, _, ctx.grouped = inputs
    ctx.factor = (size if op == int(Sum) else 1) * prescale * postscale


def _grouped_reducescatter_gradient(ctx: Any, grads: list[Tensor]) -> Any:
    scaled = [grad * ctx.factor for grad in grads]
    gathered = _OPS.grouped_allgather(scaled, None, ctx.process_set, ctx.grouped)
    return gathered, *[None] * 8


_grouped_reducescatter.register_autograd(
    _grouped_reducescatter_gradient, setup_context=_keep_factor
)


# -- order -------------------------------------------------------------------------------------------

# Every rank must execute the same collectives in the same order, also where a rank does not use a
# result: as effects, torch neither drops nor reorders them. (Older versions cannot be told.)
if hasattr(_allreduce, "register_effect"):
    for _operator in (
        _allreduce,
        _grouped_allreduce,
        _grouped_allgather,
        _own_rows,
        _broadcast,
        _broadcast_gradient,
        _alltoall,
        _grouped_reducescatter,
    ):
        _operator.register_effect(torch.library.EffectType.ORDERED)


# -- what ops.py calls while torch traces it -----------------------------------------------------------


def allreduce(
    tensor: Tensor,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Tensor:
    """Traced form of a blocking allreduce."""
    rule = (int(op), prescale, postscale, _set_id(process_set))
    result: Tensor = _OPS.allreduce(tensor, name, *rule)
    return result


def grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Traced form of a blocking grouped allreduce."""
    rule = (int(op), prescale, postscale, _set_id(process_set))
    results: list[Tensor] = _OPS.grouped_allreduce(list(tensors), name, *rule)
    return results


def allgather(tensor: Tensor, name: str | None, process_set: ProcessSet) -> Tensor:
    """Traced form of a blocking allgather."""
    results: list[Tensor] = _OPS.grouped_allgather([tensor], name, _set_id(process_set), False)
    return results[0]


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet
) -> list[Tensor]:
    """Traced form of a blocking grouped allgather."""
    results: list[Tensor] = _OPS.grouped_allgather(list(tensors), name, _set_id(process_set), True)
    return results


def broadcast(tensor: Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Tensor:
    """Traced form of a blocking broadcast."""
    result: Tensor = _OPS.broadcast(tensor, root_rank, name, _set_id(process_set))
    return result


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
) -> tuple[Tensor, Tensor]:
    """Traced form of a blocking alltoall."""
    if splits is not None and not isinstance(splits, Tensor):
        splits = torch.tensor(splits, dtype=torch.int32)
    size = _place(process_set)[0]
    output, received_splits = _OPS.alltoall(tensor, splits, name, _set_id(process_set), size)
    return output, received_splits


def reducescatter(
    tensor: Tensor,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> Tensor:
    """Traced form of a blocking reducescatter."""
    rule = (int(op), prescale, postscale, _set_id(process_set), *_place(process_set))
    results: list[Tensor] = _OPS.grouped_reducescatter([tensor], name, *rule, False)
    return results[0]


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> list[Tensor]:
    """Traced form of a blocking grouped reducescatter."""
    rule = (int(op), prescale, postscale, _set_id(process_set), *_place(process_set))
    results: list[Tensor] = _OPS.grouped_reducescatter(list(tensors), name, *rule, True)
    return results
