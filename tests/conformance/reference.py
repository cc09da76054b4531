"""What the collectives must return, written down with NumPy, one rank after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
from doors import COMPLEX, FLOATING, HALF, INTEGER, carrier

Array = np.ndarray[Any, Any]


def round_to(dtype: str, values: Array) -> Array:
    """Round float32 values to float16 or bfloat16, ties to even; the result is in the carrier type."""
    if dtype == "float16":
        return values.astype(np.float16)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).reshape(values.shape)


def values_of(rank: int, dtype: str, shape: tuple[int, ...], key: int = 0) -> Array:
    """Return what rank `rank` contributes: the same on every rank that asks."""
    rng = np.random.default_rng([key, rank])
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in INTEGER:
        low = 0 if dtype.startswith("u") else -20
        return rng.integers(low, 21, shape).astype(dtype)
    values = rng.normal(0, 4, shape)
    if dtype in COMPLEX:
        return (values + 1j * rng.normal(0, 4, shape)).astype(dtype)
    if dtype in HALF:
        return np.asarray(round_to(dtype, np.asarray(values, dtype=np.float32)))
    return np.asarray(values, dtype=dtype)


def scaled(values: Array, dtype: str, factor: float) -> Array:
    """Multiply as the engine does: integers in double, truncated; others in the type they are in."""
    if factor == 1.0:
        return values
    if dtype in INTEGER:
        return np.trunc(values.astype(np.float64) * factor).astype(dtype)
    real = np.float64 if dtype in ("float64", "complex128") else np.float32
    return np.asarray(values * real(factor))


def reduced(
    op: str, inputs: list[Array], dtype: str, prescale: float = 1.0, postscale: float = 1.0
) -> Array:
    """Return the allreduce of `inputs`, which are in rank order."""
    if op == "Average":
        postscale /= len(inputs)
    if dtype in HALF:
        inputs = [values.astype(np.float32) for values in inputs]
    parts = [scaled(values, dtype, prescale) for values in inputs]
    if dtype == "bool":
        combine = np.logical_or if op in ("Sum", "Max") else np.logical_and
    else:
        functions = {"Min": np.minimum, "Max": np.maximum, "Product": np.multiply}
        combine = functions.get(op, np.add)
    total = parts[0]
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            total = combine(total, part)
        total = scaled(total, dtype, postscale)
        return round_to(dtype, total) if dtype in HALF else np.asarray(total, dtype=carrier(dtype))


def rows_of(rank: int, size: int, rows: int) -> tuple[int, int]:
    """Return begin and end of the rows that reducescatter gives to `rank`."""
    base, rest = divmod(rows, size)
    begin = rank * base + min(rank, rest)
    return begin, begin + base + (rank < rest)


# Between hosts the order of the additions is another one; then results are near, not equal.
TOLERANCE = {"float16": 0.02, "bfloat16": 0.15, "float32": 1e-5, "complex64": 1e-5}


def check(got: Array, expected: Array, dtype: str, exact: bool, what: str = "") -> None:
    """Assert that `got` has the shape and values of `expected`: the same bits where `exact`."""
    assert got.shape == expected.shape, f"{what}: shape {got.shape}, expected {expected.shape}"
    if exact or dtype not in (*FLOATING, *COMPLEX):
        np.testing.assert_array_equal(got, expected, err_msg=what)
        return
    tolerance = TOLERANCE.get(dtype, 1e-12)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(
            got.astype(np.complex128),
            expected.astype(np.complex128),
            rtol=tolerance,
            atol=8 * tolerance,
            err_msg=what,
        )
