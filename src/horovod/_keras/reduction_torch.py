"""Reduction of gradients that are torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod._keras.reduction import Gradient, ListReduction
from horovod.common.dtypes import Max
from horovod.torch.ops import allreduce_async, grouped_allreduce_async, synchronize


class TorchReduction(ListReduction):
    """Reduces torch tensors through `horovod.torch`.

    A gradient that this rank lacks and another has counts as zero, as in one process that sees all
    batches: what torch computes for a variable may depend on the data. One that no rank has stays None.
    """

    # torch.compile breaks its graph here: which gradients are there is known only at run time.
    @torch.compiler.disable
    def _reduce(self, results: list[Gradient], mine: list[int], variables: Sequence[Any]) -> None:
        with torch.no_grad():
            self._exchange(results, mine, variables)

    def _exchange(self, results: list[Gradient], mine: list[int], variables: Sequence[Any]) -> None:
        options = self.options
        op, prescale, postscale = options.factors
        present = torch.tensor([results[i] is not None for i in mine], dtype=torch.uint8)
        presence = allreduce_async(
            present, op=Max, name=f"{self.name}_present", process_set=options.process_set
        )
        pending = []
        for number, members in enumerate(self._grouped(mine, variables)):
            sent = [options.compression.compress(_dense(results[i], variables[i])) for i in members]
            handle = grouped_allreduce_async(
                [tensor for tensor, _ in sent],
                name=f"{self.name}_grads_{number}",
                op=op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set=options.process_set,
            )
            pending.append((handle, members, sent))
        somewhere = dict(zip(mine, synchronize(presence).tolist(), strict=True))
        for handle, members, sent in pending:
            for i, tensor, (_, context) in zip(members, synchronize(handle), sent, strict=True):
                results[i] = (
                    options.compression.decompress(tensor, context) if somewhere[i] else None
                )


def _dense(gradient: Gradient, variable: Any) -> torch.Tensor:
    if gradient is None:
        return torch.zeros_like(variable.value)
    return gradient.to_dense() if gradient.layout is not torch.strided else gradient
