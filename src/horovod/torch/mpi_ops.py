"""Horovod's old name of `horovod.torch.ops`."""

from __future__ import annotations

from horovod.common.util import (  # noqa: F401 - scripts import them from here
    check_extension,
    check_installed_version,
    get_average_backwards_compatibility_fun,
    gpu_available,
    num_rank_is_power_2,
)
from horovod.torch._basics import *  # noqa: F403
from horovod.torch._basics import _basics
from horovod.torch.ops import *  # noqa: F403

__all__ = [name for name in globals() if not name.startswith("__") and name != "annotations"]
__all__ += ["_basics"]
