"""horovodrun doctor: checks this host, the others and what lies between, and says what to do."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from horovod.runner.cli import add_hosts, add_ssh, print_error
from horovod.runner.doctor_checks import compare, network
from horovod.runner.doctor_checks.finding import FAILED, OK, SKIPPED, Finding, overall
from horovod.runner.doctor_checks.software import THREAD_VARIABLES
from horovod.runner.doctor_hosts import START_SECONDS, LocalHost, ProbeError, RemoteHost
from horovod.runner.doctor_probe import CHECK_SECONDS
from horovod.runner.doctor_report import as_json, table
from horovod.runner.hosts import host_name, parse_hosts, read_hostfile
from horovod.runner.plan import is_local
from horovod.runner.ssh import SshOptions

RESOLVE_SECONDS = 10
CLOCK_SAMPLES = 3
CLOCK_SECONDS = 5
LISTEN_SECONDS = 5
SEND_SECONDS = 40
MARGIN = 5  # for the way to and fro
EXAMPLES = """\
examples:
  this host:
    horovodrun doctor
  these hosts, from here and between each other:
    horovodrun doctor -H node1:2,node2:2
  for a program:
    horovodrun doctor -hostfile hosts.txt --json
"""

Host = LocalHost | RemoteHost
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


class _Pair(NamedTuple):
    """One direction between two hosts."""

    sender: Host
    listener: Host

    @property
    def name(self) -> str:
        return f"{self.sender.name} -> {self.listener.name}"


def doctor(arguments: list[str]) -> int:
    """Runs `horovodrun doctor` with its arguments; 0 if no check has failed, else 1."""
    options = _parser().parse_args(arguments)
    try:
        targets = _targets(options)
    except ValueError as error:
        print_error(str(error))
        return 1
    launcher = LocalHost(socket.gethostname())
    ssh = SshOptions(
        options.ssh_port, options.ssh_identity_file, bool(options.ssh_accept_new_host_keys)
    )
    remotes: list[RemoteHost] = []
    try:
        findings = _examine(launcher, remotes, targets, ssh, options.nics)
        print(as_json(launcher.name, findings) if options.json else table(findings), flush=True)
    except KeyboardInterrupt:
        _progress("interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has left. Python must not try to flush what it still holds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    finally:
        for remote in remotes:
            remote.hang_up()
        for remote in remotes:
            remote.close()
    return 1 if overall(findings) == FAILED else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun doctor",
        description="Checks this host, the hosts given and the network between them; leaves with 0 if "
        "nothing failed, else 1.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_hosts(parser.add_argument_group("Hosts"))
    add_ssh(parser.add_argument_group("SSH"))
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    return parser


def _targets(options: argparse.Namespace) -> list[str]:
    """The hosts as ssh is given them. ValueError for what makes no sense."""
    if options.hosts is not None:
        return [host.hostname for host in parse_hosts(options.hosts)]
    if options.hostfile is None:
        return []
    try:
        return [host.hostname for host in read_hostfile(options.hostfile)]
    except OSError as error:
        raise ValueError(f"host file {options.hostfile}: {error.strerror}") from None


def _examine(
    launcher: LocalHost,
    remotes: list[RemoteHost],
    targets: Sequence[str],
    ssh: SshOptions,
    interfaces: list[str] | None,
) -> list[Finding]:
    """All findings; the hosts that were reached are added to `remotes`, for the caller to close."""
    local = in_parallel({target: _bound(is_local, target) for target in targets}, RESOLVE_SECONDS)
    remotes += [
        RemoteHost(target, ssh, os.environ)
        for target in targets
        if local.get(target) is not True  # a name that takes too long is left to ssh
    ]
    _progress(f"checking {_count(1 + len(remotes), 'host')} ...")
    names = in_parallel({h.name: _bound(_resolve, h.name) for h in remotes}, RESOLVE_SECONDS)
    opened = in_parallel({h.name: h.open for h in remotes}, START_SECONDS + MARGIN)
    reached = {
        remote.name: _finding_of("ssh", remote.name, opened.get(remote.name)) for remote in remotes
    }
    up: list[Host] = [launcher, *(h for h in remotes if reached[h.name].verdict == OK)]
    by_host, facts = _check_hosts(up)
    findings = by_host[launcher.name]
    for name, ssh_finding in reached.items():
        works = ssh_finding.verdict == OK
        findings += [name_finding(name, names.get(name), works), ssh_finding]
        findings += by_host.get(name, [])
    if launcher.name in facts:
        findings += compare.same_versions(launcher.name, facts)
    findings += _clocks([host for host in up if isinstance(host, RemoteHost)])
    known = {name: found for name, found in names.items() if isinstance(found, list)}
    return findings + _network(up, remotes, launcher.name, interfaces, known)


def in_parallel(
    work: Mapping[_Key, Callable[[], _Value]], seconds: float
) -> dict[_Key, _Value | Exception]:
    """What each function returns or raises; what is not there in time is left out.

    ValueError and the like come from an answer that makes no sense, as of another version.
    """
    results: dict[_Key, _Value | Exception] = {}

    def run(key: _Key, function: Callable[[], _Value]) -> None:
        try:
            results[key] = function()
        except (ProbeError, OSError, ValueError, LookupError, TypeError) as error:
            results[key] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in work.items()]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(results)


def _bound(function: Callable[[str], _Value], argument: str) -> Callable[[], _Value]:
    return lambda: function(argument)


def _resolve(target: str) -> list[str]:
    found = socket.getaddrinfo(host_name(target), None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def name_finding(target: str, resolved: Any, ssh_works: bool) -> Finding:
    """Whether the launcher's host knows the name; `resolved` is a list of addresses, an error or None."""
    if isinstance(resolved, list):
        return Finding("name", target, OK, f"is {', '.join(resolved)}")
    reason = "takes too long" if resolved is None else getattr(resolved, "strerror", str(resolved))
    found = f"{host_name(target)} does not resolve on the launcher's host ({reason})"
    if ssh_works:
        return Finding("name", target, OK, f"{found}, but ssh knows it")
    fix = "check the spelling, or add it to /etc/hosts, the DNS or ~/.ssh/config of the launcher's host"
    return Finding("name", target, FAILED, found, fix)


