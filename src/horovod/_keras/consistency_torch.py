"""Comparison of the variables of Keras on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from horovod.common.consistency import ConsistencyCheck
from horovod.torch.fingerprints import fingerprint_of


# torch.compile breaks its graph here: whether it is time to compare is known only at run time.
@torch.compiler.disable
def compare(check: ConsistencyCheck, variables: Sequence[Any]) -> None:
    """Counts an update, and compares variables of Keras if it is time to."""
    if check.is_due():
        check.compare([fingerprint_of(variable.path, variable.value) for variable in variables])
