"""What a job costs while no rank asks for anything: CPU time, wake-ups and messages.

CPU time and wake-ups (voluntary context switches) of every thread of the ranks, and of the launcher
with its helpers, come from /proc; messages from the core's own counters.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groups import Group, PeerUnavailable, script, under_horovodrun
from harness import Report, Target, argument_parser, new_report

# The kernel's own bookkeeping and the timer tick may charge a thread a little for nothing.
CPU_TARGET_MS = 1.0


@dataclass(frozen=True)
class Activity:
    """Nanoseconds on a core and the number of times that threads went to sleep."""

    nanoseconds: int
    sleeps: int


def main() -> None:
    args = parse_arguments()
    report = new_report("idle", args)
    seconds = args.seconds or (3.0 if args.quick else 10.0)
    try:
        with Group(
            "Horovod", under_horovodrun(script("idle_worker.py"), args.ranks), args.ranks
        ) as job:
            watch(job, seconds, report)
    except PeerUnavailable as reason:
        report.note(str(reason))
    report.finish(args.json)


def watch(job: Group, seconds: float, report: Report) -> None:
    """Looks at all processes of the job before and after the idle time."""
    counters_before = job.ask("counters")
    launcher = [pid for pid in descendants(job.process_ids) if pid not in job.pids]
    parts = {f"rank {rank}": [pid] for rank, pid in enumerate(job.pids)} | {"launcher": launcher}
    # The request above woke the ranks: let them go back to sleep before the first look.
    time.sleep(0.5)
    before = {name: activity(pids) for name, pids in parts.items()}
    time.sleep(seconds)
    after = {name: activity(pids) for name, pids in parts.items()}
    counters_after = job.ask("counters")

    rows: list[dict[str, Any]] = [
        {
            "part": name,
            "processes": len(parts[name]),
            "CPU time, ms": (after[name].nanoseconds - before[name].nanoseconds) / 1e6,
            "wake-ups": after[name].sleeps - before[name].sleeps,
        }
        for name in parts
    ]
    report.table(f"in {seconds:g} s of idling", rows)
    messages = message_growth(counters_before, counters_after)
    report.table("the core's counters of messages, growth while idle", [messages])
    ranks = rows[: len(job.pids)]
    report.targets = [
        Target(
            "CPU time of a rank", max(r["CPU time, ms"] for r in ranks), CPU_TARGET_MS, True, "ms"
        ),
        Target("wake-ups of a rank", float(max(r["wake-ups"] for r in ranks)), 0.0, True),
        Target("messages of all ranks", float(sum(messages.values())), 0.0, True),
    ]


def message_growth(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> dict[str, int]:
    """By how much each counter with `message` in its name grew, over all ranks."""
    names = [name for name in after[0]["counters"] if "message" in name]
    if not names:
        raise RuntimeError(f"the core counts no messages; it has {sorted(after[0]['counters'])}")
    return {
        name: sum(
            b["counters"][name] - a["counters"][name] for a, b in zip(before, after, strict=True)
        )
        for name in names
    }


def activity(pids: list[int]) -> Activity:
    """The sum over all threads of the processes."""
    nanoseconds = sleeps = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
            for line in (thread / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    sleeps += int(line.split()[1])
    return Activity(nanoseconds, sleeps)


def descendants(pids: list[int]) -> list[int]:
    """The processes and all their children, theirs, and so on."""
    found = list(pids)
    for pid in found:  # grows while it is walked
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(child) for child in children.read_text().split()]
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argument_parser("CPU time, wake-ups and messages of an idle job")
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--seconds", type=float, help="how long to watch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
