"""What each compressor sends, and that it gives back what it took."""

from __future__ import annotations

import pytest
import torch

from horovod.torch.compression import Compression, Compressor


@pytest.mark.parametrize("compressor", [Compression.none, Compression.fp16, Compression.bf16])
@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.complex64],
    ids=str,
)
def test_dtypes(compressor, dtype):
    tensor = torch.ones(3).to(dtype)
    sent, context = compressor.compress(tensor)
    wide = dtype in (torch.float32, torch.float64)
    smaller = {Compression.fp16: torch.float16, Compression.bf16: torch.bfloat16}
    assert sent.dtype == (smaller.get(compressor, dtype) if wide else dtype)
    received = compressor.decompress(sent, context)
    assert received.dtype == dtype
    assert torch.equal(received, tensor)


def test_bfloat16_keeps_the_range_of_float32():
    sent, _ = Compression.bf16.compress(torch.tensor([1e30]))
    assert sent.isfinite().all()
    sent, _ = Compression.fp16.compress(torch.tensor([1e30]))
    assert sent.isinf().all()


def test_the_base_class_is_there_to_be_filled_in():
    with pytest.raises(NotImplementedError):
        Compressor.compress(torch.ones(1))
    with pytest.raises(NotImplementedError):
        Compressor.decompress(torch.ones(1), None)
