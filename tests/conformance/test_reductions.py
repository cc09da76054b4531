"""allreduce and reducescatter: every operator on every data type, on odd sizes and with factors."""

from __future__ import annotations

import numpy as np
import pytest
from doors import COMPLEX, DTYPES, FLOATING, HALF, INTEGER
from reference import check, reduced, rows_of, values_of

from horovod.common.dtypes import SUPPORTED, DataType, ReduceOp

OPS = ("Average", "Sum", "Min", "Max", "Product")
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (3, 5, 2), (1025,)]
LARGE = 700_001  # more than one slot of the arena, and no multiple of anything
PAIRS = [
    (op, dtype)
    for op in OPS
    for dtype in DTYPES
    if SUPPORTED[ReduceOp[op]][DataType[dtype.upper()]]
]
OTHER_PAIRS = [(op, dtype) for op in OPS for dtype in DTYPES if (op, dtype) not in PAIRS]


def inputs(world, dtype, shape, key=0):
    return [values_of(rank, dtype, shape, key) for rank in world.ranks]


@pytest.fixture
def skip_unknown(door, request):
    dtype = request.getfixturevalue("dtype")
    if dtype not in door.dtypes:
        pytest.skip(f"{door.name} has no {dtype}")


@pytest.mark.parametrize(("op", "dtype"), PAIRS)
def test_allreduce_equals_the_reference(door, hvd, world, op, dtype, skip_unknown):
    for key, shape in enumerate(SHAPES):
        parts = inputs(world, dtype, shape, key)
        tensor = door.tensor(parts[world.rank], dtype)
        result = hvd.allreduce(tensor, op=getattr(hvd, op))
        assert door.dtype_of(result) == dtype
        check(door.values(result), reduced(op, parts, dtype), dtype, world.one_host, f"{shape}")
        check(door.values(tensor), parts[world.rank], dtype, True, "the input must stay as it was")


@pytest.mark.parametrize(("op", "dtype"), OTHER_PAIRS)
def test_allreduce_of_another_pair_is_refused_at_the_call(
    door, hvd, world, op, dtype, skip_unknown
):
    tensor = door.tensor(values_of(world.rank, dtype, (3,)), dtype)
    with pytest.raises(ValueError, match=dtype):
        hvd.allreduce(tensor, op=getattr(hvd, op), name="refused")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "float64", "uint8"])
def test_allreduce_of_many_pieces(door, hvd, world, dtype, skip_unknown):
    parts = inputs(world, dtype, (LARGE,))
    result = hvd.allreduce(door.tensor(parts[world.rank], dtype), op=hvd.Sum)
    check(door.values(result), reduced("Sum", parts, dtype), dtype, world.one_host)


@pytest.mark.parametrize("dtype", [*INTEGER, *FLOATING, *COMPLEX])
@pytest.mark.parametrize("factors", [(0.5, 1.0), (1.0, 2.5), (1.5, 0.25), (-1.5, 1.0)])
def test_factors_scale_before_and_after(door, hvd, world, dtype, factors, skip_unknown):
    if factors[0] < 0 and dtype.startswith("u"):
        pytest.skip("a negative number has no unsigned value")
    parts = inputs(world, dtype, (37,))
    result = hvd.allreduce(
        door.tensor(parts[world.rank], dtype),
        op=hvd.Sum,
        prescale_factor=factors[0],
        postscale_factor=factors[1],
    )
    check(door.values(result), reduced("Sum", parts, dtype, *factors), dtype, world.one_host)


def test_integer_average_truncates_toward_zero(door, hvd, world):
    parts = [np.array([-7, -1, 1, 7, 2 * rank - 3], dtype=np.int32) for rank in world.ranks]
    result = hvd.allreduce(door.tensor(parts[world.rank], "int32"), op=hvd.Average)
    expected = np.trunc(np.sum(parts, axis=0) * (1 / world.size)).astype(np.int32)
    np.testing.assert_array_equal(door.values(result), expected)


def test_half_sums_are_rounded_once(door, hvd, world):
    # 2048 + 1 + 1 + ... in float16 stays at 2048 when every addition is rounded.
    parts = [np.array([2048.0 if rank == 0 else 1.0], dtype=np.float16) for rank in world.ranks]
    result = hvd.allreduce(door.tensor(parts[world.rank], "float16"), op=hvd.Sum)
    if world.one_host:
        expected = np.float16(2048 + world.size - 1)
        np.testing.assert_array_equal(door.values(result), [expected])


@pytest.mark.parametrize("dtype", ["float32", "int64", "bfloat16"])
def test_grouped_allreduce(door, hvd, world, dtype, skip_unknown):
    shapes = [(5,), (0,), (2, 3), (), (70_001,)]
    parts = [inputs(world, dtype, shape, key) for key, shape in enumerate(shapes)]
    tensors = [door.tensor(part[world.rank], dtype) for part in parts]
    for op in ("Sum", "Average", "Max"):
        results = hvd.grouped_allreduce(tensors, op=getattr(hvd, op))
        assert len(results) == len(shapes)
        for result, part in zip(results, parts, strict=True):
            check(door.values(result), reduced(op, part, dtype), dtype, world.one_host)


