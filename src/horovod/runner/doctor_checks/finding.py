"""What a check says, and how several of them add up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
VERDICTS = (FAILED, WARNING, OK, SKIPPED)  # the worst first


class Finding(NamedTuple):
    """The outcome of one check.

    `host` is as the user wrote it, `node1 -> node2` for a connection, or `all`. `fix` says what to do and is
    empty where nothing must be done.
    """

    name: str
    host: str
    verdict: str
    found: str
    fix: str = ""


def overall(findings: Iterable[Finding]) -> str:
    """The verdict on all of them: what was skipped does no harm."""
    seen = {finding.verdict for finding in findings}
    return next((verdict for verdict in (FAILED, WARNING) if verdict in seen), OK)
