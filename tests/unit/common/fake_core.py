"""A stand-in for the compiled core: records what it is given and answers like a job of one rank."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from typing import Any

from horovod.common.dtypes import ITEM_SIZE, Collective


class FakeCore:
    """One rank's core. Reductions and broadcasts copy the input; gathers return it in a buffer."""

    def __init__(self) -> None:
        self.submissions: list[dict[str, Any]] = []
        self.marked_urgent: list[int] = []
        self.error: Exception | None = None  # raised by the next wait
        self.ready = True
        self.running = False
        self.started: dict[str, Any] = {}
        self.provided: dict[int, int] = {}
        self.failed: dict[int, str] = {}
        self._requests: list[int] = []
        self._wake = threading.Condition()
        self._next_set = 1

    # --- life ---

    def region_bytes(self, config: dict[str, Any]) -> int:
        return 4096

    def start(self, *arguments: Any) -> None:
        names = ("config", "topology", "regions", "doorbells")
        names += ("host_sockets", "tree_sockets", "parent", "children")
        self.started = dict(zip(names, arguments, strict=True))
        self.running = True

    def shutdown(self) -> None:
        with self._wake:
            self.running = False
            self._wake.notify_all()
        for part in ("regions", "doorbells", "host_sockets", "tree_sockets"):
            for descriptor in self.started.pop(part, {}).values():
                os.close(descriptor)
        for descriptor in self.provided.values():
            os.close(descriptor)
        self.provided.clear()

    def is_running(self) -> bool:
        return self.running

    def abort_text(self) -> str | None:
        return None

    # --- seeing and tuning ---

    def next_stack_request(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: not self.running)
        return False

    def set_stack_handler(self, signal: int, file: int) -> None:
        os.close(file)

    def install_dump_signal(self, signal: int) -> bool:
        return True

    def set_clock(self, offset_micros: float, error_micros: float) -> None:
        self.clock = (offset_micros, error_micros)

    def algorithm_table(self) -> str:
        return "Algorithms:\nALLREDUCE, one host, other sizes: shares"

    def metrics(self) -> dict[str, Any]:
        return {"rank": 0, "size": 1, "steps": 0}

    # --- connections on first use ---

    def request_connection(self, peer: int) -> None:
        with self._wake:
            self._requests.append(peer)
            self._wake.notify_all()

    def next_connection_request(self) -> int | None:
        with self._wake:
            self._wake.wait_for(lambda: self._requests or not self.running)
            return self._requests.pop(0) if self._requests else None

    def provide_connection(self, peer: int, descriptor: int) -> None:
        with self._wake:
            self.provided[peer] = descriptor
            self._wake.notify_all()

    def connection_failed(self, peer: int, text: str) -> None:
        with self._wake:
            self.failed[peer] = text
            self._wake.notify_all()

    def wait_until(self, condition: Any) -> None:
        with self._wake:
            assert self._wake.wait_for(condition, 20)

    # --- operations ---

    def submit(
        self,
        kind: int,
        names: list[str],
        inputs: Sequence[tuple[int, int, tuple[int, ...]]],
        outputs: Sequence[tuple[int, int, tuple[int, ...]]] | None,
        *rest: Any,
    ) -> int:
        fields = ("op", "prescale", "postscale", "root", "splits", "process_set", "group")
        fields += ("device", "cacheable", "urgent", "ranks")
        submission = dict(zip(fields, rest, strict=True))
        submission.update(kind=Collective(kind), names=names, inputs=inputs, outputs=outputs)
        self.submissions.append(submission)
        return len(self.submissions) - 1

    def poll(self, handle: int) -> bool:
        return self.ready

    def urgent(self, handle: int) -> None:
        self.marked_urgent.append(handle)

    def wait(self, handle: int) -> tuple[list[tuple[Any, tuple[int, ...], Any]], int]:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        submission = self.submissions[handle]
        results: list[tuple[Any, tuple[int, ...], Any]] = []
        for i, (pointer, dtype, shape) in enumerate(submission["inputs"]):
            size = ITEM_SIZE[dtype]
            for dimension in shape:
                size *= dimension
            if submission["outputs"] is not None:
                ctypes.memmove(submission["outputs"][i][0], pointer, size)
            else:
                buffer = bytearray(ctypes.string_at(pointer, size) if size else 0)
                results.append((buffer, shape, submission["splits"]))
        value = -1
        if submission["kind"] is Collective.ADD_PROCESS_SET:
            value, self._next_set = self._next_set, self._next_set + 1
        return results, value
