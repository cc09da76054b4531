"""Allreduce of tensors so large that between hosts they go in blocks, whose phases overlap."""

from __future__ import annotations

import numpy as np
import pytest

import horovod.numpy as hvd

LAUNCHES = [
    "-np 4 -H localhost:2,127.0.0.1:2",
    "-np 3 -H localhost:2,127.0.0.1:1",
    "-np 4 -H localhost:2,127.0.0.1:1,[::1]:1",
]
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def job():
    hvd.init()
    yield
    hvd.shutdown()


def values(rank, count, dtype):
    # Small whole numbers: their sums are exact in every type, in any order.
    return (np.arange(count) % 13 + rank).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
@pytest.mark.parametrize("count", [9 * MIB, 17 * MIB + 12_345])
def test_large_sums(dtype, count):
    count //= np.dtype(dtype).itemsize
    parts = [values(rank, count, dtype) for rank in range(hvd.size())]
    expected = np.sum(parts, axis=0, dtype=np.int64).astype(dtype)
    for _ in range(2):
        got = hvd.allreduce(parts[hvd.rank()], op=hvd.Sum, name=f"large.{dtype}.{count}")
        np.testing.assert_array_equal(got, expected)


def test_several_tensors_at_once_with_factors():
    counts = [3 * MIB, 1, 4 * MIB + 5, 0, MIB // 3]
    tensors = [values(hvd.rank(), count, np.float32) for count in counts]
    got = hvd.grouped_allreduce(
        tensors, op=hvd.Average, prescale_factor=4.0, postscale_factor=0.5, name="group"
    )
    for count, tensor in zip(counts, got, strict=True):
        everyones = [values(rank, count, np.float64) for rank in range(hvd.size())]
        np.testing.assert_allclose(tensor, 2 * np.mean(everyones, axis=0), rtol=1e-6)


def test_equal_bits_in_two_calls_and_on_all_ranks():
    rng = np.random.default_rng(hvd.rank())
    tensor = rng.normal(size=5 * MIB).astype(np.float32)
    first = hvd.allreduce(tensor, op=hvd.Sum, name="bits")
    second = hvd.allreduce(tensor, op=hvd.Sum, name="bits")
    assert first.tobytes() == second.tobytes()
    everyones = hvd.allgather(first[None, ::1001])
    assert all(row.tobytes() == everyones[0].tobytes() for row in everyones)


def test_reducescatter_of_large_tensors():
    rows = 1000 * hvd.size() + 1
    parts = [
        values(rank, rows * 3000, np.float32).reshape(rows, 3000) for rank in range(hvd.size())
    ]
    got = hvd.reducescatter(parts[hvd.rank()], op=hvd.Sum)
    share = 1000 + (hvd.rank() == 0)
    begin = 1000 * hvd.rank() + (hvd.rank() > 0)
    np.testing.assert_array_equal(got, np.sum(parts, axis=0)[begin : begin + share])
