"""Functions that `torch.compile` must not look into: it breaks the graph and calls them as they are.

Attributes of this module are functions of `ops`, each wrapped by `torch.compiler.disable` when it is
asked for. That happens while torch traces, so nobody who doesn't compile pays for importing its
compiler.
"""

from __future__ import annotations

from typing import Any

import torch


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    from horovod.torch import ops  # which imports this module

    function = torch.compiler.disable(getattr(ops, name))
    globals()[name] = function
    return function
