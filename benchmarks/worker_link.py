"""The worker's end of a benchmark: asks the conductor what to do next and answers with figures.

Needs only the standard library, because workers also run in environments with nothing but an MPI.
"""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

SOCKET_VARIABLE = "BENCH_SOCKET"

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def serve(rank: int, commands: dict[str, Handler]) -> None:
    """Runs commands until the conductor says ``quit``. Between them the process sleeps in a read."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.environ[SOCKET_VARIABLE])
        lines = link.makefile("rw", encoding="utf-8")
        send(lines, {"rank": rank, "pid": os.getpid()})
        for line in lines:
            request = json.loads(line)
            if request["command"] == "quit":
                break
            send(lines, answer(request, commands))


def answer(request: dict[str, Any], commands: dict[str, Handler]) -> dict[str, Any]:
    """The handler's figures, or the text of what it raised."""
    try:
        return commands[request["command"]](request)
    except Exception:  # noqa: BLE001 - whatever it is, the conductor must hear of it
        return {"error": traceback.format_exc()}


def send(lines: Any, message: dict[str, Any]) -> None:
    """One line of JSON."""
    lines.write(json.dumps(message) + "\n")
    lines.flush()
