"""Which Keras a door works with: the module, the backend it runs on, and what it can do.

Keras 3 runs on TensorFlow, torch or JAX; Keras 2 (TensorFlow 2.15's `tf.keras`, or the package tf_keras)
on TensorFlow. All differences are asked for by capability, and all those questions are here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any

import numpy as np

BACKENDS = ("tensorflow", "torch", "jax")


@dataclass(frozen=True)
class Flavour:
    """One Keras.

    Args:
        door: name of the module that users import, for texts.
        name: what users call that Keras, for texts.
        keras: the module.
    """

    door: str
    name: str
    keras: ModuleType

    @cached_property
    def backend(self) -> str:
        """One of BACKENDS."""
        name = str(self.keras.backend.backend())
        if name not in BACKENDS:
            raise ImportError(
                f"{self.door} works with Keras on the backends {', '.join(BACKENDS)}, and this process runs "
                f"it on {name!r}. Set the environment variable KERAS_BACKEND before keras is imported."
            )
        return name

    @cached_property
    def has_keras_ops(self) -> bool:
        """Tells whether this is a Keras of several backends (Keras 3)."""
        return hasattr(self.keras, "ops")

    @cached_property
    def title(self) -> str:
        """The name of this Keras in texts."""
        version = getattr(sys.modules.get(self.package), "__version__", "of unknown version")
        return f"{self.name} {version} on {self.backend}"

    @cached_property
    def package(self) -> str:
        """The root package that implements this Keras: "keras" or "tf_keras"."""
        return self.optimizer_classes[0].__module__.split(".")[0]

    @cached_property
    def optimizer_classes(self) -> tuple[type, ...]:
        """The base classes of this Keras's optimizers."""
        optimizers = self.keras.optimizers
        places = (optimizers, getattr(optimizers, "legacy", None))
        bases = [getattr(place, "Optimizer", None) for place in places]
        # Keras 3 has optimizers.legacy.Optimizer too, a class that only raises.
        return tuple(
            base for base in bases if base is not None and hasattr(base, "apply_gradients")
        )

    def check_optimizer(self, optimizer: Any, function: str) -> None:
        """Raises ValueError unless this is an optimizer of this Keras.

        Args:
            optimizer: what the caller gave.
            function: the name of the function that was called, for the text.
        """
        if isinstance(optimizer, self.optimizer_classes):
            return
        call = f"{self.door}.{function}"
        kind = type(optimizer)
        if isinstance(optimizer, type):
            raise ValueError(
                f"{call} needs an optimizer, and got the class {optimizer.__name__}; make an object of it: "
                f"{optimizer.__name__}(...)."
            )
        if hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "get_config"):
            raise ValueError(
                f"{call} works with optimizers of {self.title}, and got a {kind.__name__} of another Keras "
                f"({kind.__module__}). Create it with {self.name}.optimizers, or use {_door_of(kind)}."
            )
        raise ValueError(
            f"{call} needs an optimizer of {self.title}, and got a {kind.__name__} ({kind.__module__}); "
            f"create one, e.g. {self.name}.optimizers.SGD(0.01)."
        )

    def to_numpy(self, value: Any) -> np.ndarray:
        """Returns the value of a tensor or variable of this Keras, or of a number, as an array."""
        if self.has_keras_ops:
            return np.asarray(self.keras.ops.convert_to_numpy(value))
        return np.asarray(self.keras.backend.get_value(value) if hasattr(value, "dtype") else value)


def _door_of(kind: type) -> str:
    """Returns which door takes objects of this class, as a phrase."""
    if kind.__module__.startswith("tf_keras"):
        return "horovod.tensorflow.keras with TF_USE_LEGACY_KERAS=1 in the environment"
    return "horovod.keras if that is the door of its Keras"


def inner_optimizer(optimizer: Any) -> Any:
    """Returns the optimizer inside a LossScaleOptimizer, None if this is another kind."""
    return getattr(optimizer, "inner_optimizer", None)


def innermost(optimizer: Any) -> Any:
    """Returns the optimizer that updates variables: that inside a LossScaleOptimizer, or itself."""
    inner = inner_optimizer(optimizer)
    return optimizer if inner is None else innermost(inner)
