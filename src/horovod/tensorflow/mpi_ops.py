"""Horovod's old name of `horovod.tensorflow.ops`, with the functions about the job itself."""

from __future__ import annotations

import tensorflow as tf

from horovod.common.util import num_rank_is_power_2
from horovod.tensorflow._basics import *  # noqa: F403
from horovod.tensorflow._basics import _basics  # noqa: F401
from horovod.tensorflow.identity import *  # noqa: F403
from horovod.tensorflow.ops import *  # noqa: F403
from horovod.tensorflow.ops import (  # noqa: F401
    _allreduce,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
)
from horovod.tensorflow.util import _executing_eagerly  # noqa: F401


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Tells whether TensorFlow sees a GPU."""
    del ext_base_name, verbose
    return bool(tf.config.list_physical_devices("GPU"))


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Tells whether a number of ranks is a power of two."""
    return num_rank_is_power_2(num_rank)
