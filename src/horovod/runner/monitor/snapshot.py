"""What a rank says of itself, as `horovod.common.monitor_feed` sends it, checked field by field."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import msgpack

MAX_BYTES = 4096
MAX_NUMBER = 2**63
MAX_STRAGGLERS = 64


class Snapshot(NamedTuple):
    """The counters of one rank at one moment; they begin anew with each `round`."""

    round: int  # of hvd.init in that process
    time: float  # seconds of the rank's own monotonic clock
    steps: int
    bytes: int  # of inputs
    wait: float  # seconds that callers were blocked
    in_flight: int  # operations
    stalls: int  # reports
    memory: int  # bytes
    late: dict[
        int, float
    ]  # rank -> seconds that the others waited for it lately; only rank 0 knows
    final: bool  # the rank is about to shut down


def decode(data: bytes) -> Snapshot:
    """Reads a snapshot.

    Raises:
        ValueError: it is too long, no msgpack map, or a field is missing or makes no sense.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"a snapshot may have {MAX_BYTES} bytes, this one has {len(data)}")
    try:
        fields = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"a snapshot is no msgpack: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError(f"a snapshot must be a map, not {type(fields).__name__}")
    late = fields.get("late")
    if not isinstance(late, dict) or len(late) > MAX_STRAGGLERS:
        raise ValueError(f"late must be a map of at most {MAX_STRAGGLERS} ranks")
    return Snapshot(
        round=_whole("round", fields.get("round")),
        time=_seconds("time", fields.get("time")),
        steps=_whole("steps", fields.get("steps")),
        bytes=_whole("bytes", fields.get("bytes")),
        wait=_seconds("wait", fields.get("wait")),
        in_flight=_whole("in_flight", fields.get("in_flight")),
        stalls=_whole("stalls", fields.get("stalls")),
        memory=_whole("memory", fields.get("memory")),
        late={_whole("late", rank): _seconds("late", value) for rank, value in late.items()},
        final=fields.get("final") is True,
    )


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise ValueError(f"{name} must be a whole number from 0 to 2**63, not {value!r:.40}")
    return value


def _seconds(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a number of seconds, not {value!r:.40}")
    return float(value)
