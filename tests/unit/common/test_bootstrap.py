"""How a process learns who it is."""

from __future__ import annotations

import threading

import pytest

from horovod.common import bootstrap
from horovod.common.bootstrap import launcher, single, torchrun
from horovod.common.network import is_loopback, route_address

LAUNCHER_ENV = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
    "HOROVOD_HOSTNAME": "b",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "1234",
    "_HOROVOD_SECRET_KEY": "AAAA",
}
TORCH_ENV = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "HOROVOD_HOSTNAME": "b",
}


def test_the_launcher_comes_first() -> None:
    choice = bootstrap.choose(TORCH_ENV | LAUNCHER_ENV)
    assert choice.kind is launcher
    assert choice.reason == "started by horovodrun"


def test_torchrun_is_recognised() -> None:
    choice = bootstrap.choose(TORCH_ENV)
    assert choice.kind is torchrun
    assert "not by horovodrun: HOROVOD_RANK" in choice.reason


def test_a_process_without_any_variables_is_alone() -> None:
    assert bootstrap.choose({}).kind is single
    assert single.identity({})[:6] == (0, 1, 0, 1, 0, 1)


@pytest.mark.parametrize(
    "env",
    [
        {"HOROVOD_SIZE": "2", "HOROVOD_RANK": "0"},
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"PMI_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "2"},
    ],
)
def test_a_job_of_several_processes_never_runs_as_many_jobs_of_one(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot tell how this process was started"):
        bootstrap.choose(env)


def test_identities_are_read() -> None:
    assert launcher.identity(LAUNCHER_ENV) == (3, 4, 1, 2, 1, 2, "b")
    assert torchrun.identity(TORCH_ENV) == (3, 4, 1, 2, 1, 2, "b")


def test_torch_variables_without_local_ones_mean_one_process_per_host() -> None:
    env = {k: v for k, v in TORCH_ENV.items() if not k.startswith("LOCAL")}
    assert torchrun.identity(env) == (3, 4, 0, 1, 3, 4, "b")


@pytest.mark.parametrize("change", [{"HOROVOD_RANK": "4"}, {"HOROVOD_LOCAL_SIZE": "x"}])
def test_contradicting_numbers_are_an_error(change: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        launcher.identity(LAUNCHER_ENV | change)


def test_the_route_to_loopback_is_loopback() -> None:
    assert is_loopback(route_address("127.0.0.1", 1))


class FakeTcpStore:
    """torch's TCPStore as far as the exchange uses it."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()

    def set(self, name: str, value: str) -> None:
        with self.changed:
            self.values[name] = value
            self.changed.notify_all()

    def get(self, name: str) -> bytes:
        return self.values[name].encode()

    def check(self, names: list[str]) -> bool:
        return all(name in self.values for name in names)

    def wait(self, names: list[str], timeout) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(names), timeout.total_seconds()):
                raise RuntimeError("wait timeout")

    def delete_key(self, name: str) -> bool:
        return self.values.pop(name, None) is not None


def _torch_env(rank: int, size: int) -> dict[str, str]:
    local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
    return TORCH_ENV | local | {"RANK": str(rank), "WORLD_SIZE": str(size)}


def test_torchrun_exchanges_through_the_store_round_after_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = FakeTcpStore()
    monkeypatch.setattr(torchrun, "_store", store)
    answers: dict[int, list[list[bytes]]] = {rank: [] for rank in range(3)}
    keys: set[bytes] = set()

    def run(rank: int) -> None:
        for round_number in range(3):
            session = torchrun.open_session(_torch_env(rank, 3), round_number, 20)
            keys.add(session.key)
            blob = bytes([rank, round_number, 255])
            answers[rank].append(session.exchange(blob, 20, lambda missing: None))
            session.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [[bytes([rank, r, 255]) for rank in range(3)] for r in range(3)]
    assert all(answer == expected for answer in answers.values())
    assert len(keys) == 3
    assert all("/2/" in name for name in store.values), "earlier rounds are forgotten"


def test_torchrun_names_the_ranks_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun, "_store", FakeTcpStore())
    session = torchrun.open_session(_torch_env(0, 3), 0, 20)
    with pytest.raises(TimeoutError, match=r"rank\(s\) \[1, 2\] did not come"):
        session.exchange(b"", 0.05, lambda missing: None)
