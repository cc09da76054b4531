"""What `_core.metrics()` returns, as one rank of two might."""

from __future__ import annotations

from typing import Any


def sample(rank: int = 0) -> dict[str, Any]:
    return {
        "rank": rank,
        "size": 2,
        "steps": 12,
        "operations": {"allreduce": 120, "broadcast": 3},
        "bytes": {"allreduce": 48000, "broadcast": 64},
        "operations_submitted": 125,
        "operations_in_flight": 2,
        "operations_failed": 1,
        "responses": 40,
        "queue_depth": 3,
        "cache_hits": 100,
        "cache_misses": 20,
        "stalls": 1,
        "reconnects": 4,
        "messages_sent": 77,
        "cycles": 39,
        "wait_seconds": 1.5,
        "data_wait_seconds": 0.25,
        "execution_seconds": {
            "bounds": [0.001, 0.01],
            "counts": [30, 8, 2],
            "sum": 0.125,
            "count": 40,
        },
        "negotiation_seconds": {
            "bounds": [0.001, 0.01],
            "counts": [100, 20, 3],
            "sum": 0.5,
            "count": 123,
        },
        "tensors_per_response": {
            "bounds": [1, 2, 4],
            "counts": [10, 10, 15, 5],
            "sum": 123.0,
            "count": 40,
        },
        "response_bytes": {
            "bounds": [1024.0, 65536.0],
            "counts": [38, 2, 0],
            "sum": 48064.0,
            "count": 40,
        },
        "straggler_seconds": {"1": 0.5} if rank == 0 else {},
    }
