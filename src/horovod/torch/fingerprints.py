"""Checksums of torch parameters, for the comparison of ranks (`horovod.common.consistency`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from horovod.common.consistency import Fingerprint, fingerprint


def fingerprint_of(name: str, parameter: Tensor) -> Fingerprint:
    """Returns the fingerprint of a parameter on any device, of any strides and layout.

    One that has no values yet (a lazy module's, or one on the device "meta") has that of no bytes.
    """
    dtype = str(parameter.dtype).removeprefix("torch.")
    if is_lazy(parameter):
        return fingerprint(name, dtype, ())
    value = parameter.detach()
    return fingerprint(name, dtype, value.shape, *_parts(value))


def _parts(value: Tensor) -> list[Any]:
    """Returns the bytes of a tensor in logical order; a sparse one has several parts."""
    if value.device.type == "meta":
        return []
    if value.layout is torch.sparse_coo:
        whole = value.coalesce()
        return [*_parts(whole.indices()), *_parts(whole.values())]
    if value.layout is not torch.strided:
        return _parts(value.to_dense())
    value = value.resolve_conj().resolve_neg().cpu().contiguous()
    # As bytes, because NumPy has no bfloat16.
    return [value.reshape(-1).view(torch.uint8).numpy()]
