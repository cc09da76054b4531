"""What a compute service knows: dispatchers, their workers, and whether it was shut down. No I/O."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from horovod.runner.common.util.timeout import TimeoutException

LOOK_SECONDS = 1.0  # how often a waiting call looks whether its client is still there


class Registry:
    """Dispatchers and workers that have registered. Safe from any thread.

    Args:
        dispatchers: how many there will be, with ids from 0.
        workers_per_dispatcher: how many each will have; worker ids are 0 to the product minus 1.

    Raises:
        ValueError: a number is not positive.
    """

    def __init__(self, dispatchers: int, workers_per_dispatcher: int) -> None:
        if dispatchers < 1:
            raise ValueError(f"The number of dispatchers must be positive: {dispatchers}")
        if workers_per_dispatcher < 1:
            raise ValueError(
                f"The number of workers per dispatcher must be positive: {workers_per_dispatcher}"
            )
        self._dispatchers = dispatchers
        self._workers_per_dispatcher = workers_per_dispatcher
        self._changed = threading.Condition()
        self._addresses: dict[int, str] = {}
        self._dispatcher_of_worker: dict[int, int] = {}
        self._shut_down = False
        self._closed = False

    def register_dispatcher(self, dispatcher_id: int, address: str) -> None:
        """Notes where a dispatcher can be reached; the same again is no error.

        Raises:
            IndexError: there is no dispatcher with this id.
            ValueError: it was registered under another address.
        """
        self._check_dispatcher(dispatcher_id)
        with self._changed:
            known = self._addresses.setdefault(dispatcher_id, address)
            if known != address:
                raise ValueError(
                    f"Dispatcher with id {dispatcher_id} has already been registered under different address "
                    f"{known}: {address}"
                )
            self._changed.notify_all()

    def register_worker(self, dispatcher_id: int, worker_id: int) -> None:
        """Notes that a worker serves a dispatcher; the same again is no error.

        Raises:
            IndexError: there is no dispatcher or no worker with this id.
            ValueError: the worker was registered for another dispatcher.
        """
        self._check_dispatcher(dispatcher_id)
        count = self._dispatchers * self._workers_per_dispatcher
        if not 0 <= worker_id < count:
            raise IndexError(f"Worker id must be within [0..{count - 1}]: {worker_id}")
        with self._changed:
            known = self._dispatcher_of_worker.setdefault(worker_id, dispatcher_id)
            if known != dispatcher_id:
                raise ValueError(
                    f"Worker with id {worker_id} has already been registered for different dispatcher "
                    f"{known}: {dispatcher_id}"
                )
            self._changed.notify_all()

    def wait_for_dispatcher(
        self, dispatcher_id: int, timeout: float, is_client_there: Callable[[], bool]
    ) -> str:
        """Returns the address of a dispatcher, once it has registered.

        Raises:
            IndexError: there is no dispatcher with this id.
            TimeoutException: it did not register in time.
        """
        self._check_dispatcher(dispatcher_id)
        self._wait(
            lambda: dispatcher_id in self._addresses,
            f"dispatcher {dispatcher_id} to register",
            timeout,
            is_client_there,
        )
        return self._addresses[dispatcher_id]

    def wait_for_workers(
        self, dispatcher_id: int, timeout: float, is_client_there: Callable[[], bool]
    ) -> None:
        """Returns once all workers of a dispatcher have registered; raises as `wait_for_dispatcher`."""
        self._check_dispatcher(dispatcher_id)
        self._wait(
            lambda: self._workers_of(dispatcher_id) >= self._workers_per_dispatcher,
            f"workers for dispatcher {dispatcher_id} to register",
            timeout,
            is_client_there,
        )

    def shut_down(self) -> None:
        """Tells all who wait for it that the work is done."""
        with self._changed:
            self._shut_down = True
            self._changed.notify_all()

    def wait_for_shutdown(self, is_client_there: Callable[[], bool]) -> None:
        """Returns once `shut_down` was called."""
        with self._changed:
            while not self._shut_down and is_client_there():
                self._changed.wait(LOOK_SECONDS)

    def close(self) -> None:
        """Shuts down, and ends the waits for registrations, too."""
        with self._changed:
            self._closed = True
            self._shut_down = True
            self._changed.notify_all()

    def _check_dispatcher(self, dispatcher_id: int) -> None:
        if not 0 <= dispatcher_id < self._dispatchers:
            raise IndexError(
                f"Dispatcher id must be within [0..{self._dispatchers - 1}]: {dispatcher_id}"
            )

    def _state(self) -> str:
        return (
            f"Registered are {len(self._addresses)} of {self._dispatchers} dispatcher(s) and "
            f"{len(self._dispatcher_of_worker)} of "
            f"{self._dispatchers * self._workers_per_dispatcher} worker(s)."
        )

    def _workers_of(self, dispatcher_id: int) -> int:
        return sum(known == dispatcher_id for known in self._dispatcher_of_worker.values())

    def _wait(
        self,
        condition: Callable[[], bool],
        activity: str,
        timeout: float,
        is_client_there: Callable[[], bool],
    ) -> None:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not condition():
                if self._closed:
                    raise RuntimeError(f"the compute service ended while waiting for {activity}")
                if not is_client_there():
                    raise ConnectionError("the client hung up")
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise TimeoutException(
                        f"Timed out waiting for {activity}. {self._state()} Find out what keeps the "
                        f"others, or give them more time. Timeout after {timeout:g} seconds."
                    )
                self._changed.wait(min(remaining, LOOK_SECONDS))
