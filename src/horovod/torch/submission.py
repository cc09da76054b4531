"""From checked arguments to the engine: one function per collective, each returns a handle.

These take a resolved reduction operator and know nothing of autograd or torch.compile; the public
functions, the optimizer and the compiled operators all end here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from horovod.common import collectives
from horovod.common.collectives import Output, check_splits, count_refusal
from horovod.common.dtypes import Collective, ReduceOp
from horovod.common.process_sets import ProcessSet
from horovod.torch.tensors import (
    check_same_device,
    describe,
    empty_result,
    from_output,
    on_host,
    write_back,
)


def _hosted(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> list[Tensor]:
    """Returns the tensors in host memory; a refusal counts as a submission, as `submit`'s do."""
    try:
        check_same_device(tensors)
        return [on_host(tensor, name) for tensor in tensors]
    except (TypeError, ValueError, RuntimeError):
        count_refusal(name, process_set)
        raise


def allreduce(
    tensor: Tensor,
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    *,
    in_place: bool = False,
    urgent: bool = False,
) -> int:
    """Submits one allreduce; the handle yields `tensor` itself or a new tensor of its strides."""
    try:
        wire = on_host(tensor, name)
    except (TypeError, ValueError, RuntimeError):
        count_refusal(name, process_set)
        raise
    if in_place:
        result, answer = tensor, wire
    else:
        result, answer = empty_result(tensor, wire)
    described = describe(wire)

    def finish(_: list[Output]) -> Tensor:
        return write_back(result, answer) if in_place or result is not answer else result

    return collectives.submit(
        Collective.ALLREDUCE,
        (described,),
        (described if answer is wire else describe(answer),),
        name=name,
        op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        urgent=urgent,
        finish=finish,
        keep_alive=wire,
    )


def grouped_allreduce(
    tensors: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    *,
    in_place: bool = False,
    urgent: bool = False,
) -> int:
    """Submits a group that completes as one; the handle yields a list."""
    wires = _hosted(tensors, name, process_set)
    if in_place:
        pairs = list(zip(tensors, wires, strict=True))
    else:
        pairs = [empty_result(tensor, wire) for tensor, wire in zip(tensors, wires, strict=True)]

    def finish(_: list[Output]) -> list[Tensor]:
        return [
            write_back(result, answer) if in_place or result is not answer else result
            for result, answer in pairs
        ]

    return collectives.submit(
        Collective.ALLREDUCE,
        [describe(wire) for wire in wires],
        [describe(answer) for _, answer in pairs],
        name=name,
        grouped=True,
        op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        urgent=urgent,
        finish=finish,
        keep_alive=wires,
    )


def _outputs_like(tensors: Sequence[Tensor]) -> Callable[[list[Output]], list[Tensor]]:
    """Returns a `finish` for results that the engine allocates, one per tensor."""
    kinds = [(tensor.dtype, tensor.device) for tensor in tensors]

    def finish(outputs: list[Output]) -> list[Tensor]:
        return [
            from_output(output, dtype, device)
            for output, (dtype, device) in zip(outputs, kinds, strict=True)
        ]

    return finish


def _first(finish: Callable[[list[Output]], list[Tensor]]) -> Callable[[list[Output]], Tensor]:
    return lambda outputs: finish(outputs)[0]


def allgather(
    tensors: Sequence[Tensor],
    name: str | None,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
    urgent: bool = False,
) -> int:
    """Submits one allgather, or a group of them; the handle yields a tensor or a list."""
    wires = _hosted(tensors, name, process_set)
    finish = _outputs_like(tensors)
    return collectives.submit(
        Collective.ALLGATHER,
        [describe(wire) for wire in wires],
        None,
        name=name,
        grouped=grouped,
        process_set=process_set,
        urgent=urgent,
        finish=finish if grouped else _first(finish),
        keep_alive=wires,
    )


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    in_place: bool = False,
    urgent: bool = False,
) -> int:
    """Submits one broadcast; the handle yields `tensor` itself or a new tensor of its strides."""
    (wire,) = _hosted((tensor,), name, process_set)
    if in_place:
        result, answer = tensor, wire
    else:
        result, answer = empty_result(tensor, wire)

    def finish(_: list[Output]) -> Tensor:
        return write_back(result, answer) if in_place or result is not answer else result

    return collectives.submit(
        Collective.BROADCAST,
        (describe(wire),),
        (describe(answer),),
        name=name,
        root_rank=root_rank,
        process_set=process_set,
        urgent=urgent,
        finish=finish,
        keep_alive=wire,
    )


def _split_list(
    splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet
) -> Sequence[int] | None:
    if not isinstance(splits, Tensor):
        return splits
    check_splits(splits.dim(), splits.dtype == torch.int32, name, process_set)
    counts: list[int] = splits.tolist()
    return counts


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
    *,
    urgent: bool = False,
) -> int:
    """Submits one alltoall; the handle yields (output, received_splits)."""
    (wire,) = _hosted((tensor,), name, process_set)
    counts = _split_list(splits, name, process_set)
    dtype, device = tensor.dtype, tensor.device
    splits_device = splits.device if isinstance(splits, Tensor) else torch.device("cpu")

    def finish(outputs: list[Output]) -> tuple[Tensor, Tensor]:
        received = torch.tensor(outputs[0].received_splits, dtype=torch.int32, device=splits_device)
        return from_output(outputs[0], dtype, device), received

    return collectives.submit(
        Collective.ALLTOALL,
        (describe(wire),),
        None,
        name=name,
        splits=counts,
        process_set=process_set,
        urgent=urgent,
        finish=finish,
        keep_alive=wire,
    )


def reducescatter(
    tensors: Sequence[Tensor],
    name: str | None,
    op: ReduceOp,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    *,
    grouped: bool = False,
    urgent: bool = False,
) -> int:
    """Submits one reducescatter, or a group of them; the handle yields a tensor or a list."""
    wires = _hosted(tensors, name, process_set)
    finish = _outputs_like(tensors)
    return collectives.submit(
        Collective.REDUCESCATTER,
        [describe(wire) for wire in wires],
        None,
        name=name,
        grouped=grouped,
        op=op,
        prescale=prescale,
        postscale=postscale,
        process_set=process_set,
        urgent=urgent,
        finish=finish if grouped else _first(finish),
        keep_alive=wires,
    )


def wait(handle: int) -> Any:
    """Waits for a handle and returns what it yields; an unknown handle yields None."""
    return collectives.synchronize(handle)
