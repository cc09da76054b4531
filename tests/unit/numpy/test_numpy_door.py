"""NumPy arrays at the door: layouts, dtypes, results; a stand-in core copies inputs to outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_core import FakeCore

import horovod.numpy as hvd
from horovod.numpy import tensors

Become = Callable[[int, int], FakeCore]
DTYPES = [str(dtype) for dtype in tensors.DTYPES]


@pytest.fixture(autouse=True)
def alone(world: Become) -> FakeCore:
    return world(0, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_through(dtype: str) -> None:
    array = np.ones((3, 2), dtype)
    result = hvd.allreduce(array, op=hvd.Sum)
    assert result is not array
    assert result.dtype == array.dtype
    assert np.array_equal(result, array)
    assert np.array_equal(hvd.allgather(array), array)
    assert np.array_equal(hvd.broadcast(array, 0), array)


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None]), np.ones(2, ">f4")])
def test_a_dtype_that_is_not_supported_is_named(array: Any) -> None:
    with pytest.raises(ValueError, match=f"Tensor type {array.dtype} is not supported."):
        hvd.allreduce(array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(24.0).reshape(4, 6)[::2, 1::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(5.0)[::-1],
        np.broadcast_to(np.float64(3), (2, 2)),
    ],
)
def test_arrays_of_any_layout_are_reduced(array: Any) -> None:
    assert np.array_equal(hvd.allreduce(array, op=hvd.Sum), array)


def test_a_view_gets_its_values_in_place(alone: FakeCore) -> None:
    whole = np.zeros((4, 4))
    view = whole[::2, ::2]

    def copy_ones(*arguments: Any, submit: Any = alone.submit) -> int:
        handle = submit(*arguments)
        pointer, _, shape = arguments[2][0]
        memory = (np.ctypeslib.ctypes.c_double * int(np.prod(shape))).from_address(pointer)
        memory[:] = [1.0] * len(memory)
        return handle

    alone.submit = copy_ones  # type: ignore[method-assign]
    assert hvd.allreduce_(view, op=hvd.Sum) is view
    assert whole.sum() == 4
    assert (whole[::2, ::2] == 1).all()


def test_in_place_returns_the_same_array_and_copies_nothing(alone: FakeCore) -> None:
    array = np.ones(3)
    assert hvd.allreduce_(array) is array
    assert hvd.broadcast_(array, 0) is array
    (first,) = hvd.grouped_allreduce_([array])
    assert first is array
    for submission in alone.submissions:
        assert submission["outputs"] == submission["inputs"]


@pytest.mark.parametrize("wrong", [[1.0], 2.0])
def test_in_place_needs_an_array(wrong: Any) -> None:
    with pytest.raises(TypeError, match="needs an array, not"):
        hvd.allreduce_(wrong)


def test_in_place_needs_a_writable_array() -> None:
    array = np.ones(2)
    array.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        hvd.broadcast_(array, 0)


def test_scalars_and_lists_are_arrays() -> None:
    result = hvd.allreduce(3.5)
    assert result.shape == ()
    assert result == 3.5
    assert hvd.allreduce([1, 2], op=hvd.Sum).tolist() == [1, 2]


def test_empty_arrays_are_legal() -> None:
    empty = np.zeros((0, 3), np.float32)
    assert hvd.allreduce(empty).shape == (0, 3)
    assert hvd.allgather(empty).shape == (0, 3)
    assert hvd.alltoall(empty).shape == (0, 3)
    assert hvd.reducescatter(empty).shape == (0, 3)


def test_alltoall_gives_splits_back_only_when_it_got_some() -> None:
    array = np.arange(4)
    assert np.array_equal(hvd.alltoall(array), array)
    output, received = hvd.alltoall(array, splits=[4])
    assert received.dtype == np.int32
    assert np.array_equal(output, array)
    assert len(hvd.synchronize(hvd.alltoall_async(array))) == 2


@pytest.mark.parametrize(
    ("splits", "text"),
    [
        (np.array([[4]], np.int32), "1D splits"),
        (np.array([4], np.int64), "32-bit integer"),
        ([4.0], "32-bit integer"),
        ([2, 2], "does not equal number of workers"),
    ],
)
def test_wrong_splits_are_an_error(splits: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        hvd.alltoall(np.arange(4), splits=splits)


def test_groups_keep_their_order(alone: FakeCore) -> None:
    arrays = [np.ones(1), np.full((2, 2), 2.0)]
    for call in (hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter):
        results = call(arrays, name="g")
        assert [result.shape for result in results] == [(1,), (2, 2)]
    names = [submission["names"][0] for submission in alone.submissions]
    assert names == [
        "grouped_allreduce.g_1of2",
        "grouped_allgather.g_1of2",
        "grouped_reducescatter.g_1of2",
    ]
    assert hvd.grouped_allreduce([]) == []


def test_async_forms_give_a_handle(alone: FakeCore) -> None:
    array = np.ones(2)
    alone.ready = False
    handle = hvd.allreduce_async(array, None, "a", hvd.Sum)
    assert not hvd.poll(handle)
    alone.ready = True
    assert hvd.poll(handle)
    assert np.array_equal(hvd.synchronize(handle), array)
    assert hvd.synchronize(handle) is None


def test_compression_travels_as_float16_and_comes_back(alone: FakeCore) -> None:
    array = np.ones(3, np.float64)
    result = hvd.allreduce(array, compression=hvd.Compression.fp16)
    assert result.dtype == np.float64
    assert alone.submissions[0]["inputs"][0][1] == 6
    whole = hvd.allreduce(np.ones(2, np.int32), compression=hvd.Compression.fp16, op=hvd.Sum)
    assert whole.dtype == np.int32


def test_parameters_are_broadcast_in_place_by_name(alone: FakeCore) -> None:
    hvd.broadcast_parameters({"b": np.ones(1), "a": np.zeros(1)}, 0)
    assert [s["names"][0] for s in alone.submissions] == ["broadcast.a", "broadcast.b"]


def test_every_public_name_is_there() -> None:
    for name in hvd.__all__:
        assert hasattr(hvd, name)
