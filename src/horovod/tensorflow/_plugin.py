"""Loads TensorFlow and the plug-in with Horovod's ops into it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from horovod.common.native import c_api, library_path

_LIBRARY = library_path("tensorflow", "libhorovod_tensorflow.so")
_NEEDS = "horovod.tensorflow needs TensorFlow 2.15 or newer (tested: 2.15 to 2.21)"

try:
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        f"{_NEEDS}, and importing it failed: {error}. Install it with: pip install tensorflow"
    ) from error


def _load(path: Path) -> tuple[Any, ctypes.CDLL]:
    """Returns the generated functions of the ops, and the library for calls by ctypes.

    Raises:
        ImportError: this TensorFlow lacks something; the text says what.
    """
    version = getattr(tf, "__version__", "of unknown version")
    if not hasattr(tf, "load_op_library"):
        raise ImportError(
            f"{_NEEDS}; what `import tensorflow` found at {getattr(tf, '__path__', '?')} "
            f"(version {version}) has no load_op_library, so it is no TensorFlow. Reinstall it."
        )
    try:
        functions = tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        raise ImportError(
            f"{_NEEDS}; TensorFlow {version} could not load {path}: {error}"
        ) from error
    library = ctypes.CDLL(str(path))
    library.hvd_tensorflow_fault.restype = ctypes.c_char_p
    library.hvd_tensorflow_attach.argtypes = [ctypes.c_void_p]
    fault = library.hvd_tensorflow_fault().decode()
    if fault:
        raise ImportError(
            f"{_NEEDS}; the functions of the C API were looked for in the libraries of TensorFlow "
            f"{version}, and {fault}. Install a version from this range."
        )
    if not library.hvd_tensorflow_attach(c_api()):
        raise ImportError(
            f"{path} and the compiled module are of different builds of Horovod. Reinstall it."
        )
    return functions, library


def _order_does_not_matter(op_types: frozenset[str]) -> None:
    """Tells `tf.function` that these ops need not run in the order of the program.

    It chains stateful ops otherwise, and ranks that build a graph in different orders would wait for each
    other. They are stateful so that no optimizer folds, merges or drops one that other ranks wait for.

    Raises:
        ImportError: this TensorFlow has no such list.
    """
    from tensorflow.python.framework import auto_control_deps

    listed = getattr(auto_control_deps, "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS", None)
    if listed is None:
        raise ImportError(
            f"{_NEEDS}; TensorFlow {tf.__version__} has no list of stateful ops whose order does not "
            "matter (auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS)."
        )
    auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = listed | op_types


COLLECTIVE_OPS = frozenset(
    f"Horovod{prefix}{kind}"
    for prefix in ("", "Grouped")
    for kind in ("Allreduce", "Allgather", "Broadcast", "Alltoall", "Reducescatter", "Join")
)

ops, library = _load(_LIBRARY)
_order_does_not_matter(COLLECTIVE_OPS)
