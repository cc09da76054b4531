"""Where the dispatchers and workers of a tf.data service register, and a training job finds them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from horovod.runner.common.service.messages import (
    LONG_SECONDS,
    Addresses,
    Server,
    ask,
    local_address_towards,
)
from horovod.runner.common.service.registry import Registry
from horovod.runner.common.util.timeout import TimeoutException

PURPOSE = "compute service"
ANSWER_SECONDS = 30.0  # beyond what the service was asked to wait
PROBE_SECONDS = 5.0  # for one address to answer
PROBES = 16  # addresses that are tried at once

# What may be raised by the service and travels to the client.
_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (IndexError, ValueError, TimeoutException, RuntimeError)
}


class ComputeService:
    """The service. It listens from the beginning until `shutdown`.

    Args:
        dispatchers: number of dispatchers that will register.
        workers_per_dispatcher: number of workers that will register for each.
        key: what clients must hold.
        nics: network interfaces whose addresses `addresses` tells; all if None.

    Raises:
        ValueError: a number is not positive.
    """

    def __init__(
        self,
        dispatchers: int,
        workers_per_dispatcher: int,
        key: bytes,
        nics: Iterable[str] | None = None,
    ) -> None:
        self._registry = Registry(dispatchers, workers_per_dispatcher)
        self._server = Server(key, PURPOSE, self._answer, self._registry.close, nics)

    def addresses(self) -> Addresses:
        """By network interface, the addresses and ports where clients may connect."""
        return self._server.addresses()

    def shutdown(self) -> None:
        """Ends the service. Who waits for that gets to know; who waits for anything else gets an error."""
        self._server.shutdown()

    def _answer(self, request: list[Any], is_open: Callable[[], bool]) -> list[Any]:
        try:
            return ["done", self._handle(request, is_open)]
        except tuple(_ERRORS.values()) as error:
            return ["error", type(error).__name__, str(error)]

    def _handle(self, request: list[Any], is_open: Callable[[], bool]) -> str | None:
        registry = self._registry
        match request:
            case ["register dispatcher", int(dispatcher_id), str(address)]:
                registry.register_dispatcher(dispatcher_id, address)
            case ["register worker", int(dispatcher_id), int(worker_id)]:
                registry.register_worker(dispatcher_id, worker_id)
            case ["wait for dispatcher", int(dispatcher_id), float(timeout)]:
                return registry.wait_for_dispatcher(dispatcher_id, timeout, is_open)
            case ["wait for workers", int(dispatcher_id), float(timeout)]:
                registry.wait_for_workers(dispatcher_id, timeout, is_open)
            case ["shut down"]:
                registry.shut_down()
            case ["wait for shutdown"]:
                registry.wait_for_shutdown(is_open)
            case _:
                raise RuntimeError("the compute service does not know this request")
        return None


class ComputeClient:
    """A client; every call makes a connection of its own, so it can be used from any thread.

    Args:
        compute_addresses: what `ComputeService.addresses` returned.
        key: that of the service.
        verbose: 2 or more: say on stderr which addresses can't be reached.

    Attributes:
        local_address: the address that this host has on the way to the service.

    Raises:
        ConnectionError: the service can't be reached, or does not hold the key.
    """

    def __init__(
        self,
        compute_addresses: Mapping[str, Sequence[tuple[str, int]]],
        key: bytes,
        verbose: int = 1,
    ) -> None:
        self._key = key
        self._address, self.local_address = _reachable(compute_addresses, key, verbose)

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Tells where a dispatcher can be reached; the same again is no error.

        Raises:
            IndexError: there is no dispatcher with this id.
            ValueError: it was registered under another address.
        """
        self._ask("register dispatcher", dispatcher_id, dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Returns the address of a dispatcher, once it has registered.

        Raises:
            IndexError: there is no dispatcher with this id.
            TimeoutException: it did not register within `timeout` seconds.
        """
        return str(self._ask("wait for dispatcher", dispatcher_id, float(timeout), wait=timeout))

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Tells that a worker serves a dispatcher; the same again is no error.

        Raises:
            IndexError: there is no dispatcher or no worker with this id.
            ValueError: the worker was registered for another dispatcher.
        """
        self._ask("register worker", dispatcher_id, worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Returns once all workers of a dispatcher have registered.

        Raises:
            IndexError: there is no dispatcher with this id.
            TimeoutException: they did not register within `timeout` seconds.
        """
        self._ask("wait for workers", dispatcher_id, float(timeout), wait=timeout)

    def shutdown(self) -> None:
        """Tells all who wait for it that the work is done."""
        self._ask("shut down")

    def wait_for_shutdown(self) -> None:
        """Returns once some client has called `shutdown`, or the service has ended in order."""
        self._ask("wait for shutdown", wait=LONG_SECONDS)

    def _ask(self, *request: Any, wait: float = 0.0) -> Any:
        """Returns the answer, for which the service may need `wait` seconds."""
        timeout = max(0.0, wait) + ANSWER_SECONDS
        match ask(self._address, self._key, PURPOSE, list(request), timeout):
            case ["done", value]:
                return value
            case ["error", str(kind), str(text)]:
                raise _ERRORS.get(kind, RuntimeError)(text)
        raise ConnectionError("the compute service gave an answer that makes no sense")


def _reachable(
    addresses: Mapping[str, Sequence[tuple[str, int]]], key: bytes, verbose: int
) -> tuple[tuple[str, int], str]:
    """Returns the first address where the service answers, and this host's own on the way there.

    Loopback comes last: the name that a host has there is of no use to others.
    """
    candidates = [(str(host), int(port)) for of_nic in addresses.values() for host, port in of_nic]
    candidates.sort(key=lambda address: address[0].startswith("127."))
    failures = []
    # All at once, because an address of another network may take long to fail.
    pool = ThreadPoolExecutor(PROBES, thread_name_prefix="compute service probe")
    try:
        probes = [
            pool.submit(local_address_towards, address, key, PURPOSE, PROBE_SECONDS)
            for address in candidates
        ]
        for address, probe in zip(candidates, probes, strict=True):
            try:
                return address, probe.result()
            except OSError as error:
                failures.append(f"{address[0]}:{address[1]}: {error}")
                if verbose >= 2:
                    print(f"compute service not at {failures[-1]}", file=sys.stderr)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    raise ConnectionError(
        "cannot reach the compute service; is it still running, and is this its key? Tried "
        + ("; ".join(failures) or "no address at all")
    )
