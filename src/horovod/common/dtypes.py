"""Data types, reduction operators and kinds of collective, with the numbers of core/base/types.h."""

from __future__ import annotations

from enum import IntEnum


class DataType(IntEnum):
    """Element types the engine knows. Values are part of the wire format; append only."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    FLOAT16 = 6
    FLOAT32 = 7
    FLOAT64 = 8
    BOOL = 9
    BFLOAT16 = 10
    COMPLEX64 = 11
    COMPLEX128 = 12


class ReduceOp(IntEnum):
    """Reduction operators. Users see the numbers (`hvd.Average == 0`); they never change."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5


class Collective(IntEnum):
    """Kinds of request. Values are part of the wire format; append only."""

    ALLREDUCE = 0
    ALLGATHER = 1
    BROADCAST = 2
    ALLTOALL = 3
    REDUCESCATTER = 4
    BARRIER = 5
    JOIN = 6
    ADD_PROCESS_SET = 7
    REMOVE_PROCESS_SET = 8


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product

ITEM_SIZE: tuple[int, ...] = (1, 1, 2, 2, 4, 8, 2, 4, 8, 1, 2, 8, 16)


def _supports(op: ReduceOp, dtype: DataType) -> bool:
    is_complex = dtype in (DataType.COMPLEX64, DataType.COMPLEX128)
    if op is Average:
        return dtype is not DataType.BOOL
    if op in (Min, Max, Product):
        return not is_complex
    return op is Sum


# SUPPORTED[op][dtype]: the published table of op x dtype (docs/dtypes.md, `supports` of the core).
SUPPORTED: tuple[tuple[bool, ...], ...] = tuple(
    tuple(_supports(op, dtype) for dtype in DataType) for op in ReduceOp
)


def dtype_name(dtype: int) -> str:
    """Returns the name users know: "float32", "bfloat16", "bool"."""
    return DataType(dtype).name.lower()
