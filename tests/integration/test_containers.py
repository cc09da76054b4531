"""The entry point of the images, in network namespaces in place of containers: nothing here has an engine."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from hosts_rig import LAUNCHER, Host, Rig, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
    pytest.mark.timeout(120),
]

ROOT = Path(__file__).resolve().parents[2]
JOB = str(Path(__file__).with_name("numpy_job.py"))
PORT = 12345
USER = 4242  # an id that the host has no name for
HOME = "/mnt/home"
CONFIG_ERROR = 78


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig(2) as rig:
        yield rig


@pytest.fixture
def keys() -> Iterator[Path]:
    """Three mounted folders: of workers, of the launcher, and an empty one; and a stranger's key.

    Beside them the files of the image, because the project may lie where only its owner gets to.
    """
    folder = Path(tempfile.mkdtemp(prefix="hvd-keys-"))
    folder.chmod(0o755)
    shutil.copytree(ROOT / "docker", folder / "image")
    for name in ("user", "host", "stranger"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    for name in ("worker", "launcher", "empty"):
        (folder / name).mkdir()
    shutil.copy(folder / "user.pub", folder / "worker" / "authorized_keys")
    shutil.copy(folder / "user", folder / "launcher" / "id_ed25519")
    (folder / "launcher" / "known_hosts").write_text(f"* {(folder / 'host.pub').read_text()}")
    for file in [*folder.glob("worker/*"), *folder.glob("launcher/*")]:
        os.chown(file, 0, USER)  # as Kubernetes gives a secret to the group of a pod
        file.chmod(0o440)
    yield folder
    shutil.rmtree(folder)


class Container:
    """The entry point on a host, with a home folder of its own, as root or as a user with a name."""

    def __init__(self, rig: Rig, host: Host, keys: Path, user: int = 0) -> None:
        self._rig, self._host, self._user = rig, host, user
        self._image = next(place / "image" for place in keys.parents if (place / "image").is_dir())
        self._passwd = keys.parent / f"passwd.{user}"  # as an image has it
        others = [
            line for line in Path("/etc/passwd").read_text().splitlines() if ":0:0:" not in line
        ]
        name = "worker" if user else "root"
        lines = [f"{name}:x:{user}:{user}::{HOME}:/bin/sh", *others]
        self._passwd.write_text("\n".join(lines) + "\n")
        self._environment = {
            **os.environ,
            "SSH_KEYS_DIR": str(keys),
            "SSHD_CONFIG": str(self._image / "sshd_config"),
        }

    def argv(self, command: Sequence[str]) -> list[str]:
        script = (
            f"mount --bind {self._passwd} /etc/passwd && mount -t tmpfs -o mode=755 none /mnt && "
            f"mkdir -m 700 {HOME} && chown {self._user}:{self._user} {HOME} && exec "
        )
        if self._user:
            # As the chart has it: without privileges, and without a way to get some.
            script += (
                f"setpriv --reuid {self._user} --regid {self._user} --clear-groups --no-new-privs "
                "--bounding-set=-all --inh-caps=-all "
            )
        script += '"$@"'
        return self._rig.argv(
            self._host, ["sh", "-euc", script, "sh", str(self._image / "entrypoint.sh"), *command]
        )

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(command), env=self._environment, stderr=subprocess.PIPE, text=True
        )

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(command),
            env={**self._environment, **variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def listens(rig: Rig, host: Host) -> bool:
    probe = f"import socket; socket.create_connection(('{host.address}', {PORT}), 1).close()"
    command = rig.argv(rig.hosts[0], [sys.executable, "-c", probe])
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture(params=[0, USER], ids=["root", "user"])
def worker(request: pytest.FixtureRequest, rig: Rig, keys: Path) -> Iterator[subprocess.Popen[str]]:
    """The ssh server of a worker container on the second host, ready for connections."""
    host = rig.hosts[1]
    process = Container(rig, host, keys / "worker", request.param).start()
    deadline = time.monotonic() + 20
    while not listens(rig, host):
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline, "the worker does not listen"
        time.sleep(0.05)
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def ssh(rig: Rig, who: str, key: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Connects from the first host to the worker on the second."""
    words = ["ssh", "-T", "-p", str(PORT), "-i", str(key), "-o", "BatchMode=yes"]
    words += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
    return subprocess.run(
        rig.argv(rig.hosts[0], [*words, f"{who}@node1", *command]),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def name_of(worker: subprocess.Popen[str]) -> str:
    """The user whom this server lets in."""
    return "root" if os.stat(f"/proc/{worker.pid}").st_uid == 0 else "worker"


def test_the_launchers_key_gets_in_and_commands_have_the_path_of_the_image(
    rig: Rig, keys: Path, worker: subprocess.Popen[str]
) -> None:
    done = ssh(rig, name_of(worker), keys / "user", "hostname; id -un; echo $PATH")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["node1", name_of(worker), os.environ["PATH"]]


def test_nobody_gets_in_with_another_key_or_a_password(
    rig: Rig, keys: Path, worker: subprocess.Popen[str]
) -> None:
    done = ssh(rig, name_of(worker), keys / "stranger", "true")
    assert done.returncode == 255
    assert "Permission denied (publickey)." in done.stderr  # that is all that is offered


def test_sigterm_ends_a_worker_at_once_and_cleanly(rig: Rig, worker: subprocess.Popen[str]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(5) == 0
    assert not listens(rig, rig.hosts[1])
    assert worker.stderr is not None
    assert re.search(r"ssh server of \w+ on port 12345, host key SHA256:", worker.stderr.read())


@pytest.mark.parametrize("user", [0, USER], ids=["root", "user"])
def test_a_worker_without_keys_says_what_to_mount(rig: Rig, keys: Path, user: int) -> None:
    done = Container(rig, rig.hosts[1], keys / "empty", user).run()
    assert done.returncode == CONFIG_ERROR
    assert len(done.stderr.splitlines()) == 1
    assert f"mount the public key of the launcher as {keys}/empty/authorized_keys" in done.stderr


def test_a_key_that_the_user_cannot_read_is_named(rig: Rig, keys: Path) -> None:
    (keys / "worker" / "authorized_keys").chmod(0o400)
    done = Container(rig, rig.hosts[1], keys / "worker", USER).run()
    assert done.returncode == CONFIG_ERROR
    assert f"authorized_keys is there, but user id {USER} can't read it" in done.stderr


def test_a_user_without_a_name_is_refused_with_what_to_do(rig: Rig, keys: Path) -> None:
    entry_point = str(keys / "image" / "entrypoint.sh")
    command = ["setpriv", "--reuid", str(USER), "--regid", str(USER), "--clear-groups", entry_point]
    done = subprocess.run(
        rig.argv(rig.hosts[1], command), capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == CONFIG_ERROR
    assert f"user id {USER} has none in this image" in done.stderr


@pytest.mark.parametrize("user", [0, USER], ids=["root", "user"])
def test_the_keys_of_a_launcher_are_private_copies_and_its_command_is_unchanged(
    rig: Rig, keys: Path, user: int
) -> None:
    script = 'cd && stat -c "%a %n" .ssh .ssh/*; umask; echo "$1"; exit 7'
    done = Container(rig, rig.hosts[0], keys / "launcher", user).run(
        "sh", "-c", script, "sh", "two  words", HOME=HOME
    )
    assert done.stdout.splitlines()[:-2] == [
        "700 .ssh",
        "600 .ssh/id_ed25519",
        "600 .ssh/known_hosts",
    ]
    usual = os.umask(0o22)
    os.umask(usual)
    assert done.stdout.splitlines()[-2:] == [f"{usual:04o}", "two  words"]
    assert done.returncode == 7


def test_a_command_runs_without_keys(rig: Rig, keys: Path) -> None:
    done = Container(rig, rig.hosts[0], keys / "empty").run("echo", "no keys here")
    assert (done.returncode, done.stdout) == (0, "no keys here\n")


@pytest.mark.parametrize("worker", [0], ids=["root"], indirect=True)
def test_a_launcher_container_runs_a_job_on_a_worker_container(
    rig: Rig, keys: Path, worker: subprocess.Popen[str]
) -> None:
    done = Container(rig, rig.hosts[0], keys / "launcher").run(
        *(*LAUNCHER, "-np", "2", "-H", "node0:1,node1:1", "-p", str(PORT)),
        *("--ssh-accept-new-host-keys", sys.executable, JOB),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"size": 2') == 4  # two ranks, two rounds


def test_a_mounted_host_key_is_what_the_launchers_list_of_known_hosts_expects(
    rig: Rig, keys: Path
) -> None:
    host = rig.hosts[1]
    strict = ["ssh", "-T", "-p", str(PORT), "-i", str(keys / "user"), "-o", "BatchMode=yes"]
    strict += ["-o", "StrictHostKeyChecking=yes"]
    strict += ["-o", f"UserKnownHostsFile={keys}/launcher/known_hosts", "root@node1", "true"]
    codes = []
    for has_host_key in (True, False):
        target = keys / "worker" / "ssh_host_ed25519_key"
        if has_host_key:
            shutil.copy(keys / "host", target)
        else:
            target.unlink()
        process = Container(rig, host, keys / "worker").start()
        try:
            while not listens(rig, host):
                assert process.poll() is None
                time.sleep(0.05)
            done = subprocess.run(
                rig.argv(rig.hosts[0], strict), capture_output=True, text=True, check=False
            )
            codes.append((done.returncode, "Host key verification failed" in done.stderr))
        finally:
            process.terminate()
            process.communicate(timeout=5)
    assert codes == [(0, False), (255, True)]


def test_the_keys_that_the_compose_file_makes_fit_together(rig: Rig, keys: Path) -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())
    script = compose["services"]["keys"]["command"][0]
    for place in ("worker", "launcher", "tmp"):
        (keys / "compose" / place).mkdir(parents=True)
    script = re.sub(r"(?<=[ >])/(worker|launcher|tmp)\b", rf"{keys}/compose/\1", script)
    for _ in range(2):  # a second `up` changes nothing
        subprocess.run(["/bin/sh", "-euc", script], check=True)
    assert {
        file.name: (file.stat().st_uid, oct(file.stat().st_mode & 0o777))
        for file in keys.glob("compose/[wl]*/*")
    } == dict.fromkeys(
        ("authorized_keys", "ssh_host_ed25519_key", "id_ed25519", "known_hosts"), (1000, "0o600")
    )
    process = Container(rig, rig.hosts[1], keys / "compose" / "worker").start()
    try:
        while not listens(rig, rig.hosts[1]):
            assert process.poll() is None
            time.sleep(0.05)
        known = keys / "compose" / "launcher" / "known_hosts"
        done = Container(rig, rig.hosts[0], keys / "compose" / "launcher").run(
            *(
                "ssh",
                "-T",
                "-p",
                str(PORT),
                "-o",
                "BatchMode=yes",
                "-o",
                "StrictHostKeyChecking=yes",
            ),
            *("-o", f"UserKnownHostsFile={known}", "node1", "echo", "in"),
        )
        assert (done.returncode, done.stdout) == (0, "in\n"), done.stderr
    finally:
        process.terminate()
        process.communicate(timeout=5)


@pytest.mark.parametrize("file", ["docker/compose.yaml", "deploy/kubeflow/mpijob.yaml"])
@pytest.mark.parametrize("form", ["{} slots=2", "{}:2"], ids=["OpenMPI", "Intel or MPICH"])
def test_the_launcher_understands_the_command_lines(tmp_path: Path, file: str, form: str) -> None:
    document = next(yaml.safe_load_all((ROOT / file).read_text()))
    if "services" in document:
        command = document["services"]["launcher"]["command"]
    else:
        launcher = document["spec"]["mpiReplicaSpecs"]["Launcher"]
        command = launcher["template"]["spec"]["containers"][0]["args"]
    # As the operator writes it.
    names = [f"horovod-mnist-worker-{i}.horovod-mnist.research.svc" for i in range(2)]
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(form.format(name) + "\n" for name in names))
    words = [str(hostfile) if word == "/etc/mpi/hostfile" else word for word in command[1:]]
    done = subprocess.run(
        [*LAUNCHER, "--dry-run", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "-p 12345" in done.stdout  # of ssh


def kubexec_script() -> str:
    """The one in the ConfigMap for Kubeflow's operator of generation 1."""
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubeflow" / "mpijob-v1.yaml").read_text())
    script = next(documents)["data"]["kubexec.sh"]
    assert isinstance(script, str)
    return script


def test_our_kubexec_script_carries_a_job(rig: Rig, tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(
        "#!/bin/sh\n# As kubectl: only with --stdin does the command get a standard input.\n"
        '[ "$1 $2 $3 $4" = "exec --stdin node1 --" ] || { echo "unexpected: $*" >&2; exit 64; }\n'
        f'shift 4\nexec {shlex.join(rig.argv(rig.hosts[1], []))} "$@"\n'
    )
    kubexec = tmp_path / "kubexec.sh"
    kubexec.write_text(kubexec_script())
    for script in (kubectl, kubexec):
        script.chmod(0o755)
    done = subprocess.run(
        rig.argv(
            rig.hosts[0],
            [*LAUNCHER, "-np", "2", "-H", "node0:1,node1:1", sys.executable, JOB],
        ),
        env={**os.environ, "OMPI_MCA_plm_rsh_agent": str(kubexec), "KUBECTL": str(kubectl)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"size": 2') == 4