def _unanswered(check: str, host: str, error: object) -> Finding:
    """A host that did not do what it was asked to do."""
    why = "no answer in time" if error is None else str(error)
    fix = "see whether the host and the connection to it are still up, and run this again"
    return Finding(check, host, FAILED, why, fix)


def _check_hosts(
    hosts: Sequence[Host],
) -> tuple[dict[str, list[Finding]], dict[str, compare.Facts]]:
    """The findings and the versions of each host."""
    seconds = CHECK_SECONDS + MARGIN
    answers = in_parallel({host.name: _checks(host, seconds) for host in hosts}, seconds + 1)
    findings: dict[str, list[Finding]] = {}
    facts: dict[str, compare.Facts] = {}
    for host in hosts:
        found = answers.get(host.name)
        if isinstance(found, dict):
            findings[host.name], facts[host.name] = found["findings"], found["facts"]
        else:
            findings[host.name] = [_unanswered("host", host.name, found)]
    return findings, facts


def _checks(host: Host, seconds: float) -> Callable[[], dict[str, Any]]:
    # What horovodrun passes on from here wins over what the login there sets.
    passed_on = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}

    def check() -> dict[str, Any]:
        found = host.ask(seconds, do="check", host=host.name, environment=passed_on)
        return {
            "findings": [Finding(*map(str, entry)) for entry in found["findings"]],
            "facts": compare.Facts.from_message(found["facts"]),
        }

    return check


def _clocks(hosts: Sequence[RemoteHost]) -> list[Finding]:
    def measure(host: Host) -> Callable[[], Finding]:
        def samples() -> Finding:
            found = []
            for _ in range(CLOCK_SAMPLES):
                before = time.time()
                theirs = float(host.ask(CLOCK_SECONDS, do="time")["time"])
                found.append((before, theirs, time.time()))
            return compare.clock(host.name, found)

        return samples

    measured = in_parallel(
        {host.name: measure(host) for host in hosts}, CLOCK_SAMPLES * CLOCK_SECONDS
    )
    return [_finding_of("clock", host.name, measured.get(host.name)) for host in hosts]


def _finding_of(check: str, host: str, outcome: object) -> Finding:
    return outcome if isinstance(outcome, Finding) else _unanswered(check, host, outcome)


def _network(
    up: Sequence[Host],
    remotes: Sequence[RemoteHost],
    launcher: str,
    interfaces: list[str] | None,
    known: Mapping[str, list[str]],
) -> list[Finding]:
    """Every pair of hosts in both directions, as many at a time as do not disturb each other."""
    if not remotes:
        return [Finding("network", launcher, SKIPPED, "only this host takes part")]
    by_name = {host.name: host for host in up}
    findings = [
        Finding("network", remote.name, SKIPPED, "not measured: no probe is up there")
        for remote in remotes
        if remote.name not in by_name
    ]
    rounds = network.rounds(list(by_name))
    total = sum(map(len, rounds))
    if total:
        _progress(f"measuring {_count(total, 'pair')} ...")
    for pairs in rounds:
        for there in (False, True):
            directed = [
                _Pair(*(by_name[name] for name in (reversed(pair) if there else pair)))
                for pair in pairs
            ]
            measured = in_parallel(
                {pair.name: _measurement(pair, interfaces, known) for pair in directed},
                LISTEN_SECONDS + SEND_SECONDS + 1,
            )
            findings += [
                _finding_of("network", pair.name, measured.get(pair.name)) for pair in directed
            ]
    return findings


def _measurement(
    pair: _Pair, interfaces: list[str] | None, known: Mapping[str, list[str]]
) -> Callable[[], Finding]:
    """`known`: the addresses of the hosts' names, which are tried before others."""
    named = known.get(pair.listener.name, [])

    def measure() -> Finding:
        token = secrets.token_hex(16)
        place = pair.listener.ask(LISTEN_SECONDS, do="listen", token=token, interfaces=interfaces)
        addresses = sorted(place["addresses"], key=lambda address: address not in named)
        if interfaces and not addresses:
            found = f"{pair.listener.name} has no address on interface(s) {', '.join(interfaces)}"
            fix = "leave --network-interfaces away, or name those that this host has (ip address)"
            return Finding("network", pair.name, FAILED, found, fix)
        answer = pair.sender.ask(
            SEND_SECONDS, do="send", token=token, port=place["port"], addresses=addresses
        )
        fields = {name: answer[name] for name in network.Measurement._fields}
        return network.judge(pair.name, network.Measurement(**fields), interfaces)

    return measure


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _progress(text: str) -> None:
    print(f"horovodrun doctor: {text}", file=sys.stderr, flush=True)
