"""Python objects from one rank to all, and from all to all; no framework is needed.

Objects are pickled by cloudpickle. Only what authenticated ranks of the same job sent is unpickled.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from horovod.common import collectives
from horovod.common.collectives import HostTensor, Output
from horovod.common.dtypes import Collective, DataType
from horovod.common.engine import identity
from horovod.common.process_sets import ProcessSet, global_process_set

_SIZE = struct.Struct("=q")


def _tensor(data: bytearray, dtype: DataType, shape: tuple[int, ...]) -> HostTensor:
    """Describes memory that the caller keeps alive."""
    pointer = ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0
    return pointer, dtype, shape


def _broadcast(
    data: bytearray, dtype: DataType, root_rank: int, name: str | None, process_set: ProcessSet
) -> None:
    """Overwrites `data` with the root's."""
    elements = len(data) // (_SIZE.size if dtype is DataType.INT64 else 1)
    tensor = _tensor(data, dtype, (elements,))
    handle = collectives.submit(
        Collective.BROADCAST,
        (tensor,),
        (tensor,),
        name=name,
        root_rank=root_rank,
        process_set=process_set,
        urgent=True,
        finish=lambda _: None,
        keep_alive=data,
    )
    collectives.synchronize(handle)


def _allgather(
    data: bytearray, dtype: DataType, elements: int, name: str | None, process_set: ProcessSet
) -> bytes:
    """Returns the data of all ranks of the set, one after the other."""

    def finish(outputs: list[Output]) -> bytes:
        return bytes(outputs[0].buffer)

    handle = collectives.submit(
        Collective.ALLGATHER,
        (_tensor(data, dtype, (elements,)),),
        None,
        name=name,
        process_set=process_set,
        urgent=True,
        finish=finish,
        keep_alive=data,
    )
    gathered: bytes = collectives.synchronize(handle)
    return gathered


def _part(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the root's object on every rank of the set; the root gets its own object back.

    Args:
        obj: anything cloudpickle can pickle; ignored on other ranks than the root.
        root_rank: global rank of the sender.
        name: equal on all ranks; two operations follow, `<name>.sz` and `<name>.t`.
        process_set: the ranks that take part.

    Raises:
        ValueError: the root is not in the set, this rank is not, or Horovod is not initialised.
        HorovodInternalError: the job was aborted.
    """
    import cloudpickle

    at_root = identity().rank == root_rank
    payload = bytearray(cloudpickle.dumps(obj) if at_root else b"")
    size = bytearray(_SIZE.pack(len(payload)))
    _broadcast(size, DataType.INT64, root_rank, _part(name, "sz"), process_set)
    if not at_root:
        payload = bytearray(_SIZE.unpack(size)[0])
    _broadcast(payload, DataType.UINT8, root_rank, _part(name, "t"), process_set)
    return obj if at_root else cloudpickle.loads(payload)


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Returns the objects of all ranks of the set, in the order of ranks.

    Args:
        obj: anything cloudpickle can pickle.
        name: equal on all ranks; two operations follow, `<name>.sz` and `<name>.t`.
        process_set: the ranks that take part.

    Raises:
        ValueError: this rank is not in the set, or Horovod is not initialised.
        HorovodInternalError: the job was aborted.
    """
    import cloudpickle

    payload = bytearray(cloudpickle.dumps(obj))
    own_size = bytearray(_SIZE.pack(len(payload)))
    sizes_data = _allgather(own_size, DataType.INT64, 1, _part(name, "sz"), process_set)
    data = _allgather(payload, DataType.UINT8, len(payload), _part(name, "t"), process_set)
    view, objects, begin = memoryview(data), [], 0
    for (size,) in _SIZE.iter_unpack(sizes_data):
        objects.append(cloudpickle.loads(view[begin : begin + size]))
        begin += size
    return objects
