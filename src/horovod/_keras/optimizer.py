"""`DistributedOptimizer`: a subclass of the optimizer's own class, made when it is asked for."""

from __future__ import annotations

from typing import Any

from horovod._keras.distribution import Wrapping
from horovod._keras.flavour import Flavour, inner_optimizer, innermost
from horovod._keras.loss_scale import agree_before_check
from horovod._keras.optimizer_keras2 import DistributedKeras2, ScaledKeras2
from horovod._keras.optimizer_keras3 import DistributedKeras3, ScaledKeras3
from horovod._keras.options import Options
from horovod._keras.serialization import save_as_plain

_classes: dict[Any, type] = {}

# What users set on an optimizer that is not in its configuration.
_BESIDE_CONFIG = (
    "_exclude_from_weight_decay",
    "_exclude_from_weight_decay_pattern",
    "_exclude_from_weight_decay_names",
)


def is_distributed(optimizer: Any) -> bool:
    """Tells whether an optimizer, or the one inside a LossScaleOptimizer, is distributed."""
    return hasattr(innermost(optimizer), "_hvd_reduction")


def wrap(
    flavour: Flavour, optimizer: Any, options: Options, function: str = "DistributedOptimizer"
) -> Any:
    """Returns a new optimizer of the same configuration that works with the gradients of all ranks.

    Args:
        flavour: the Keras of the door that was called.
        optimizer: a plain one. It is left alone; its state is not carried over.
        options: how gradients are reduced.
        function: the name of the function that was called, for texts.

    Raises:
        ValueError: it is no optimizer of this Keras, distributed already, or does not go with the options.
    """
    if is_distributed(optimizer):
        raise ValueError(
            f"This {type(optimizer).__name__} is a DistributedOptimizer already; wrap the plain optimizer, "
            "once. Its gradients would be averaged twice."
        )
    flavour.check_optimizer(optimizer, function)
    cls = distributed_class(optimizer, Wrapping(flavour, options))
    distributed = cls.from_config(dict(optimizer.get_config()))
    for name in _BESIDE_CONFIG:
        if hasattr(optimizer, name):
            setattr(distributed, name, getattr(optimizer, name))
    return distributed


def distribute_in_place(optimizer: Any, wrapping: Wrapping) -> None:
    """Makes a plain optimizer distributed and leaves its state as it is."""
    optimizer.__class__ = distributed_class(optimizer, wrapping)
    optimizer._hvd_attach()


def distributed_class(optimizer: Any, wrapping: Wrapping) -> Any:
    """Returns the distributed subclass of an optimizer's class; for equal arguments the same."""
    plain = type(optimizer)
    try:
        key: Any = (plain, wrapping)
        if key not in _classes:
            _classes[key] = _make_class(optimizer, wrapping)
        return _classes[key]
    except TypeError:  # lists of variables in groups= have no hash
        return _make_class(optimizer, wrapping)


def _make_class(optimizer: Any, wrapping: Wrapping) -> type:
    plain = type(optimizer)
    is_scaling = inner_optimizer(optimizer) is not None
    mixin: type
    if hasattr(plain, "stateless_apply"):
        agree_before_check(wrapping.flavour)
        mixin = ScaledKeras3 if is_scaling else DistributedKeras3
    else:
        mixin = ScaledKeras2 if is_scaling else DistributedKeras2
    attributes = {
        "__module__": "horovod._keras",
        "__doc__": plain.__doc__,
        "_hvd_wrapping": wrapping,
        "_hvd_distribute": staticmethod(distribute_in_place),
    }
    cls = type(plain.__name__, (mixin, plain), attributes)
    save_as_plain(cls, plain, wrapping.flavour.package)
    return cls
