"""Models with a distributed optimizer are saved with the plain class: to load one needs no Horovod."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def _table(package: str, module: str, name: str) -> dict[Any, str]:
    """Returns a dictionary of Keras's implementation, an empty one if this Keras has it not."""
    try:
        found = importlib.import_module(f"{package}.src.{module}")
    except ImportError:
        return {}
    table: dict[Any, str] = getattr(found, name, {})
    return table


def save_as_plain(distributed: type, plain: type, package: str) -> None:
    """Makes Keras write the name of the plain class where it saves an object of the distributed one.

    Args:
        distributed: a class that Horovod made.
        plain: the class that it was made from.
        package: the root package of the Keras, "keras" or "tf_keras".
    """
    # Keras 3 has a table from classes to public names, e.g. "keras.optimizers.SGD". On torch the class of
    # an object is one of the same name below the public one.
    public = _table(package, "api_export", "REGISTERED_OBJS_TO_NAMES")
    for base in plain.__mro__:
        if base in public and base.__name__ == plain.__name__:
            public[distributed] = public[base]
            return
    # Keras 2 writes the public names on the class itself.
    for attribute in ("_keras_api_names", "_keras_api_names_v1"):
        if attribute in vars(plain):
            setattr(distributed, attribute, vars(plain)[attribute])
    registered = _table(package, "saving.object_registration", "GLOBAL_CUSTOM_NAMES")
    if plain in registered:  # by keras.saving.register_keras_serializable
        registered[distributed] = registered[plain]
    _offer(plain)


def _offer(plain: type) -> None:
    """Makes the plain class an attribute of `horovod._keras`.

    Keras 2 looks there for a class that it does not know otherwise, as the module of the saved one says.
    """
    module = sys.modules["horovod._keras"]
    if isinstance(getattr(module, plain.__name__, plain), type):
        setattr(module, plain.__name__, plain)
