"""`SyncBatchNorm`: batch normalisation over the batches of all ranks, of public operations only.

Every rank sends its count, means and sums of squared deviations per channel; all combine them alike
(Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances",
1979). So ranks may have batches of different sizes, or none, and no precision is lost in a
difference of large sums. Half-precision inputs are summed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common.dtypes import Sum
from horovod.common.process_sets import global_process_set
from horovod.torch.naming import next_number
from horovod.torch.ops import allgather, allreduce


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _rows(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns the tensor as (channels, values per channel)."""
    return tensor.to(dtype).transpose(0, 1).reshape(tensor.shape[1], -1)


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(1, -1, *[1] * (like.dim() - 2))


def _global_statistics(batch: Tensor, name: str) -> tuple[int, Tensor, Tensor]:
    """Returns count, mean and biased variance per channel over all ranks."""
    dtype = _sum_dtype(batch.dtype)
    rows = _rows(batch, dtype)
    channels, count = rows.shape
    mean = rows.mean(1) if count else rows.new_zeros(channels)
    deviations = (rows - mean[:, None]).square().sum(1)
    # Counts below 2^24 are exact in float32; larger ones travel in two parts.
    counts = rows.new_tensor([count >> 20, count & 0xFFFFF])
    own = torch.cat([counts, mean, deviations])[None]
    table = allgather(own, name)
    weights = (table[:, 0].double() * (1 << 20) + table[:, 1].double())[:, None]
    means, squares = table[:, 2 : 2 + channels].double(), table[:, 2 + channels :].double()
    total = int(weights.sum())
    if total == 0:
        return 0, mean, torch.zeros_like(mean)
    combined = (weights * means).sum(0) / total
    spread = (squares + weights * (means - combined).square()).sum(0)
    return total, combined.to(dtype), (spread / total).to(dtype)


class _SyncBatchNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        batch: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        statistics: tuple[int, Tensor, Tensor],
        eps: float,
        name: str,
    ) -> Tensor:
        total, mean, variance = statistics
        scale = torch.rsqrt(variance + eps)
        normalised = (batch.to(scale.dtype) - _per_channel(mean, batch)) * _per_channel(
            scale, batch
        )
        ctx.save_for_backward(batch, weight, mean, scale)
        ctx.total, ctx.name = total, name
        if weight is not None:
            normalised = normalised * _per_channel(weight, batch)
        if bias is not None:
            normalised = normalised + _per_channel(bias, batch)
        return normalised.to(batch.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> Any:
        batch, weight, mean, scale = ctx.saved_tensors
        grad = grad_output.to(scale.dtype)
        centred = batch.to(scale.dtype) - _per_channel(mean, batch)
        sum_dy = _rows(grad, scale.dtype).sum(1)
        sum_dy_xmu = _rows(grad * centred, scale.dtype).sum(1)
        sums = torch.stack([sum_dy, sum_dy_xmu])
        all_dy, all_dy_xmu = allreduce(sums, name=f"{ctx.name}.sum_dy", op=Sum) / max(ctx.total, 1)
        grad_input = grad - _per_channel(all_dy, batch)
        grad_input = grad_input - centred * _per_channel(scale.square() * all_dy_xmu, batch)
        factor = scale if weight is None else scale * weight
        grad_input = (grad_input * _per_channel(factor, batch)).to(batch.dtype)
        # Of weight and bias each rank returns its own part; the optimizer reduces them.
        grad_weight = (sum_dy_xmu * scale).to(weight.dtype) if weight is not None else None
        grad_bias = sum_dy.to(weight.dtype) if ctx.needs_input_grad[2] else None
        return grad_input, grad_weight, grad_bias, None, None, None


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation whose statistics are those of the batches of all ranks together.

    In eval mode and with one rank it is ordinary batch normalisation. Arguments as in
    `torch.nn.BatchNorm1d`; inputs have the shape (batch, channels, ...), on any device.
    """

    _layer: int | None = None  # numbered when first used, so that spare models do not count

    def _check_input_dim(self, batch: Tensor) -> None:
        if batch.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {batch.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalises a batch; in training mode all ranks must call it, also with empty batches."""
        self._check_input_dim(input)
        return self._maybe_run_sync_bn(input) if self.training else self._forward_alone(input)

    # Horovod 0.28 has this method too, by this name and hidden from TorchScript.
    @torch.jit.unused
    def _maybe_run_sync_bn(self, input: Tensor) -> Tensor:  # noqa: A002
        size = global_process_set.size()
        if size is None or size <= 1:
            return self._forward_alone(input)
        return self._forward_synchronised(input)

    def _forward_alone(self, batch: Tensor) -> Tensor:
        factor = self._advance() if self.training else 0.0
        own_statistics = self.training or self.running_mean is None
        track = not self.training or self.track_running_stats
        return functional.batch_norm(
            batch,
            self.running_mean if track else None,
            self.running_var if track else None,
            self.weight,
            self.bias,
            own_statistics,
            factor,
            self.eps,
        )

    def _advance(self) -> float:
        """Counts a batch; returns the weight of this batch in the running statistics."""
        factor = 0.0 if self.momentum is None else self.momentum
        if self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        return factor

    def _forward_synchronised(self, batch: Tensor) -> Tensor:
        if self._layer is None:
            self._layer = next_number("sync_batch_norm")
        name = f"sync_batch_norm.{self._layer}"
        with torch.no_grad():
            statistics = _global_statistics(batch, f"{name}.mean")
            total = statistics[0]
            if total == 1:
                raise ValueError(
                    "Expected more than 1 value per channel when training, got input size "
                    f"{list(batch.shape)} and nothing on other ranks"
                )
            factor = self._advance()
            if total:
                self._track(factor, *statistics)
        result: Tensor = _SyncBatchNormFunction.apply(
            batch, self.weight, self.bias, statistics, self.eps, name
        )
        return result

    def _track(self, factor: float, total: int, mean: Tensor, variance: Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        unbiased = variance * (total / (total - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)
