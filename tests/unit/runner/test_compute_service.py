"""The compute service: dispatchers and workers register, others wait for them; errors reach the client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from horovod.runner.common.service import messages
from horovod.runner.common.service.compute_service import PURPOSE, ComputeClient, ComputeService
from horovod.runner.common.service.registry import Registry
from horovod.runner.common.util.secret import make_secret_key
from horovod.runner.common.util.timeout import TimeoutException

KEY = make_secret_key()


@pytest.fixture
def service() -> Iterator[ComputeService]:
    """Two dispatchers with two workers each."""
    service = ComputeService(2, 2, KEY)
    yield service
    service.shutdown()


@pytest.fixture
def client(service: ComputeService) -> ComputeClient:
    return ComputeClient(service.addresses(), KEY)


class Later:
    """Runs a function in a thread."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.outcome: object = None
        self._function = function
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        time.sleep(0.1)

    def _run(self) -> None:
        try:
            self.outcome = self._function()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.outcome = error

    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> object:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.outcome


def test_numbers_must_be_positive() -> None:
    for dispatchers, workers, word in (
        (0, 1, "dispatchers"),
        (-1, 1, "dispatchers"),
        (1, 0, "workers"),
    ):
        with pytest.raises(ValueError, match=f"number of {word}.*must be positive"):
            ComputeService(dispatchers, workers, KEY)


def test_dispatcher_is_found_once_it_has_registered(client: ComputeClient) -> None:
    waiting = Later(lambda: client.wait_for_dispatcher_registration(0, 10))
    assert waiting.is_waiting()
    client.register_dispatcher(1, "grpc://elsewhere:2")
    assert waiting.is_waiting()
    client.register_dispatcher(0, "grpc://here:1")
    assert waiting.result() == "grpc://here:1"
    assert client.wait_for_dispatcher_registration(1, 10) == "grpc://elsewhere:2"


def test_workers_of_a_dispatcher_are_waited_for_and_replays_do_not_count(
    client: ComputeClient,
) -> None:
    waiting = Later(lambda: client.wait_for_dispatcher_worker_registration(0, 10))
    for worker, dispatcher in ((2, 1), (3, 1), (0, 0), (0, 0), (0, 0)):
        client.register_worker_for_dispatcher(dispatcher, worker)
    client.wait_for_dispatcher_worker_registration(1, 10)
    assert waiting.is_waiting()
    client.register_worker_for_dispatcher(0, 1)
    assert waiting.result() is None


def test_registration_under_another_address_is_refused_and_the_same_is_not(
    client: ComputeClient,
) -> None:
    client.register_dispatcher(0, "grpc://here:1")
    client.register_dispatcher(0, "grpc://here:1")
    with pytest.raises(
        ValueError, match=r"Dispatcher with id 0 has already been registered under .*here:1"
    ):
        client.register_dispatcher(0, "grpc://here:2")
    assert client.wait_for_dispatcher_registration(0, 1) == "grpc://here:1"


def test_a_worker_of_two_dispatchers_is_refused(client: ComputeClient) -> None:
    client.register_worker_for_dispatcher(0, 1)
    with pytest.raises(ValueError, match="Worker with id 1 has already been registered"):
        client.register_worker_for_dispatcher(1, 1)


def test_ids_out_of_range_are_index_errors(client: ComputeClient) -> None:
    for bad in (-1, 2):
        with pytest.raises(IndexError, match=rf"Dispatcher id must be within \[0\.\.1\]: {bad}"):
            client.register_dispatcher(bad, "grpc://here:1")
        with pytest.raises(IndexError):
            client.register_worker_for_dispatcher(bad, 0)
        with pytest.raises(IndexError):
            client.wait_for_dispatcher_registration(bad, 1)
        with pytest.raises(IndexError):
            client.wait_for_dispatcher_worker_registration(bad, 1)
    with pytest.raises(IndexError, match=r"Worker id must be within \[0\.\.3\]: 4"):
        client.register_worker_for_dispatcher(0, 4)


def test_waiting_too_long_says_for_whom_and_how_long(client: ComputeClient) -> None:
    with pytest.raises(TimeoutException) as raised:
        client.wait_for_dispatcher_registration(0, 0.1)
    text = str(raised.value)
    assert text.startswith("Timed out waiting for dispatcher 0 to register. ")
    assert "0 of 2 dispatcher(s)" in text
    assert text.endswith(" Timeout after 0.1 seconds.")
    client.register_worker_for_dispatcher(0, 0)
    with pytest.raises(
        TimeoutException, match=r"workers for dispatcher 0 to register\..* 1 of 4 worker"
    ):
        client.wait_for_dispatcher_worker_registration(0, 0.1)


