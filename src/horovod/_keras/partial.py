"""`PartialDistributedOptimizer`: some layers keep their gradients on their rank."""

from __future__ import annotations

from typing import Any


def local_variables_of(local_layers: Any) -> list[Any]:
    """Returns the trainable weights of layers.

    Args:
        local_layers: a layer, a list of layers, or None.

    Raises:
        ValueError: something else is among them, or a layer that has no weights yet.
    """
    if local_layers is None:
        return []
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    variables: list[Any] = []
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers must be layers of Keras, not {type(layer).__name__}.")
        if not getattr(layer, "built", True):
            raise ValueError(
                f"The layer {layer.name} in local_layers has no weights yet, so they cannot be kept "
                "local; build the model first, e.g. by calling it on a batch."
            )
        variables.extend(layer.trainable_weights)
    return variables
