"""Small helpers about variables and execution modes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Tells whether ops run as they are called; False while a graph or a `tf.function` is built."""
    return bool(tf.executing_eagerly())


def vars_to_refs(vars: Any) -> Any:  # noqa: A002 - the public name
    """Returns hashable references to variables; a list or tuple gives a tuple of them."""
    if isinstance(vars, (list, tuple)):
        return tuple(vars_to_refs(variable) for variable in vars)
    return vars.ref() if hasattr(vars, "ref") else vars


def refs_to_vars(refs: Any) -> Any:
    """Returns the variables behind references; a list or tuple gives a list of them."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(ref) for ref in refs]
    return refs.deref() if hasattr(refs, "deref") else refs
