"""Jobs that mpirun or srun starts: recognising them, their variables, keys, and rank 0's gathering."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from horovod.common import bootstrap, slurm_notation
from horovod.common.bootstrap import (
    gather_server,
    launcher,
    libmpi,
    mpi,
    single,
    slurm,
    torchrun,
    user_secret,
)
from horovod.common.bootstrap.gather_server import GatherServer
from horovod.common.rendezvous import RendezvousClient, RendezvousError

KEY = bytes(range(32))
LAUNCHER_ENV = {
    "HOROVOD_RANK": "0",
    "HOROVOD_SIZE": "2",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
    "HOROVOD_GLOO_RENDEZVOUS_PORT": "1234",
    "_HOROVOD_SECRET_KEY": "AAAA",
}
TORCH_ENV = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
OPEN_MPI_ENV = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "1",
    "HOROVOD_HOSTNAME": "a",
}
HYDRA_ENV = {
    "PMI_RANK": "1",
    "PMI_SIZE": "2",
    "MPI_LOCALRANKID": "1",
    "MPI_LOCALNRANKS": "2",
    "HOROVOD_HOSTNAME": "a",
}
SLURM_ENV = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2",
    "SLURM_STEP_NODELIST": "localhost",
    "HOROVOD_HOSTNAME": "a",
}


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


# --- which kind it is --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        pytest.param(OPEN_MPI_ENV, mpi, id="Open MPI"),
        pytest.param(HYDRA_ENV, mpi, id="MPICH and Intel MPI"),
        pytest.param(SLURM_ENV, slurm, id="srun"),
        pytest.param(SLURM_ENV | LAUNCHER_ENV, launcher, id="horovodrun in a SLURM job"),
        pytest.param(SLURM_ENV | OPEN_MPI_ENV, mpi, id="Open MPI whose agents srun started"),
        pytest.param(SLURM_ENV | HYDRA_ENV, mpi, id="Hydra whose agents srun started"),
        pytest.param(
            SLURM_ENV | {"PMI_RANK": "1", "PMI_SIZE": "2"}, slurm, id="srun --mpi=pmi2, without MPI"
        ),
        pytest.param(SLURM_ENV | {"PMIX_RANK": "1"}, slurm, id="srun --mpi=pmix"),
        pytest.param(SLURM_ENV | TORCH_ENV, torchrun, id="torchrun in a task per node"),
        pytest.param(
            SLURM_ENV | TORCH_ENV | {"SLURM_STEP_NUM_TASKS": "1"},
            torchrun,
            id="torchrun in one task",
        ),
        pytest.param(
            OPEN_MPI_ENV | TORCH_ENV | {"TORCHELASTIC_RUN_ID": "x"},
            torchrun,
            id="torchrun in mpirun",
        ),
        pytest.param(
            OPEN_MPI_ENV | TORCH_ENV | {"RANK": "0"},
            mpi,
            id="mpirun in a pod that has torch's variables",
        ),
        pytest.param(SLURM_ENV | {"SLURM_STEP_NUM_TASKS": "1"}, single, id="srun of one task"),
        pytest.param(
            without(
                SLURM_ENV, "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"
            ),
            single,
            id="a batch script without srun",
        ),
        pytest.param(
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, single, id="-np 1"
        ),
    ],
)
def test_the_innermost_launcher_is_recognised(env: dict[str, str], kind: object) -> None:
    assert bootstrap.choose(env).kind is kind


def test_the_decision_names_what_spoke_against_the_others() -> None:
    reason = bootstrap.choose(SLURM_ENV | {"PMI_RANK": "1", "PMI_SIZE": "2"}).reason
    assert reason.startswith("started by srun")
    assert "not by mpirun: PMI_RANK was set by srun" in reason
    assert "PMIX_RANK=1 alone does not tell" in bootstrap.choose({"PMIX_RANK": "1"}).reason


@pytest.mark.parametrize("name", ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_JOB_ID"])
def test_a_task_without_all_its_variables_does_not_run_alone(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{name} not set.*SLURM_STEP_NUM_TASKS=2 \(set by srun\)"
    ):
        bootstrap.choose(without(SLURM_ENV, name))


# --- mpirun ------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [OPEN_MPI_ENV, HYDRA_ENV])
def test_on_one_host_the_variables_of_mpirun_suffice(env: dict[str, str]) -> None:
    assert mpi.identity(env) == (1, 2, 1, 2, 0, 1, "a")


def test_contradicting_variables_of_mpirun_are_an_error() -> None:
    with pytest.raises(ValueError, match="rank 2 does not fit size 2"):
        mpi.identity(OPEN_MPI_ENV | {"OMPI_COMM_WORLD_RANK": "2"})


def test_ranks_are_placed_by_the_hosts_of_all() -> None:
    hosts = ["a", "a", "b", "a"]
    assert [mpi.place(rank, hosts, "x")[:6] for rank in range(4)] == [
        (0, 4, 0, 3, 0, 2),
        (1, 4, 1, 3, 0, 1),
        (2, 4, 0, 1, 1, 2),
        (3, 4, 2, 3, 0, 1),
    ]
    assert mpi.place(0, hosts, "x", local_rank=2)[:6] == (0, 4, 2, 3, 0, 1)


def test_a_local_rank_that_a_host_does_not_have_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"local rank 1, but only 1 rank\(s\) run on host x"):
        mpi.place(2, ["a", "a", "b"], "x", local_rank=1)


def test_the_folders_of_the_library_come_from_the_environment(tmp_path: Path) -> None:
    program = tmp_path / "there" / "bin" / "mpirun"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    env = {
        "LD_LIBRARY_PATH": "/first::/second",
        "I_MPI_ROOT": "/intel",
        "OPAL_PREFIX": "/open",
        "MPI_ROOT": "/open",
        "PATH": str(program.parent),
    }
    folders = libmpi.folders(env)
    assert folders[:3] == ["/first", "/second", "/intel/lib"]
    assert folders.index("/intel/lib/release") < folders.index("/open/lib")
    assert f"{tmp_path}/there/lib" in folders and len(set(folders)) == len(folders)


def test_a_missing_library_is_an_error_with_the_places_and_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(libmpi, "FILE_NAMES", ("libno-such-mpi.so",))
    monkeypatch.setattr(libmpi, "_loaded_files", list)
    with pytest.raises(ImportError) as raised:
        libmpi.load({"LD_LIBRARY_PATH": "/nowhere"}, open_mpi=True)
    text = str(raised.value)
    assert "libno-such-mpi.so" in text and "/nowhere" in text
    assert "LD_LIBRARY_PATH" in text and "horovodrun" in text


def test_a_file_that_is_no_library_of_this_family_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libbroken.so").write_text("not a library")
    monkeypatch.setattr(libmpi, "FILE_NAMES", ("libbroken.so",))
    monkeypatch.setattr(libmpi, "_loaded_files", lambda: ["libc.so.6"])
    with pytest.raises(ImportError) as raised:
        libmpi.load({"LD_LIBRARY_PATH": str(tmp_path)}, open_mpi=True)
    assert f"{tmp_path}/libbroken.so (" in str(raised.value)
    assert "libc.so.6 (not Open MPI, unlike the mpirun" in str(raised.value)


# --- SLURM's notations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "counts"),
    [("2", [2]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2)", [1, 2, 2]), ("16(x1)", [16])],
)
def test_tasks_per_node(text: str, counts: list[int]) -> None:
    assert slurm_notation.tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "2(x", "2x3", "a", "1,,2", "-1"])
def test_tasks_per_node_in_another_notation_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="tasks per node"):
        slurm_notation.tasks_per_node(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        ("a,b-1.x", ["a", "b-1.x"]),
        ("gpu[01-04,07],login", ["gpu01", "gpu02", "gpu03", "gpu04", "gpu07", "login"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    assert list(slurm_notation.nodes(text)) == names


@pytest.mark.parametrize(
    "text", ["", ",a", "a,", "a[1", "a]1", "a[x]", "a[1-]", "a[[1]]", "a,,b", "a[]"]
)
def test_node_lists_in_another_notation_are_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="node list"):
        list(slurm_notation.nodes(text))


def test_the_first_node_of_a_huge_list_is_found_at_once() -> None:
    assert next(slurm_notation.nodes("n[1-1000000000]")) == "n1"


# --- srun --------------------------------------------------------------------------------------


def task(rank: int, local_rank: int, node: int, counts: str, size: int) -> dict[str, str]:
    return SLURM_ENV | {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": counts,
    }


def test_identities_of_a_block_distribution() -> None:
    places = [(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 0, 2), (4, 1, 2)]
    identities = [slurm.identity(task(*place, "2,1,2", 5))[:6] for place in places]
    assert identities == [
        (0, 5, 0, 2, 0, 3),
        (1, 5, 1, 2, 0, 2),
        (2, 5, 0, 1, 1, 3),
        (3, 5, 0, 2, 2, 3),
        (4, 5, 1, 2, 1, 2),
    ]


def test_identities_of_a_cyclic_distribution() -> None:
    assert slurm.identity(task(2, 1, 0, "2(x2)", 4)) == (2, 4, 1, 2, 0, 2, "a")
    assert slurm.identity(task(3, 1, 1, "2(x2)", 4)) == (3, 4, 1, 2, 1, 2, "a")


def test_the_name_of_the_host_is_that_of_the_node() -> None:
    env = without(SLURM_ENV, "HOROVOD_HOSTNAME") | {"SLURMD_NODENAME": "gpu01"}
    assert slurm.identity(env).host == "gpu01"


@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_STEP_TASKS_PER_NODE": "3"},
        {"SLURM_NODEID": "1"},
        {"SLURM_LOCALID": "2"},
        {"SLURM_PROCID": "2"},
        {"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_TASKS_PER_NODE": ""},
    ],
)
def test_contradicting_variables_of_srun_are_an_error(change: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        slurm.identity(SLURM_ENV | change)


def test_ports_belong_to_the_run_of_a_step() -> None:
    ports = slurm.ports(SLURM_ENV)
    assert len(ports) == slurm.PORT_CANDIDATES
    assert all(20000 <= port < 32000 for port in ports)
    assert slurm.ports(SLURM_ENV | {"SLURM_PROCID": "0"}) == ports
    assert slurm.ports(SLURM_ENV | {"SLURM_STEP_ID": "1"}) != ports
    assert slurm.ports(SLURM_ENV | {"SLURM_RESTART_COUNT": "1"}) != ports


# --- keys --------------------------------------------------------------------------------------


def test_the_key_differs_from_step_to_step_and_user_to_user(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine" / "secret", tmp_path / "other" / "secret"
    key = slurm.job_key(SLURM_ENV, mine)
    assert len(key) == 32
    assert slurm.job_key(SLURM_ENV | {"SLURM_PROCID": "0"}, mine) == key
    assert slurm.job_key(SLURM_ENV | {"SLURM_STEP_ID": "1"}, mine) != key
    assert slurm.job_key(SLURM_ENV, other) != key


def test_a_key_in_the_environment_needs_no_file(tmp_path: Path) -> None:
    env = SLURM_ENV | {"_HOROVOD_SECRET_KEY": base64.b64encode(KEY).decode()}
    assert slurm.job_key(env, tmp_path / "none" / "secret") == KEY
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="_HOROVOD_SECRET_KEY is not valid base64"):
        slurm.job_key(SLURM_ENV | {"_HOROVOD_SECRET_KEY": "%"}, tmp_path / "secret")


def test_the_secret_is_private_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "home" / ".horovod" / "secret"
    secret = user_secret.read_or_make(path)
    assert len(secret) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert user_secret.read_or_make(path) == secret
    assert [entry.name for entry in path.parent.iterdir()] == ["secret"]


def test_processes_that_come_together_agree_on_one_secret(tmp_path: Path) -> None:
    path = tmp_path / ".horovod" / "secret"
    found: list[bytes] = []
    barrier = threading.Barrier(8)

    def come() -> None:
        barrier.wait()
        found.append(user_secret.read_or_make(path))

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / ".horovod" / "secret"
    user_secret.read_or_make(path)
    path.chmod(mode)
    with pytest.raises(PermissionError, match=f"other users .*chmod 0600 {path}"):
        user_secret.read_or_make(path)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ".horovod" / "secret"
    user_secret.read_or_make(path)
    path.parent.chmod(0o770)
    with pytest.raises(PermissionError, match="can be written to by other users"):
        user_secret.read_or_make(path)


def test_the_secret_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".horovod" / "secret"
    user_secret.read_or_make(path)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(PermissionError, match="belongs to user"):
        user_secret.read_or_make(path)


def test_a_secret_of_another_length_or_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / ".horovod" / "secret"
    user_secret.read_or_make(path)
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="must hold 32 bytes, not 5"):
        user_secret.read_or_make(path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        user_secret.read_or_make(path)


# --- rank 0's gathering ------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[GatherServer]:
    """Of a job of three ranks."""
    serving = GatherServer(socket.create_server(("127.0.0.1", 0)), KEY, 3)
    yield serving
    serving.close()


def client(server: GatherServer, key: bytes = KEY) -> RendezvousClient:
    return RendezvousClient("127.0.0.1", server.port, key, 10)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def settles(condition, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_all_ranks_get_all_blobs_round_after_round(server: GatherServer) -> None:
    before = descriptors()
    answers: dict[int, list[list[bytes]]] = {rank: [] for rank in range(3)}

    def come(rank: int) -> None:
        for number in range(5):
            scope, blob = f"init/{number}", bytes([rank, number])
            if rank == 0:
                answers[rank].append(server.exchange(scope, blob, 20, lambda missing: None))
            else:
                with client(server) as connected:
                    answers[rank].append(connected.exchange(scope, rank, 3, blob, 20))

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [[bytes([rank, number]) for rank in range(3)] for number in range(5)]
    assert all(answer == expected for answer in answers.values())
    assert settles(lambda: descriptors() == before), "nothing stays open"


def test_missing_ranks_are_named_to_everybody(
    server: GatherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gather_server, "REPORT_SECONDS", 0.05)
    reports: list[list[int]] = []
    with pytest.raises(TimeoutError, match=r"rank\(s\) \[1, 2\], which did not come"):
        server.exchange("s", b"", 0.3, reports.append)
    assert [1, 2] in reports
    with client(server) as connected, pytest.raises(TimeoutError, match=r"\[0, 2\]"):
        connected.exchange("s", 1, 3, b"", 0.5)


def test_a_rank_that_gave_up_may_come_again(server: GatherServer) -> None:
    with client(server) as connected, pytest.raises(TimeoutError):
        connected.exchange("s", 1, 3, b"first", 0.3)
    assert settles(lambda: not server._rounds)
    results: list[list[bytes]] = []

    def come(rank: int) -> None:
        with client(server) as connected:
            results.append(connected.exchange("s", rank, 3, b"again", 20))

    threads = [threading.Thread(target=come, args=(rank,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    assert server.exchange("s", b"zero", 20, lambda missing: None) == [b"zero", b"again", b"again"]
    for thread in threads:
        thread.join()
    assert len(results) == 2


@pytest.mark.parametrize(("rank", "size"), [(0, 3), (3, 3), (-1, 3), (1, 2)])
def test_claims_that_make_no_sense_are_refused(server: GatherServer, rank: int, size: int) -> None:
    with client(server) as connected, pytest.raises(RendezvousError, match="a job of 3 ranks"):
        connected.exchange("s", rank, size, b"", 10)


def test_requests_of_the_launchers_store_are_refused(server: GatherServer) -> None:
    with client(server) as connected, pytest.raises(RendezvousError, match="does not know"):
        connected.set("s", "k", b"v")


def test_strangers_are_turned_away_with_one_line(
    server: GatherServer, monkeypatch: pytest.MonkeyPatch, stranger: Callable[..., bytes]
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(
        gather_server.logger, "warning", lambda text, *values: lines.append(text % values)
    )
    for _ in range(3):
        with pytest.raises(ConnectionError):
            client(server, key=bytes(32))
        stranger(("127.0.0.1", server.port), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + bytes(64))
    assert settles(lambda: bool(lines))
    assert len(lines) == 1
    assert "from 127.0.0.1 to rank 0: it does not hold the key of this job" in lines[0]
    assert server.met_strangers


def test_two_processes_of_one_rank_are_refused(server: GatherServer) -> None:
    with client(server) as first, client(server) as second:

        def wait() -> None:
            with contextlib.suppress(TimeoutError):
                first.exchange("s", 1, 3, b"", 1)

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert settles(lambda: any(1 in current.blobs for current in server._rounds.values()))
        with pytest.raises(RendezvousError, match="two processes came to 's' as rank 1"):
            second.exchange("s", 1, 3, b"", 10)
        waiting.join()


def test_rank_0_and_the_others_meet_over_the_first_free_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = {rank: task(rank, rank, 0, "3", 3) for rank in range(3)}
    key = {"_HOROVOD_SECRET_KEY": base64.b64encode(KEY).decode()}
    step = {"SLURM_JOB_ID": str(os.getpid())}
    monkeypatch.setattr(slurm, "_server", None)
    answers: dict[int, list[bytes]] = {}

    def come(rank: int) -> None:
        session = slurm.open_session(env[rank] | key | step, 0, 20)
        assert session.key == KEY and session.local_address == "127.0.0.1"
        answers[rank] = session.exchange(bytes([rank]), 20, lambda missing: None)
        session.close()

    # Somebody else has the first port, and does not hold the key.
    first = slurm.ports(SLURM_ENV | step)[0]
    with socket.create_server(("127.0.0.1", first)) as taken:
        foreign = GatherServer(taken, bytes(32), 3)
        threads = [threading.Thread(target=come, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        foreign.close()
    assert slurm._server is not None
    assert slurm._server.port != first
    slurm._server.close()
    assert answers == {rank: [b"\0", b"\1", b"\2"] for rank in range(3)}


def test_a_rank_0_that_is_not_there_is_an_error_with_the_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ConnectionError, match=rf"port {port}: .*has not called hvd.init\(\)"):
        slurm._connect("127.0.0.1", [port], KEY, 0.3)


def test_another_key_on_all_ports_is_an_error_with_a_way_out(server: GatherServer) -> None:
    with pytest.raises(ConnectionError, match=r"export _HOROVOD_SECRET_KEY=.* before srun"):
        slurm._connect("127.0.0.1", [server.port], bytes(32), 0.3)
