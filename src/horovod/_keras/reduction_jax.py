"""Reduction of gradients that are JAX arrays, inside and outside of `jax.jit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from horovod._keras.reduction import Gradient, ListReduction
from horovod.common.dtypes import Max
from horovod.numpy.ops import allreduce_async, grouped_allreduce_async, synchronize


class JaxReduction(ListReduction):
    """Reduces JAX arrays through `horovod.numpy`.

    Compiled code calls back into Python. The callback is ordered: programs that are dispatched one after
    the other reduce in this order, on all ranks the same. It cannot deadlock: the thread of XLA that runs
    it waits only for other processes, whose callbacks wait for nothing of this one but the very same
    operation; waiting releases Python's lock; and its arguments are complete when it is called, so turning
    them into NumPy arrays waits for no other thread of XLA (on the CPU they even share memory).
    """

    def _reduce(self, results: list[Gradient], mine: list[int], variables: Sequence[Any]) -> None:
        position = {i: k for k, i in enumerate(mine)}
        groups = [[position[i] for i in group] for group in self._grouped(mine, variables)]
        present = [results[i] is not None for i in mine]
        arrays = [
            jnp.zeros(variables[i].shape, variables[i].dtype)
            if results[i] is None
            else jnp.asarray(results[i])
            for i in mine
        ]

        def exchange(*arrays: Any) -> list[np.ndarray]:
            return self._exchange([np.asarray(array) for array in arrays], groups, present)

        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
            reduced = io_callback(exchange, shapes, *arrays, ordered=True)
        else:
            reduced = [jnp.asarray(array) for array in exchange(*arrays)]
        for i, array, there in zip(mine, reduced, present, strict=True):
            results[i] = array if there else None

    def _exchange(
        self, arrays: list[np.ndarray], groups: list[list[int]], present: list[bool]
    ) -> list[np.ndarray]:
        """Reduces arrays, zeros where this rank has no gradient.

        Raises:
            ValueError: on all ranks, if one has a gradient that another lacks: a compiled program has a
                gradient or has none, it cannot be told.
        """
        options = self.options
        op, prescale, postscale = options.factors
        kinds = np.array([present, [not there for there in present]], dtype=np.uint8)
        agreement = allreduce_async(
            kinds, op=Max, name=f"{self.name}_kinds", process_set=options.process_set
        )
        pending = []
        for number, members in enumerate(groups):
            sent = [options.compression.compress(arrays[k]) for k in members]
            handle = grouped_allreduce_async(
                [array for array, _ in sent],
                name=f"{self.name}_grads_{number}",
                op=op,
                prescale_factor=prescale,
                postscale_factor=postscale,
                process_set=options.process_set,
            )
            pending.append((handle, members, sent))
        highest = synchronize(agreement)
        results = list(arrays)
        for handle, members, sent in pending:
            for k, array, (_, context) in zip(members, synchronize(handle), sent, strict=True):
                results[k] = options.compression.decompress(array, context)
        if np.any(highest[0] & highest[1]):
            raise ValueError(
                "Ranks have different gradients: each rank must have one for the same variables. Give all "
                "ranks the same model and loss (multiply by zero what a rank does not use). By variable, "
                f"here: {present}; somewhere: {highest[0].astype(bool).tolist()}."
            )
        return results
