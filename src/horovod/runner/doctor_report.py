"""What `horovodrun doctor` prints: a table for people, JSON for machines."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Sequence

from horovod.runner.doctor_checks.finding import VERDICTS, Finding, overall

WIDTH = 100
_MOST_HOST = 24
_HEADINGS = ("VERDICT", "HOST", "CHECK", "FOUND")


def table(findings: Sequence[Finding], width: int = WIDTH) -> str:
    """One line for each finding, with its fix below it; no line is longer than `width`."""
    hosts = max([len(finding.host) for finding in findings] + [len(_HEADINGS[1])])
    checks = max([len(finding.name) for finding in findings] + [len(_HEADINGS[2])])
    widths = [len(_HEADINGS[0]), min(hosts, _MOST_HOST), checks]
    widths.append(width - sum(widths) - 2 * len(widths))
    lines = _row(_HEADINGS, widths)
    for finding in findings:
        lines += _row((finding.verdict, finding.host, finding.name, finding.found), widths)
        if finding.fix:
            lines += _row(("", "", "", f"fix: {finding.fix}"), widths)
    return "\n".join([*lines, "", summary(findings)])


def _row(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    wrapped = [
        textwrap.wrap(_printable(cell), width) or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    lines = []
    for number in range(max(map(len, wrapped))):
        parts = [
            (column[number] if number < len(column) else "").ljust(width)
            for column, width in zip(wrapped, widths, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def _printable(text: str) -> str:
    """What other hosts say may hold anything; a terminal must not obey it."""
    return "".join(char if char.isprintable() else " " for char in text)


def summary(findings: Sequence[Finding]) -> str:
    """The last line: how many there are of each verdict."""
    counts = Counter(finding.verdict for finding in findings)
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return f"{len(findings)} checks: {', '.join(parts)}"


def as_json(launcher: str, findings: Sequence[Finding]) -> str:
    """The same for machines; docs/doctor.md has the fields."""
    content = {
        "verdict": overall(findings),
        "launcher": launcher,
        "findings": [finding._asdict() for finding in findings],
    }
    return json.dumps(content, indent=2)
