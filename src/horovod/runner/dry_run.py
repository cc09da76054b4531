"""The text of --dry-run: what would be started where and with which environment. Starts nothing."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence

from horovod.runner.hosts import UNKNOWN_SLOTS
from horovod.runner.plan import KEY_VARIABLE, Plan, is_local, stays_here
from horovod.runner.ssh import remote_agent

REDACTED = "<redacted>"
LONGEST_VALUE = 200  # characters of a value that are shown

_SECRET_NAME = re.compile(r"KEY|SECRET|TOKEN|PASSW|CREDENTIAL", re.IGNORECASE)
# A user, and often a password or a token, before the host of a URL.
_SECRET_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S*@")

# What the launcher sets for every worker, and what is not known before it starts.
_ADDED = {
    "HOROVOD_CONTROLLER": "gloo",
    "HOROVOD_CROSS_RANK": "<table of ranks>",
    "HOROVOD_CROSS_SIZE": "<hosts that have this local rank>",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "<address of this machine by which the host reaches it>",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "<chosen at the start>",
    "HOROVOD_HOSTNAME": "<the host>",
    "HOROVOD_LOCAL_RANK": "<table of ranks>",
    "HOROVOD_LOCAL_SIZE": "<ranks of the host>",
    "HOROVOD_RANK": "<table of ranks>",
    "PYTHONUNBUFFERED": "1",
    KEY_VARIABLE: REDACTED,
}


def dry_run_text(
    plan: Plan,
    environment: Mapping[str, str],
    *,
    package_root: str | None = None,
    local: Callable[[str], bool] = is_local,
) -> str:
    """What --dry-run prints.

    Args:
        plan: of the job.
        environment: of the launcher, which the workers get too.
        package_root: where this package lies if it isn't installed, for the command of remote hosts.
        local: whether a host is this machine.
    """
    added = {**_ADDED, "HOROVOD_SIZE": str(plan.num_proc), **plan.variables}
    added_lines = [
        f"{name}={value if name in _ADDED and name not in plan.variables else shown(name, value)}"
        for name, value in sorted(added.items())
    ]
    passed_on = [
        f"{name}={shown(name, value)}{_stays(name)}"
        for name, value in sorted(environment.items())
        if name not in added
    ]
    sections = (
        ("Hosts", _hosts(plan, local)),
        ("Ranks", _ranks(plan)),
        (f"Command of each rank, in {shown('PWD', os.getcwd())}", [shown_command(plan.command)]),
        ("Environment that horovodrun adds", added_lines),
        ("Environment of this process, passed on", passed_on),
        (
            "How each host is started",
            _starts(plan, environment, package_root, local),
        ),
    )
    lines = ["Nothing is started. This is what horovodrun would do."]
    for heading, entries in sections:
        lines += ["", f"{heading}:", *(f"    {entry}" for entry in entries)]
    return "\n".join(lines)


def _stays(name: str) -> str:
    return "  (not to other hosts)" if stays_here(os.fsencode(name)) else ""


def _hosts(plan: Plan, local: Callable[[str], bool]) -> list[str]:
    rows = [("host", "slots", "ranks", "reached")]
    for host in plan.hosts:
        ranks = sum(slot.hostname == host.hostname for slot in plan.slots)
        slots = "asked" if host.slots == UNKNOWN_SLOTS else str(host.slots)
        reached = "here" if local(host.hostname) else "by ssh"
        used = str(ranks) if plan.slots else "?"
        rows.append(
            (host.hostname, slots, used, reached if ranks or not plan.slots else "not used")
        )
    return _table(rows)


def _ranks(plan: Plan) -> list[str]:
    if not plan.slots:
        return ["known when the hosts without slots have been asked how many they have"]
    rows = [("rank", "host", "local rank", "cross rank")]
    rows += [
        (str(slot.rank), slot.hostname, str(slot.local_rank), str(slot.cross_rank))
        for slot in plan.slots
    ]
    return _table(rows)


def _starts(
    plan: Plan,
    environment: Mapping[str, str],
    package_root: str | None,
    local: Callable[[str], bool],
) -> list[str]:
    lines = []
    for target in plan.targets():
        if local(target):
            lines.append(f"{target}: an agent as a child of this process")
        else:
            command = plan.there(environment)(target, remote_agent(package_root))
            lines.append(f"{target}: {shlex.join(command)}")
    return lines


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def shown(name: str, value: str) -> str:
    """A variable's value as it may be printed: no secrets, one line, not endless."""
    if _SECRET_NAME.search(name) or _SECRET_URL.search(value):
        return REDACTED
    text = value if value.isprintable() else ascii(value)
    if len(text) > LONGEST_VALUE:
        text = f"{text[:LONGEST_VALUE]}... ({len(value)} characters)"
    return text


def shown_command(command: Iterable[str]) -> str:
    """A command as it may be printed: without the values of options whose names speak of secrets."""
    words: list[str] = []
    secret_follows = False
    for word in command:
        name, equals, _ = word.partition("=")
        is_flag = word.startswith("-")
        if secret_follows and not is_flag:
            words.append(REDACTED)
        elif equals and _SECRET_NAME.search(name):
            words.append(f"{shlex.quote(name)}={REDACTED}")
        elif _SECRET_URL.search(word):
            words.append(REDACTED)
        else:
            words.append(shlex.quote(word if word.isprintable() else ascii(word)))
        secret_follows = is_flag and not equals and _SECRET_NAME.search(name) is not None
    return " ".join(words)
