"""The report as text for people and as JSON for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from horovod.runner.flight_recorder.analysis import ranks_named
from horovod.runner.flight_recorder.dump import Dump, Operation
from horovod.runner.flight_recorder.findings import NONE, Finding
from horovod.runner.flight_recorder.reader import Folder
from horovod.runner.flight_recorder.stacks import where
from horovod.runner.flight_recorder.words import (
    capital,
    count,
    quoted,
    ranks_text,
    seconds,
    spans,
)

WIDTH = 110
LISTS = 8  # groups of ranks whose last operations are printed
_COLUMNS = ("rank", "host", "why", "submitted", "done", "pending", "failed", "blocked on", "at")


@dataclass(frozen=True)
class _Row:
    """What the table says of a rank."""

    host: str
    why: str
    submitted: int
    done: int
    pending: int
    failed: int
    blocked: str
    place: str


def as_text(folder: Folder, findings: Sequence[Finding], last: int) -> str:
    """Returns the report.

    Args:
        folder: what was read.
        findings: the first divergence first.
        last: how many of the last operations are listed for a rank.
    """
    head, *rest = findings
    parts = [_paragraphs(head)]
    if rest:
        parts.append(f"After that, and perhaps because of it ({count(len(rest), 'finding')}):")
        parts += [_paragraphs(finding, short=True) for finding in rest]
    problems = [*folder.unreadable.values(), *folder.warnings]
    if problems:
        parts.append("Not read, or odd:\n" + "\n".join(_wrapped(text, "  - ") for text in problems))
    parts.append(_table(folder))
    if last > 0:
        parts += _last_operations(folder, ranks_named(findings), last)
    return "\n\n".join(parts)


def _wrapped(text: str, first: str, further: str = "    ") -> str:
    lines = text.splitlines() or [""]
    return "\n".join(
        textwrap.fill(
            line,
            WIDTH,
            initial_indent=first if i == 0 else further,
            subsequent_indent=further,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for i, line in enumerate(lines)
    )


def _paragraphs(finding: Finding, short: bool = False) -> str:
    if short:
        return _wrapped(finding.sentences[0], "  - ")
    lines = [_verdict(finding), *finding.sentences]
    text = "\n".join(_wrapped(line, "", "") for line in lines)
    if finding.evidence:
        text += "\n\nWhat shows it:\n" + "\n".join(
            _wrapped(line, "  - ") for line in finding.evidence
        )
    return text


def _verdict(finding: Finding) -> str:
    """Returns the headline."""
    if finding.kind == NONE:
        return "NO DIVERGENCE"
    if not finding.ranks:
        return f"DIVERGED: which rank is wrong cannot be told from the dumps ({finding.kind})"
    return f"DIVERGED FIRST: {ranks_text(finding.ranks)} ({finding.kind})"


def _row(dump: Dump) -> _Row:
    states = [operation.state for operation in dump.operations]
    failed, pending = states.count("failed"), _pending(states)
    blocked = quoted(dump.blocked[0].name) if dump.blocked else "-"
    more = f" +{len(dump.blocked) - 1}" if len(dump.blocked) > 1 else ""
    return _Row(
        dump.host,
        dump.reason,
        dump.recorded,
        dump.recorded - pending - failed,
        pending,
        failed,
        blocked + more,
        where(dump.stacks) or "-",
    )


def _pending(states: list[str]) -> int:
    return sum(state not in ("done", "failed") for state in states)


def _table(folder: Folder) -> str:
    """One row for ranks that are alike, hosts aside."""
    rows: dict[tuple[Any, ...], list[int]] = {}
    for rank, dump in sorted(folder.dumps.items()):
        row = _row(dump)
        key = (row.why, row.submitted, row.done, row.pending, row.failed, row.blocked, row.place)
        rows.setdefault(key, []).append(rank)
    cells = [list(_COLUMNS)]
    for key, ranks in rows.items():
        hosts = list(dict.fromkeys(folder.dumps[rank].host for rank in ranks))
        cells.append(
            [
                spans(ranks),
                hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts",
                *map(str, key),
            ]
        )
    size = next(iter(folder.dumps.values())).size
    damaged = [rank for rank in range(size) if rank in folder.unreadable]
    absent = [rank for rank in range(size) if rank not in {*folder.dumps, *damaged}]
    for ranks, why in ((damaged, "not readable"), (absent, "no file")):
        cells += [[spans(ranks), "", why]] if ranks else []
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(len(_COLUMNS) - 1)]
    return "\n".join(
        "  ".join(
            cell.ljust(widths[i]) if i < len(widths) else cell for i, cell in enumerate(row)
        ).rstrip()
        for row in cells
    )


def _last_operations(folder: Folder, named: Sequence[int], last: int) -> list[str]:
    groups: dict[tuple[Any, ...], list[int]] = {}
    for rank, dump in sorted(folder.dumps.items()):
        key = tuple((op.serial, op.name, op.state) for op in dump.operations[-last:])
        groups.setdefault(key, []).append(rank)
    # Those who diverged first, then the largest groups.
    ordered = sorted(
        groups.values(), key=lambda ranks: (not set(ranks) & set(named), -len(ranks), ranks[0])
    )
    texts = [_operations_of(folder, ranks, last) for ranks in ordered[:LISTS]]
    left = [rank for ranks in ordered[LISTS:] for rank in ranks]
    if left:
        texts.append(f"The last operations of {ranks_text(left)} are left out; see --json.")
    return texts


def _operations_of(folder: Folder, ranks: Sequence[int], last: int) -> str:
    dump = folder.dumps[ranks[0]]
    operations = dump.operations[-last:]
    if not operations:
        return f"{capital(ranks_text(ranks))}: no operations."
    title = f"Last operations of {ranks_text(ranks)}"
    title += f" (times of rank {ranks[0]}):" if len(ranks) > 1 else ":"
    cells = [
        [
            f"  {op.serial}",
            op.state,
            quoted(op.name),
            op.describe() + (f", process set {op.process_set}" if op.process_set else ""),
            _times(dump, op),
        ]
        for op in operations
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(4)]
    lines = [
        "  ".join([*(cell.ljust(widths[i]) for i, cell in enumerate(row[:4])), row[4]])
        for row in cells
    ]
    return "\n".join([title, *lines])


def _times(dump: Dump, operation: Operation) -> str:
    ago = f"{seconds(dump.monotonic - operation.submitted)} ago"
    if operation.finished is None:
        return ago
    return f"{ago}, took {seconds(operation.finished - operation.submitted)}"


def as_json(folder: Folder, findings: Sequence[Finding], last: int) -> str:
    """Returns the same as one object of JSON."""
    size = next(iter(folder.dumps.values())).size
    content = {
        "size": size,
        "findings": [
            {
                "kind": finding.kind,
                "ranks": list(finding.ranks),
                "text": " ".join(finding.sentences),
                "evidence": list(finding.evidence),
                "time": finding.when,
            }
            for finding in findings
        ],
        "ranks": [_rank(dump, last) for _, dump in sorted(folder.dumps.items())],
        "absent": [
            rank
            for rank in range(size)
            if rank not in folder.dumps and rank not in folder.unreadable
        ],
        "unreadable": {str(rank): text for rank, text in folder.unreadable.items()},
        "warnings": list(folder.warnings),
    }
    return json.dumps(content, indent=1)


def _rank(dump: Dump, last: int) -> dict[str, Any]:
    row = _row(dump)
    return {
        "rank": dump.rank,
        "host": dump.host,
        "pid": dump.pid,
        "reason": dump.reason,
        "text": dump.text,
        "time": dump.time,
        "submitted": row.submitted,
        "done": row.done,
        "pending": row.pending,
        "failed": row.failed,
        "blocked": [
            {"name": blocked.name, "seconds": dump.monotonic - blocked.since}
            for blocked in dump.blocked
        ],
        "at": where(dump.stacks),
        "last_operations": [
            {
                "serial": op.serial,
                "process_set": op.process_set,
                "set_serial": op.set_serial,
                "name": op.name,
                "description": op.describe(),
                "state": op.state,
                "seconds_before_dump": dump.monotonic - op.submitted,
                "error": op.error,
            }
            for op in (dump.operations[-last:] if last > 0 else ())
        ],
    }
