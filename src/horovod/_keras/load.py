"""`load_model`: a saved model whose optimizer is distributed."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from horovod._keras.distribution import Wrapping
from horovod._keras.flavour import Flavour, innermost
from horovod._keras.optimizer import distribute_in_place, is_distributed
from horovod._keras.options import Options
from horovod.common.compression import Compressor


def load_model(
    flavour: Flavour,
    filepath: Any,
    custom_optimizers: Iterable[type] | None,
    custom_objects: dict[str, Any] | None,
    compression: type[Compressor],
    legacy_opts: bool,
) -> Any:
    """Loads a model and makes its optimizer distributed, with the state it was saved with.

    Args:
        flavour: the Keras.
        filepath: as of Keras's `load_model`.
        custom_optimizers: classes of optimizers that Keras does not know.
        custom_objects: as of Keras's `load_model`; these win over `custom_optimizers`.
        compression: what is done to a gradient before the wire, and undone after it.
        legacy_opts: accepted for old callers: an optimizer is of the class that it was saved with.
    """
    del legacy_opts
    known: dict[str, Any] = {cls.__name__: cls for cls in custom_optimizers or ()}
    known.update(custom_objects or {})
    name = _saved_optimizer(filepath)
    if isinstance(known.get(name), FunctionType):
        known[name] = _Factory(known[name])
    model = flavour.keras.models.load_model(filepath, custom_objects=known)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return model
    if _knows_other_variables(optimizer, model):
        warnings.warn(
            f"{flavour.title} did not restore the optimizer's state from {filepath}: its reader of the "
            "old HDF5 format does not find the variables of such a model. The optimizer begins anew; "
            "save to a file that ends with .keras instead.",
            stacklevel=3,
        )
        optimizer = model.optimizer = type(optimizer).from_config(optimizer.get_config())
    if not is_distributed(optimizer):
        distribute_in_place(optimizer, Wrapping(flavour, Options(compression=compression)))
    return model


def _knows_other_variables(optimizer: Any, model: Any) -> bool:
    """Tells whether an optimizer was built for other variables than the model's; it could not train it."""
    inner = innermost(optimizer)
    built_for = getattr(inner, "_trainable_variables", None)  # Keras 3
    if built_for is None or not inner.built:
        return False
    return len(built_for) != len(model.trainable_variables)


class _Factory:
    """A function that makes an optimizer, in the form in which Keras 3 looks for classes."""

    def __init__(self, make: FunctionType) -> None:
        self._make = make

    def from_config(self, config: dict[str, Any]) -> Any:
        """Returns the optimizer."""
        return self._make(**config)


def _saved_optimizer(filepath: Any) -> str:
    """Returns the name under which Keras looks for the class of a saved optimizer; "" if unknown."""
    if not zipfile.is_zipfile(filepath):  # only files that end with .keras are
        return ""
    with zipfile.ZipFile(filepath) as archive:
        config = json.loads(archive.read("config.json"))
    optimizer = (config.get("compile_config") or {}).get("optimizer")
    return (optimizer or {}).get("registered_name") or "" if isinstance(optimizer, dict) else ""
