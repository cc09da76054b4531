"""What must be the same on all hosts, seen from the launcher's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from horovod.runner.doctor_checks.finding import FAILED, OK, SKIPPED, WARNING, Finding

MOST_CLOCK_DIFFERENCE = 1.0  # seconds
NAME = "same versions"


class Facts(NamedTuple):
    """The versions of one host."""

    python: str
    horovod: str
    frameworks: dict[str, str]

    @staticmethod
    def from_message(message: Mapping[str, Any]) -> Facts:
        """As a probe sends them."""
        frameworks = {str(name): str(text) for name, text in message["frameworks"].items()}
        return Facts(str(message["python"]), str(message["horovod"]), frameworks)


def same_versions(launcher: str, facts: Mapping[str, Facts]) -> list[Finding]:
    """One finding for each host that differs from the launcher's, or one for all."""
    if len(facts) < 2:
        return [Finding(NAME, launcher, SKIPPED, "only one host to compare")]
    own = facts[launcher]
    findings = []
    for host, other in facts.items():
        findings += _differences(host, other, own)
    if findings:
        return findings
    names = [f"python {own.python}", f"horovod {own.horovod}"]
    names += [f"{name} {version}" for name, version in own.frameworks.items()]
    return [Finding(NAME, "all", OK, f"{', '.join(names)} on {len(facts)} hosts")]


def _differences(host: str, other: Facts, own: Facts) -> list[Finding]:
    findings = []
    if other.horovod != own.horovod:
        findings.append(
            Finding(
                NAME,
                host,
                FAILED,
                f"horovod {other.horovod}, the launcher has {own.horovod}",
                f"install horovod {own.horovod} on {host}",
            )
        )
    if other.python.split(".")[:2] != own.python.split(".")[:2]:
        findings.append(
            Finding(
                NAME,
                host,
                WARNING,
                f"python {other.python}, the launcher has {own.python}",
                "use the same Python on all hosts: horovod.run sends functions, which another one may "
                "not read",
            )
        )
    names = [
        name
        for name in dict.fromkeys([*own.frameworks, *other.frameworks])
        if own.frameworks.get(name) != other.frameworks.get(name)
    ]
    if names:
        found = ", ".join(f"{name} {other.frameworks.get(name, 'missing')}" for name in names)
        expected = ", ".join(f"{name} {own.frameworks.get(name, 'missing')}" for name in names)
        fix = f"install the same version of {', '.join(names)} on all hosts"
        findings.append(Finding(NAME, host, WARNING, f"{found}; the launcher has {expected}", fix))
    return findings


def clock(host: str, samples: Sequence[tuple[float, float, float]]) -> Finding:
    """The difference of two clocks.

    Args:
        host: whose clock was asked.
        samples: our time before, the host's time, our time after; in seconds. The quickest counts.
    """
    before, theirs, after = min(samples, key=lambda sample: sample[2] - sample[0])
    difference = theirs - (before + after) / 2
    found = f"{difference:+.3f} s from the launcher's (+- {(after - before) / 2:.3f} s)"
    if abs(difference) > MOST_CLOCK_DIFFERENCE:
        fix = "set the clocks by one server (chrony, ntp): times in logs and of files would mislead"
        return Finding("clock", host, WARNING, found, fix)
    return Finding("clock", host, OK, found)
