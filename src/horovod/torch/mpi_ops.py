"""Horovod's old name of `horovod.torch.ops`."""

from __future__ import annotations

from horovod.torch._basics import *  # noqa: F403
from horovod.torch._basics import _basics
from horovod.torch.ops import *  # noqa: F403

__all__ = [name for name in globals() if not name.startswith("__") and name != "annotations"]
__all__ += ["_basics"]