@pytest.mark.parametrize("dtype", DTYPES)
def test_non_contiguous_tensors(door, hvd, world, dtype, skip_unknown):
    parts = inputs(world, dtype, (4, 3))
    tensor = door.strided(door.tensor(parts[world.rank], dtype))
    check(
        door.values(hvd.allreduce(tensor, op=hvd.Sum)),
        reduced("Sum", parts, dtype),
        dtype,
        world.one_host,
    )


@pytest.mark.parametrize("contiguous", [True, False])
def test_in_place(door, hvd, world, contiguous):
    if not hasattr(hvd, "allreduce_"):
        pytest.skip(f"{door.name} has no in-place form")
    parts = inputs(world, "float32", (6, 2))
    tensor = door.tensor(parts[world.rank], "float32")
    if not contiguous:
        tensor = door.strided(tensor)
    assert hvd.allreduce_(tensor, op=hvd.Sum) is tensor
    check(door.values(tensor), reduced("Sum", parts, "float32"), "float32", world.one_host)


def test_many_in_flight_of_several_kinds_are_each_right(door, hvd, world):
    dtypes = [dtype for dtype in ("float32", "float16", "int32", "float64") if dtype in door.dtypes]
    cases = [
        (dtypes[i % len(dtypes)], ("Sum", "Max")[i % 3 == 0], (i * 37 % 500,)) for i in range(60)
    ]
    parts = [inputs(world, dtype, shape, i) for i, (dtype, _, shape) in enumerate(cases)]
    handles = {}
    # Every rank submits in an order of its own.
    order = np.random.default_rng(world.rank).permutation(len(cases))
    for i in order:
        dtype, op, _ = cases[i]
        tensor = door.tensor(parts[i][world.rank], dtype)
        handles[i] = hvd.allreduce_async(tensor, op=getattr(hvd, op), name=f"mixed.{i}")
    for i, (dtype, op, shape) in enumerate(cases):
        result = door.values(hvd.synchronize(handles[i]))
        check(result, reduced(op, parts[i], dtype), dtype, world.one_host, f"{i}: {dtype} {shape}")


def test_the_same_name_again_with_another_shape_and_dtype(door, hvd, world):
    for i in range(12):
        dtype = ("float32", "float64", "int32")[i // 4]
        parts = inputs(world, dtype, (3 + i % 2,), i)
        result = hvd.allreduce(door.tensor(parts[world.rank], dtype), op=hvd.Sum, name="again")
        check(door.values(result), reduced("Sum", parts, dtype), dtype, world.one_host)


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("dtype", [*INTEGER, *HALF, "float32", "float64"])
def test_reducescatter_gives_the_first_ranks_what_remains(
    door, hvd, world, op, dtype, skip_unknown
):
    for key, shape in enumerate([(9,), (4, 3), (1,), (0, 2), (5, 2, 2), (100_003,)]):
        parts = inputs(world, dtype, shape, key)
        begin, end = rows_of(world.rank, world.size, shape[0])
        result = hvd.reducescatter(door.tensor(parts[world.rank], dtype), op=getattr(hvd, op))
        expected = reduced(op, parts, dtype)[begin:end]
        check(door.values(result), expected, dtype, world.one_host, f"{shape}")


def test_reducescatter_with_factors(door, hvd, world):
    parts = inputs(world, "float32", (6, 2))
    begin, end = rows_of(world.rank, world.size, 6)
    result = hvd.reducescatter(
        door.tensor(parts[world.rank], "float32"),
        op=hvd.Sum,
        prescale_factor=0.5,
        postscale_factor=3.0,
    )
    expected = reduced("Sum", parts, "float32", 0.5, 3.0)[begin:end]
    check(door.values(result), expected, "float32", world.one_host)


def test_grouped_reducescatter(door, hvd, world):
    shapes = [(9,), (4, 3), (1,)]
    parts = [inputs(world, "float32", shape, key) for key, shape in enumerate(shapes)]
    tensors = [door.tensor(part[world.rank], "float32") for part in parts]
    results = hvd.grouped_reducescatter(tensors, op=hvd.Average)
    for shape, part, result in zip(shapes, parts, results, strict=True):
        begin, end = rows_of(world.rank, world.size, shape[0])
        expected = reduced("Average", part, "float32")[begin:end]
        check(door.values(result), expected, "float32", world.one_host)


def test_reducescatter_knows_average_and_sum_only(door, hvd, world):
    tensor = door.tensor(np.ones(4), "float32")
    with pytest.raises((ValueError, RuntimeError), match=r"AVERAGE and SUM"):
        hvd.reducescatter(tensor, op=hvd.Max)


def test_nan_reaches_everybody(door, hvd, world):
    values = np.array([1.0, np.nan if world.rank == world.size - 1 else 2.0, np.inf], np.float32)
    for op in ("Sum", "Min", "Max"):
        result = door.values(hvd.allreduce(door.tensor(values, "float32"), op=getattr(hvd, op)))
        assert np.isnan(result[1]), op
        assert np.isinf(result[2]), op
