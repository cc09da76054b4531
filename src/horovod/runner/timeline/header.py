"""The first event of a timeline: who recorded it, when, and how its clock relates to that of rank 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.events import Event, EventReader

FORMAT = 1
MERGED = "Horovod, merged"  # the name in the first event of what `merge` writes


@dataclass(frozen=True)
class Header:
    """Identity and clock of one file; times in microseconds."""

    rank: int
    size: int
    hosts: tuple[str, ...]  # of each rank
    start: int  # since the epoch, by this rank's clock
    clock_offset: float  # this rank's clock minus that of rank 0
    clock_error: float  # the offset is known to this much

    @property
    def host(self) -> str:
        """The host of the rank."""
        return self.hosts[self.rank]

    def shift(self, base: int) -> float:
        """What to add to a `ts` of the file to get microseconds since `base` on rank 0's clock."""
        return self.start - base - self.clock_offset


def read_header(path: Path) -> Header:
    """The header of a file. Raises TimelineError if the file is no timeline of a rank."""
    reader = EventReader(path)
    for event in reader:
        return parse_header(event, reader)
    raise TimelineError(f"{path}: holds no event")


def parse_header(event: Event, reader: EventReader) -> Header:
    """The header from the first event that `reader` gave. Raises TimelineError."""
    args = event.get("args")
    if event.get("name") != "process_name" or not isinstance(args, dict):
        raise reader.error(
            "no timeline of Horovod: the first event should be process_name with the args of the job"
        )
    if args.get("name") == MERGED:
        raise reader.error("this file is already merged; give the files that the ranks recorded")
    if "rank" not in args or "start_time_since_epoch_in_micros" not in args:
        raise reader.error(
            "no timeline that this version can read: rank or start time is missing in the first event "
            "(files of Horovod 0.x do not have them; record anew)"
        )
    if args.get("format") != FORMAT:
        raise reader.error(
            f"timeline of format {args.get('format')!r}, this version reads {FORMAT}; use the version of "
            "Horovod that recorded it"
        )
    fields = _Fields(args, reader)
    rank, size = fields.whole("rank"), fields.whole("size")
    if not 0 <= rank < size:
        raise reader.error(f"rank {rank} of {size} ranks in the first event makes no sense")
    return Header(
        rank=rank,
        size=size,
        hosts=fields.hosts(rank, size),
        start=fields.whole("start_time_since_epoch_in_micros"),
        clock_offset=fields.number("clock_offset_micros"),
        clock_error=abs(fields.number("clock_error_micros")),
    )


@dataclass(frozen=True)
class _Fields:
    """The args of the first event, checked one by one."""

    args: dict[str, Any]
    reader: EventReader

    def whole(self, name: str) -> int:
        value = self.number(name)
        if value != int(value):
            raise self.reader.error(f"{name} should be a whole number, is {value!r}")
        return int(value)

    def number(self, name: str) -> int | float:
        value = self.args.get(name, 0)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self.reader.error(f"{name} should be a number, is {value!r}")
        return value

    def hosts(self, rank: int, size: int) -> tuple[str, ...]:
        """The host of each rank; where only the own one is known the others are called "?"."""
        hosts = self.args.get("hosts")
        if hosts is None:
            own = str(self.args.get("host", "?"))
            return tuple(own if r == rank else "?" for r in range(size))
        if not isinstance(hosts, list) or len(hosts) != size:
            raise self.reader.error(f"hosts should be a list of {size} names, one per rank")
        return tuple(str(host) for host in hosts)
