"""`allreduce.py --huge`: tensors whose bytes and elements no 32-bit number can count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groups import Group, PeerUnavailable, script, under_horovodrun
from harness import Report, size_text

BYTES = 9 << 28  # 2.25 GiB
# float32: more than 2^31 bytes; uint8: more than 2^31 elements, too.
DTYPES = ("float32", "uint8")
SPARE = 1 << 30  # what Python, torch and the patterns take per rank


def reduce_huge_tensors(report: Report, ranks: int) -> None:
    """Sums one tensor after the other and checks every element; says so where memory is too small."""
    needed = ranks * (BYTES + SPARE)
    if needed > available_memory():
        report.note(f"not done: {ranks} ranks need {needed >> 20} MiB of free memory for --huge")
        return
    rows: list[dict[str, Any]] = []
    try:
        with Group("huge", under_horovodrun(script("huge_worker.py"), ranks), ranks) as group:
            for dtype in DTYPES:
                answers = group.ask("reduce", dtype=dtype, bytes=BYTES)
                seconds = max(answer["seconds"] for answer in answers)
                rows.append(
                    {
                        "tensor": f"{dtype}, {size_text(BYTES)}",
                        "elements": answers[0]["elements"],
                        "seconds": seconds,
                        "GB/s": BYTES / seconds / 1e9,
                        "result": "right",
                    }
                )
    except PeerUnavailable as reason:
        report.note(str(reason))
        return
    report.table(f"one allreduce of a huge tensor, {ranks} ranks", rows)


def available_memory() -> int:
    """Bytes that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise OSError("/proc/meminfo has no line MemAvailable")
