"""`DistributedGradientTape`: a tape whose `gradient` returns the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from horovod.common.compression import Compressor
from horovod.common.consistency import VARIABLE
from horovod.common.dtypes import Adasum, Average, ReduceOp
from horovod.common.knobs import value_of
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.consistency import check_of_tape, compare_after_step
from horovod.tensorflow.gradient_reduction import Reduction, resolve_groups


class _DistributedGradientTape:
    """What is put in front of the class of the user's tape."""

    _hvd_reduction: Reduction
    _hvd_is_checked: bool

    def register_local_source(self, source: Any) -> None:
        """Keeps the gradient of this source on its rank."""
        self._hvd_reduction.register_local(source)

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **options: Any,
    ) -> Any:
        """Returns the gradients of all ranks in the structure of `sources`.

        Args:
            target: as of `tf.GradientTape.gradient`.
            sources: as of `tf.GradientTape.gradient`: a variable, or a structure of them.
            output_gradients: as of `tf.GradientTape.gradient`.
            use_generic_names: accepted for old callers; names never depend on the variables'.
            options: further ones of `tf.GradientTape.gradient`.
        """
        del use_generic_names
        gradients = super().gradient(target, sources, output_gradients, **options)  # type: ignore[misc]
        flat_sources = tf.nest.flatten(sources)
        if self._hvd_is_checked:
            found = check_of_tape(self._hvd_reduction, flat_sources)
            if found is not None:
                compare_after_step(*found)
        # IndexedSlices are one gradient here, a structure to tf.nest.
        flat = tf.nest.flatten(gradients, expand_composites=False)
        reduced = self._hvd_reduction(flat, flat_sources)
        return tf.nest.pack_sequence_as(sources, reduced)


_classes: dict[Any, type] = {}


def _distributed_class(tape_class: type) -> type:
    """Returns the class, made once: a new one for every tape would never be freed."""
    if tape_class not in _classes:
        _classes[tape_class] = type(tape_class.__name__, (_DistributedGradientTape, tape_class), {})
    return _classes[tape_class]


def _wrap(tape: Any, reduction: Reduction) -> Any:
    if isinstance(tape, _DistributedGradientTape):
        raise ValueError(
            "This tape is a DistributedGradientTape already; wrap the plain tf.GradientTape, once. Its "
            "gradients would be averaged twice."
        )
    if not isinstance(tape, tf.GradientTape):
        raise ValueError(
            f"DistributedGradientTape needs a tf.GradientTape, not a {type(tape).__name__}."
        )
    wrapped: Any = object.__new__(_distributed_class(type(tape)))
    # The wrapped tape goes on where the user's stands: it shares the recording.
    wrapped.__dict__.update(tape.__dict__)
    wrapped._hvd_reduction = reduction
    wrapped._hvd_is_checked = bool(value_of(VARIABLE))
    return wrapped


def DistributedGradientTape(  # noqa: N802 - the public name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a tape whose `gradient` returns the gradients of all ranks.

    Args:
        gradtape: a `tf.GradientTape`, recording or done; also a persistent one.
        device_dense: device for the ops on dense gradients.
        device_sparse: device for the ops on IndexedSlices.
        compression: what is done to a gradient before the wire, and undone after it.
        sparse_as_dense: make gradients dense that are IndexedSlices.
        op: Average or Sum.
        gradient_predivide_factor: f: divide by f before the sum and by size/f after it.
        num_groups: old form of `groups`.
        groups: a number of nearly equal groups of gradients, or lists of variables; each group is
            reduced as one operation.
        process_set: the ranks that take part; others get their own gradients.
        scale_local_gradients: divide the gradients of local sources by the size of the set.

    Raises:
        ValueError: `gradtape` is no tape or wrapped already, or an argument is wrong.
        NotImplementedError: Adasum.
    """
    if op is Adasum:
        raise NotImplementedError("Adasum is not available yet; use op=Average or op=Sum.")
    return _wrap(
        gradtape,
        Reduction(
            name="DistributedGradientTape",
            op=ReduceOp(op),
            device_dense=device_dense,
            device_sparse=device_sparse,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            gradient_predivide_factor=gradient_predivide_factor,
            groups=resolve_groups(num_groups, groups),
            process_set=process_set,
            scale_local_gradients=scale_local_gradients,
        ),
    )


class _PartialDistributedGradientTape:
    """What `PartialDistributedGradientTape` adds."""

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], *args: Any, **kwargs: Any
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Returns pairs of variable and gradient: of the local sources, and of the others."""
        gradients = self.gradient(target, sources, *args, **kwargs)  # type: ignore[attr-defined]
        is_local = self._hvd_reduction.is_local  # type: ignore[attr-defined]
        pairs = list(zip(sources, gradients, strict=True))
        return (
            [pair for pair in pairs if is_local(pair[0])],
            [pair for pair in pairs if not is_local(pair[0])],
        )


def PartialDistributedGradientTape(  # noqa: N802 - the public name
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Returns a distributed tape that leaves the gradients of some layers on their rank.

    Args as of `DistributedGradientTape`, and:
        local_layers: a layer or a list of layers whose trainable weights are local.

    Raises:
        ValueError: as of `DistributedGradientTape`, or `local_layers` has something else in it.
    """
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    for layer in local_layers_of(local_layers):
        for weight in layer.trainable_weights:
            tape.register_local_source(weight)
    tape.__class__ = _partial_class(type(tape))
    return tape


def local_layers_of(local_layers: Any) -> list[Any]:
    """Returns the layers as a list.

    Raises:
        ValueError: something in it has no trainable weights.
    """
    if local_layers is None:
        return []
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers must be layers of Keras, not {type(layer).__name__}.")
    return list(layers)


def _partial_class(tape_class: type) -> type:
    key = (_PartialDistributedGradientTape, tape_class)
    if key not in _classes:
        _classes[key] = type(tape_class.__name__, key, {})
    return _classes[key]
