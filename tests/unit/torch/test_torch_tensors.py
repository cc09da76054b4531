"""From torch tensors to host memory and back."""

from __future__ import annotations

import pytest
import torch

from horovod.common.collectives import Output
from horovod.common.dtypes import ITEM_SIZE
from horovod.torch.tensors import (
    DATA_TYPES,
    describe,
    empty_result,
    from_output,
    on_host,
    write_back,
)


def test_contiguous_host_tensors_are_used_in_place():
    tensor = torch.ones(2, 3)
    assert on_host(tensor, None) is tensor
    assert describe(tensor) == (tensor.data_ptr(), DATA_TYPES[torch.float32], (2, 3))


def test_item_sizes_are_those_of_torch():
    for dtype, known in DATA_TYPES.items():
        assert ITEM_SIZE[known] == dtype.itemsize


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, 3).t(),
        torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last),
        torch.ones(1).expand(4),
        torch.tensor([1 + 1j]).conj(),
        torch.tensor([1 + 1j]).conj().imag,
    ],
)
def test_anything_else_is_copied_in_logical_order(tensor):
    wire = on_host(tensor, None)
    assert wire is not tensor
    assert wire.is_contiguous()
    assert not wire.is_conj()
    assert not wire.is_neg()
    assert torch.equal(wire, tensor)


def test_in_place_results_reach_the_caller_and_autograd():
    plain = torch.ones(2)
    assert write_back(plain, plain)._version == 1
    transposed = torch.zeros(2, 3).t()
    write_back(transposed, torch.ones(3, 2))
    assert transposed.all()
    assert transposed._version == 1


def test_results_keep_strides():
    tensor = torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last)
    wire = on_host(tensor, None)
    result, answer = empty_result(tensor, wire)
    assert result.stride() == tensor.stride()
    assert answer.is_contiguous()
    expanded = torch.ones(1).expand(4)
    result, answer = empty_result(expanded, on_host(expanded, None))
    assert result is answer


@pytest.mark.parametrize("dtype", DATA_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1,)])
def test_engine_memory_becomes_a_tensor(dtype, shape):
    expected = torch.ones(shape).to(dtype)
    buffer = bytearray(expected.numel() * dtype.itemsize)
    if buffer:
        torch.frombuffer(buffer, dtype=dtype).copy_(expected.flatten())
    output = Output(buffer or None, shape, None)
    result = from_output(output, dtype, torch.device("cpu"))
    assert result.dtype == dtype
    assert result.shape == shape
    assert torch.equal(result, expected)


def test_refusals_say_which_operation_and_what_came():
    with pytest.raises(TypeError, match=r"'loss' expected a torch\.Tensor, got list"):
        on_host([1.0], "loss")
    text = r"^Tensor type torch\.uint32 is not supported\. Supported dtypes: uint8.*\[2\].*'loss'"
    with pytest.raises(ValueError, match=text):
        on_host(torch.ones(2, dtype=torch.uint32), "loss")
    with pytest.raises(ValueError, match="sparse_allreduce_async"):
        on_host(torch.eye(2).to_sparse(), None)
    with pytest.raises(ValueError, match="meta"):
        on_host(torch.ones(2, device="meta"), None)
