"""Gradients of the ops, by the rules of Horovod 0.28.1 (docs/tensorflow.md lists them)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from horovod.common.dtypes import Average, ReduceOp, Sum
from horovod.common.engine import set_rank
from horovod.tensorflow import calls
from horovod.tensorflow.identity import rank_op, size_op

Tensor = Any


def _set_rank(process_set: int) -> Tensor:
    return rank_op() if process_set == 0 else tf.constant(set_rank(process_set))


def _reduction(op: Any) -> dict[str, Any]:
    """Returns the attributes that a reduction shares with its gradient."""
    return {
        "op": ReduceOp(op.get_attr("reduce_op")),
        "prescale": op.get_attr("prescale_factor"),
        "postscale": op.get_attr("postscale_factor"),
        **_place(op),
    }


def _place(op: Any) -> dict[str, Any]:
    return {
        "process_set": op.get_attr("process_set_id"),
        "ignore_name_scope": op.get_attr("ignore_name_scope"),
    }


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_gradient(op: Any, gradient: Tensor) -> Tensor:
    return calls.allreduce(gradient, **_reduction(op))


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce_gradient(op: Any, *gradients: Tensor) -> list[Tensor]:
    return calls.grouped_allreduce(gradients, **_reduction(op))


def own_rows(tensor: Tensor, gradient: Tensor, process_set: int) -> Tensor:
    """Returns the part of an averaged gradient of a gathered tensor that belongs to this rank."""
    reduced = calls.allreduce(gradient, Average, process_set=process_set)
    rows = tf.reshape(tf.shape(tensor)[0], [1])
    all_rows = calls.allgather(rows, process_set=process_set)
    begin = tf.reduce_sum(all_rows[: _set_rank(process_set)])
    return tf.ensure_shape(reduced[begin : begin + rows[0]], tensor.shape)


@tf.RegisterGradient("HorovodAllgather")
def _allgather_gradient(op: Any, gradient: Tensor) -> Tensor:
    return own_rows(op.inputs[0], gradient, op.get_attr("process_set_id"))


@tf.RegisterGradient("HorovodGroupedAllgather")
def _grouped_allgather_gradient(op: Any, *gradients: Tensor) -> list[Tensor]:
    process_set = op.get_attr("process_set_id")
    return [
        own_rows(tensor, gradient, process_set)
        for tensor, gradient in zip(op.inputs, gradients, strict=True)
    ]


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_gradient(op: Any, gradient: Tensor) -> Tensor:
    reduced = calls.allreduce(gradient, Average, **_place(op))
    is_root = tf.equal(rank_op(), op.get_attr("root_rank"))
    return tf.where(is_root, reduced, tf.zeros_like(reduced))


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_gradient(op: Any, gradient: Tensor, _: Tensor) -> list[Tensor | None]:
    back, _received = calls.alltoall(gradient, splits=op.outputs[1], **_place(op))
    return [tf.ensure_shape(back, op.inputs[0].shape), None]


def _scattered_gradient(op: Any, gradient: Tensor) -> Tensor:
    factor = op.get_attr("prescale_factor") * op.get_attr("postscale_factor")
    if ReduceOp(op.get_attr("reduce_op")) is Sum:
        size = tf.cast(size_op(op.get_attr("process_set_id")), gradient.dtype)
        gradient = gradient * size
    return gradient if factor == 1.0 else gradient * tf.cast(factor, gradient.dtype)


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter_gradient(op: Any, gradient: Tensor) -> Tensor:
    whole = calls.allgather(_scattered_gradient(op, gradient), **_place(op))
    return tf.ensure_shape(whole, op.inputs[0].shape)


@tf.RegisterGradient("HorovodGroupedReducescatter")
def _grouped_reducescatter_gradient(op: Any, *gradients: Tensor) -> list[Tensor]:
    scaled = [_scattered_gradient(op, gradient) for gradient in gradients]
    whole = calls.grouped_allgather(scaled, **_place(op))
    return [
        tf.ensure_shape(tensor, given.shape) for tensor, given in zip(whole, op.inputs, strict=True)
    ]
