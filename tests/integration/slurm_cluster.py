"""A SLURM on this machine, for as long as a test module runs; needs root and no systemd."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
# The daemons lie there in Debian, and a user's PATH need not have it.
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
START_SECONDS = 40.0
STOP_SECONDS = 10.0


def why_not() -> str | None:
    """None when SLURM can be started here, otherwise the reason."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=SEARCH) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)"
    if os.geteuid() != 0:
        return f"slurmd starts tasks as their user and must be root, not {getpass.getuser()}"
    with contextlib.suppress(KeyError):
        pwd.getpwnam("munge")
        return None
    return "there is no user munge"


Wrap = Callable[[str, Sequence[str]], list[str]]


def here(node: str, command: Sequence[str]) -> list[str]:
    """What runs a command on the node that is this machine."""
    del node
    return list(command)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [sock.getsockname()[1] for sock in sockets]


def _configuration(folder: Path, munge_socket: Path, nodes: Sequence[str]) -> str:
    controller, node = _free_ports(2)
    return f"""\
ClusterName=test
SlurmctldHost={nodes[0]}
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={munge_socket}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
NodeName={",".join(nodes)} CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def _daemon(
    command: list[str], log: Path, env: dict[str, str], **options: object
) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=env, stdout=output, stderr=output, start_new_session=True, **options
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(command: list[str], wanted: str, env: dict[str, str], logs: list[Path]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        if wanted in done.stdout:
            return
        if time.monotonic() > deadline:
            words = [f"--- {log}\n{log.read_text(errors='replace')[-2000:]}" for log in logs]
            raise TimeoutError("\n".join([done.stdout + done.stderr, *words]))
        time.sleep(0.1)


@contextlib.contextmanager
def running(
    folder: Path, nodes: Sequence[str] = ("localhost",), wrap: Wrap = here
) -> Iterator[dict[str, str]]:
    """Starts SLURM with everything it writes in `folder`; gives the environment for srun and sbatch.

    Args:
        folder: an empty one.
        nodes: names of the nodes; the controller runs on the first.
        wrap: what runs a command on a node.
    """
    (folder / "state").mkdir()
    # Not below `folder`, which pytest closes to other users: the user munge has to get there.
    munge = Path(tempfile.mkdtemp(prefix="hvd-munge-", dir="/run"))
    munge.chmod(0o755)
    key = munge / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    user = pwd.getpwnam("munge")
    for path in (munge, key):
        os.chown(path, user.pw_uid, user.pw_gid)
    munge_socket = munge / "socket"
    configuration = folder / "slurm.conf"
    configuration.write_text(_configuration(folder, munge_socket, nodes))
    env = {**os.environ, "SLURM_CONF": str(configuration), "PATH": SEARCH}
    for name in [name for name in env if name.startswith("SLURM_") and name != "SLURM_CONF"]:
        del env[name]

    def program(name: str) -> str:
        return str(shutil.which(name, path=SEARCH))

    logs = [folder / f"{name}.log" for name in ("munged", "slurmctld", *nodes)]
    munged = [
        *(program("munged"), "--foreground", f"--socket={munge_socket}", f"--key-file={key}"),
        *(f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
    ]
    with contextlib.ExitStack() as daemons:
        daemons.callback(shutil.rmtree, munge, ignore_errors=True)
        start = daemons.enter_context
        start(_daemon(munged, logs[0], env, user="munge", group="munge", extra_groups=[]))
        deadline = time.monotonic() + START_SECONDS
        while not munge_socket.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        start(_daemon(wrap(nodes[0], [program("slurmctld"), "-D"]), logs[1], env))
        for node, log in zip(nodes, logs[2:], strict=True):
            start(_daemon(wrap(node, [program("slurmd"), "-D", "-N", node]), log, env))
        listing = wrap(nodes[0], [program("sinfo"), "--noheader", "--format=%T %D"])
        _wait_for(listing, f"idle {len(nodes)}", env, logs)
        yield env