def test_shutdown_of_a_client_wakes_those_who_wait_for_it(client: ComputeClient) -> None:
    waiting = [Later(client.wait_for_shutdown) for _ in range(3)]
    assert all(w.is_waiting() for w in waiting)
    client.shutdown()
    assert [w.result() for w in waiting] == [None] * 3
    client.wait_for_shutdown()  # it stays so


def test_end_of_the_service_answers_all_who_wait(
    service: ComputeService, client: ComputeClient
) -> None:
    for_end = Later(client.wait_for_shutdown)
    for_dispatcher = Later(lambda: client.wait_for_dispatcher_registration(0, 60))
    service.shutdown()
    assert for_end.result() is None
    assert isinstance(for_dispatcher.result(), RuntimeError)
    assert "ended while waiting for dispatcher 0" in str(for_dispatcher.outcome)
    service.shutdown()
    with pytest.raises(OSError):
        client.register_dispatcher(0, "grpc://here:1")
    with pytest.raises(
        ConnectionError, match=r"cannot reach the compute service.*Connection refused"
    ):
        ComputeClient(service_addresses(client), KEY)


def service_addresses(client: ComputeClient) -> dict[str, list[tuple[str, int]]]:
    return {"any": [client._address]}


def test_who_does_not_hold_the_key_is_refused_and_harms_nobody(
    service: ComputeService,
    client: ComputeClient,
    stranger: Callable[..., bytes],
) -> None:
    with pytest.raises(ConnectionError, match="does not hold the key"):
        ComputeClient(service.addresses(), make_secret_key())
    for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(32), bytes(200), b"\xff" * 5000):
        assert len(stranger(client._address, noise, then_ends=True)) <= 64  # a nonce and a proof
    client.register_dispatcher(0, "grpc://here:1")


def test_connections_for_another_purpose_are_refused(client: ComputeClient) -> None:
    with pytest.raises(ConnectionError):
        messages.ask(client._address, KEY, "something else", ["shut down"], 5)


def test_long_messages_and_nonsense_are_refused_also_from_friends(client: ComputeClient) -> None:
    with pytest.raises(ValueError, match="the limit is 65536"):
        client.register_dispatcher(0, "x" * 70_000)
    with pytest.raises(RuntimeError, match="does not know this request"):
        client._ask("dance", 0)
    with pytest.raises(RuntimeError, match="does not know this request"):
        client._ask("register dispatcher", "zero", "grpc://here:1")


def test_a_client_that_goes_away_while_it_waits_leaves_no_thread(service: ComputeService) -> None:
    def serving() -> int:
        return sum(thread.name == f"{PURPOSE} connection" for thread in threading.enumerate())

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 10
        while serving() != count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert serving() == count

    wait_for(0)  # those of earlier tests have gone
    address = next(iter(service.addresses().values()))[0]
    with socket.create_connection(address) as sock:
        connection = messages.Connection(sock, KEY, "client", PURPOSE)
        connection.send(["wait for shutdown"])
        wait_for(1)
    wait_for(0)


def test_addresses_are_those_of_the_chosen_interfaces(service: ComputeService) -> None:
    everywhere = service.addresses()
    assert everywhere["lo"][0][0] == "127.0.0.1"
    port = everywhere["lo"][0][1]
    assert all(of_nic[0][1] == port for of_nic in everywhere.values())
    chosen = ComputeService(1, 1, KEY, nics=["lo"])
    try:
        assert list(chosen.addresses()) == ["lo"]
        assert ComputeClient(chosen.addresses(), KEY).local_address == "127.0.0.1"
    finally:
        chosen.shutdown()
    nowhere = ComputeService(1, 1, KEY, nics=["no-such-nic"])
    try:
        with pytest.raises(ValueError, match=r"no-such-nic.*lo"):
            nowhere.addresses()
    finally:
        nowhere.shutdown()


def test_client_prefers_an_address_that_others_can_reach(service: ComputeService) -> None:
    addresses = service.addresses()
    if len(addresses) < 2:
        pytest.skip("this machine has the loopback interface only")
    assert not ComputeClient(addresses, KEY).local_address.startswith("127.")


def test_addresses_that_do_not_answer_are_passed_over(service: ComputeService, capfd) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        dead = unused.getsockname()
    client = ComputeClient({"dead": [dead], **service.addresses()}, KEY, verbose=2)
    client.register_dispatcher(0, "grpc://here:1")
    client = ComputeClient({"dead": [dead], "lo": service.addresses()["lo"]}, KEY, verbose=2)
    assert f"compute service not at 127.0.0.1:{dead[1]}: " in capfd.readouterr().err


def test_registry_notices_that_a_client_has_gone() -> None:
    registry = Registry(1, 1)
    with pytest.raises(ConnectionError):
        registry.wait_for_dispatcher(0, 10, lambda: False)
    registry.wait_for_shutdown(lambda: False)
