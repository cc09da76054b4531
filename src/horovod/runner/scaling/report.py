"""What `horovodrun scaling` found: the table, the JSON and the sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.runner.scaling.tables import text_table
from horovod.runner.scaling.throughput import Throughput
from horovod.runner.scaling.units import number_text


@dataclass(frozen=True)
class Measured:
    """What one size gave: the exit code of its job, and throughputs by the script's output and by marks."""

    ranks: int
    code: int
    seconds: float
    printed: Throughput | None = None
    marked: Throughput | None = None


@dataclass(frozen=True)
class Row:
    """One size of the report; without throughput if it failed or said none."""

    ranks: int
    code: int
    seconds: float
    throughput: Throughput | None = None
    speed_up: float | None = None
    efficiency: float | None = None


def rows_of(sizes: Sequence[Measured]) -> list[Row]:
    """Speed-up and efficiency relative to the smallest size that gave a throughput.

    All sizes are compared by the same measure: what was printed, if every size that ran printed it in
    one unit; else step marks, if all have them.
    """
    throughputs = _comparable(sizes)
    found = [
        (one.ranks, throughput.value)
        for one, throughput in zip(sizes, throughputs, strict=True)
        if throughput
    ]
    base, base_value = min(found, default=(0, 0.0))
    rows = []
    for one, throughput in zip(sizes, throughputs, strict=True):
        speed_up = throughput.value / base_value if throughput else None
        efficiency = speed_up * base / one.ranks if speed_up is not None else None
        rows.append(Row(one.ranks, one.code, one.seconds, throughput, speed_up, efficiency))
    return rows


def _comparable(sizes: Sequence[Measured]) -> list[Throughput | None]:
    good = [one for one in sizes if one.code == 0]
    units = {one.printed.unit for one in good if one.printed}
    if len(units) == 1 and all(one.printed for one in good):
        return [one.printed if one.code == 0 else None for one in sizes]
    if good and all(one.marked for one in good):
        return [one.marked if one.code == 0 else None for one in sizes]
    if not units:
        return [one.marked if one.code == 0 else None for one in sizes]
    # Not all of them say the same: those that speak of the most frequent unit can be compared.
    unit = max(units, key=lambda u: sum(o.printed.unit == u for o in good if o.printed))
    return [
        one.printed if one.code == 0 and one.printed and one.printed.unit == unit else None
        for one in sizes
    ]


def table(rows: Sequence[Row]) -> str:
    """The table for people."""
    unit = next((row.throughput.unit_per_second for row in rows if row.throughput), "per second")
    base = base_ranks(rows)
    ideal = f" (of {base})" if base > 1 else ""
    cells = [
        [
            str(row.ranks),
            number_text(row.throughput.value) if row.throughput else "-",
            f"{row.speed_up:.2f}x" if row.speed_up is not None else "-",
            f"{row.efficiency * 100:.1f} %" if row.efficiency is not None else "-",
            f"{row.seconds:.1f} s",
            _remark(row),
        ]
        for row in rows
    ]
    return text_table(
        ("RANKS", unit.upper(), f"SPEED-UP{ideal}", "EFFICIENCY", "RUN TOOK", "FROM"), cells
    )


def base_ranks(rows: Sequence[Row]) -> int:
    """The size to which the others are compared; 0 if none gave a throughput."""
    return min((row.ranks for row in rows if row.throughput), default=0)


def _remark(row: Row) -> str:
    if row.code:
        return f"failed with exit code {row.code}"
    return row.throughput.how if row.throughput else "no throughput found"


def as_json(rows: Sequence[Row], command: Sequence[str]) -> dict[str, Any]:
    """All figures; throughput of all ranks together, per second."""
    return {
        "format": "horovod-scaling",
        "version": 1,
        "command": list(command),
        "base_ranks": base_ranks(rows),
        "sizes": [
            {
                "ranks": row.ranks,
                "exit_code": row.code,
                "seconds": round(row.seconds, 3),
                "throughput": row.throughput.value if row.throughput else None,
                "unit": row.throughput.unit_per_second if row.throughput else None,
                "source": row.throughput.how if row.throughput else None,
                "speed_up": row.speed_up,
                "efficiency": row.efficiency,
            }
            for row in rows
        ],
    }
