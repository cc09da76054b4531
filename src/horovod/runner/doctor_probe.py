"""The part of `horovodrun doctor` that runs on each host: answers requests, one line of JSON each.

Run through ssh as `python -m horovod.runner.doctor_probe`. Every answer stands on a line of its own behind a
mark, because the start files of shells print what they like. It ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import horovod
from horovod.runner.doctor_checks import network, resources, software, surroundings
from horovod.runner.doctor_checks.finding import FAILED, Finding
from horovod.runner.doctor_checks.here import Here

MARK = "@horovod-doctor@ "
CHECK_SECONDS = 10
IDLE_SECONDS = 600  # nobody has asked for so long: the launcher's machine is gone

Check = Callable[[Here], Finding]
CHECKS: tuple[Check, ...] = (
    software.python,
    software.package,
    software.dependencies,
    software.frameworks,
    software.threads,
    resources.cores,
    resources.memory,
    resources.shared_memory,
    resources.open_files,
    resources.locked_memory,
    resources.processes,
    surroundings.own_name,
    surroundings.container,
    surroundings.scheduler,
    surroundings.mpi,
    surroundings.gpu,
)


def run_checks(
    here: Here, checks: Sequence[Check] = CHECKS, seconds: float = CHECK_SECONDS
) -> list[Finding]:
    """All findings in the order of the checks; one that breaks or hangs is a finding itself."""
    found: dict[int, Finding] = {}

    def run(index: int, check: Check) -> None:
        try:
            found[index] = check(here)
        except Exception as error:  # noqa: BLE001 - whatever it is, the user sees it as a finding
            text = f"the check itself broke: {type(error).__name__}: {error}"
            found[index] = Finding(_name(check), here.host, FAILED, text, "please report it")

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(checks)]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"no answer within {seconds:g} s"
    fix = "look for what hangs on that host: a driver, a file system or the resolver"
    return [
        found.get(index) or Finding(_name(check), here.host, FAILED, late, fix)
        for index, check in enumerate(checks)
    ]


def _name(check: Check) -> str:
    return check.__name__.replace("_", " ")


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Does what is asked; ValueError for what it does not know."""
    match request["do"]:
        case "check":
            environment = {**os.environ, **request.get("environment", {})}
            here = Here(str(request["host"]), environment)
            return {
                "findings": [list(finding) for finding in run_checks(here)],
                "facts": {
                    "python": ".".join(map(str, here.python)),
                    "horovod": horovod.__version__,
                    "frameworks": software.framework_versions(here),
                },
            }
        case "time":
            return {"time": time.time()}
        case "listen":
            return {
                "port": network.listen(str(request["token"])),
                "addresses": network.usable_addresses(request["interfaces"]),
            }
        case "send":
            measured = network.send(request["addresses"], request["port"], request["token"])
            return measured._asdict()
        case other:
            raise ValueError(f"the launcher asks for '{other}', which this version does not know")


def main() -> int:
    """Serves the launcher at the other end of standard input and output."""
    out = sys.stdout
    sys.stdout = sys.stderr  # nothing that is printed by accident may get between the answers
    print(f"\n{MARK}{json.dumps({'hello': horovod.__version__})}", file=out, flush=True)
    signal.alarm(IDLE_SECONDS)
    for line in sys.stdin:
        signal.alarm(IDLE_SECONDS)
        request = json.loads(line)
        try:
            reply = {"id": request["id"], **answer(request)}
        except (OSError, ValueError, LookupError) as error:
            reply = {"id": request["id"], "refused": f"{type(error).__name__}: {error}"}
        print(f"\n{MARK}{json.dumps(reply)}", file=out, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
