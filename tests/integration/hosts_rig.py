"""Several hosts on this machine: network namespaces on one switch, each with a name and an sshd.

All see the same file system but for what a test hides. Needs root, iproute2 and OpenSSH's server.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]
PORT = 2222
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
LAUNCHER = [sys.executable, "-m", "horovod.runner"]
_rigs = itertools.count()
# Clusters with one name for the interfaces of all hosts are the lucky ones.
INTERFACES = ("eth0", "enp3s0", "lan", "ib0")


def why_not() -> str | None:
    """The reason why there can be no such hosts here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or SSHD is None:
        return "iproute2 or openssh-server is not installed (requirements/debian.txt)"
    made = subprocess.run(["ip", "netns", "add", "hvd-probe"], capture_output=True, check=False)
    if made.returncode:
        return f"network namespaces can't be made here: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "delete", "hvd-probe"], check=True)
    return None


@dataclass
class Host:
    """One of them."""

    name: str
    namespace: str
    interface: str
    address: str
    hidden: list[str] = field(default_factory=list)  # folders that are empty there
    sshd: subprocess.Popen[bytes] | None = None


class Rig:
    """`with Rig(3) as rig:`; the first host is where the launcher runs."""

    def __init__(self, count: int, unresolved: Sequence[str] = ()) -> None:
        self._number = f"{os.getpid() % 100_000}x{next(_rigs)}"
        self._id = f"hvd{self._number}"
        self._switch = f"{self._id}-sw"
        self._folder = Path(tempfile.mkdtemp(prefix="hvd-hosts-"))
        self.identity = self._folder / "key"
        self._unresolved = set(unresolved)
        network = "10.77.5"  # every rig has a switch of its own
        self.hosts = [
            Host(
                f"node{i}", f"{self._id}-{i}", INTERFACES[i % len(INTERFACES)], f"{network}.{i + 1}"
            )
            for i in range(count)
        ]

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _make(self) -> None:
        Path("/run/sshd").mkdir(exist_ok=True)
        for name in ("key", "host_key"):
            _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / name))
        shutil.copy(f"{self.identity}.pub", self._folder / "authorized")
        _do("ip", "netns", "add", self._switch)
        _in(self._switch, "ip", "link", "add", "bridge", "type", "bridge")
        _in(self._switch, "ip", "link", "set", "bridge", "up")
        for index, host in enumerate(self.hosts):
            self._add(index, host)
        for host in self.hosts[1:]:
            self.start_sshd(host)

    def _add(self, index: int, host: Host) -> None:
        _do("ip", "netns", "add", host.namespace)
        near, far = f"h{self._number}n{index}", self._port_of(index)
        _do("ip", "link", "add", near, "type", "veth", "peer", "name", far)
        _do("ip", "link", "set", near, "netns", host.namespace)
        _do("ip", "link", "set", far, "netns", self._switch)
        _in(self._switch, "ip", "link", "set", far, "master", "bridge", "up")
        _in(host.namespace, "ip", "link", "set", near, "name", host.interface)
        _in(host.namespace, "ip", "address", "add", f"{host.address}/24", "dev", host.interface)
        _in(host.namespace, "ip", "link", "set", host.interface, "up")
        _in(host.namespace, "ip", "link", "set", "lo", "up")
        # `ip netns exec` puts these over the files of the same names in /etc.
        files = Path("/etc/netns") / host.namespace
        (files / "ssh").mkdir(parents=True)
        (files / "ssh" / "ssh_config").write_text(
            f"UserKnownHostsFile {self._folder}/known_hosts.{host.name}\n"
            "GlobalKnownHostsFile /dev/null\nIdentitiesOnly yes\nLogLevel ERROR\n"
        )
        self._write_names(host)

    def _write_names(self, host: Host) -> None:
        lines = ["127.0.0.1 localhost", "::1 localhost"]
        lines += [f"{h.address} {h.name}" for h in self.hosts if h.name not in self._unresolved]
        (Path("/etc/netns") / host.namespace / "hosts").write_text("\n".join(lines) + "\n")

    def resolve(self, name: str) -> None:
        """From now on this name is known everywhere."""
        self._unresolved.discard(name)
        for host in self.hosts:
            self._write_names(host)

    def _port_of(self, index: int) -> str:
        return f"h{self._number}s{index}"

    # --- processes ---------------------------------------------------------------------------------

    def argv(self, host: Host, command: Sequence[str]) -> list[str]:
        """What runs a command on a host."""
        hide = "".join(f"mount -t tmpfs none '{place}' && " for place in host.hidden)
        script = f'hostname {host.name} && {hide}exec "$@"'
        return [
            *("ip", "netns", "exec", host.namespace, "unshare", "--uts", "--mount"),
            *("sh", "-c", script, "sh", *command),
        ]

    def start(self, host: Host, *command: str, **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on a host."""
        return subprocess.Popen(self.argv(host, command), **options)

    def launch(
        self, *arguments: str, timeout: float = 60, **options: Any
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs horovodrun on the first host to its end."""
        command = self.argv(self.hosts[0], [*LAUNCHER, *self.ssh_flags(), *arguments])
        return subprocess.run(command, capture_output=True, timeout=timeout, check=False, **options)

    def ssh_flags(self) -> list[str]:
        """How ssh gets in here."""
        return ["-p", str(PORT), "-i", str(self.identity), "--ssh-accept-new-host-keys"]

    def restart_sshd(self, host: Host, settings: str = "") -> None:
        """Starts it anew, with what is hidden now."""
        self.kill_sshd(host)
        self.start_sshd(host, settings)

    def start_sshd(self, host: Host, settings: str = "") -> None:
        """Starts the ssh server of a host and waits until it listens."""
        config = self._folder / f"sshd_config.{host.name}"
        config.write_text(
            f"Port {PORT}\nHostKey {self._folder}/host_key\nAuthorizedKeysFile {self._folder}/authorized\n"
            "UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
            f"PidFile {self._folder}/sshd.{host.name}.pid\nMaxStartups 100\n{settings}\n"
        )
        assert SSHD is not None
        host.sshd = self.start(
            host,
            SSHD,
            "-D",
            "-e",
            "-f",
            str(config),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 20
        probe = f"import socket; socket.create_connection(('{host.address}', {PORT}), 1).close()"
        while subprocess.run(
            self.argv(self.hosts[0], [sys.executable, "-c", probe]),
            capture_output=True,
            check=False,
        ).returncode:
            assert time.monotonic() < deadline, f"sshd of {host.name} does not come up"
            time.sleep(0.05)

    def kill_sshd(self, host: Host) -> None:
        """Kills the ssh server of a host with all its connections, and nothing else."""
        for process in self._processes(host):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{process}/comm").read_text().strip().startswith("sshd"):
                    os.kill(process, signal.SIGKILL)
        if host.sshd is not None:
            host.sshd.wait()

    def _processes(self, host: Host) -> list[int]:
        found = subprocess.run(
            ["ip", "netns", "pids", host.namespace], capture_output=True, text=True, check=False
        )
        return [int(word) for word in found.stdout.split()]

    def is_empty(self, host: Host) -> bool:
        """True when nothing but the ssh server runs on a host."""
        names = []
        for process in self._processes(host):
            with contextlib.suppress(OSError):
                names.append(Path(f"/proc/{process}/comm").read_text().strip())
        return all(name.startswith("sshd") for name in names)

    # --- the network -------------------------------------------------------------------------------

    def cut(self, host: Host) -> None:
        """Pulls the plug of a host: its packets vanish, and nobody is told."""
        port = self._port_of(self.hosts.index(host))
        _in(self._switch, "ip", "link", "set", port, "nomaster")

    def limit(self, rate: str) -> None:
        """Limits what every host can send, e.g. to "1gbit"."""
        for host in self.hosts:
            _in(
                host.namespace,
                *("tc", "qdisc", "replace", "dev", host.interface, "root", "tbf"),
                *("rate", rate, "burst", "256kb", "latency", "50ms"),
            )

    def close(self) -> None:
        """Ends all processes of all hosts and removes everything."""
        for host in self.hosts:
            for process in self._processes(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if host.sshd is not None:
                host.sshd.wait()
        for namespace in [*(host.namespace for host in self.hosts), self._switch]:
            subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _in(namespace: str, *command: str) -> None:
    _do("ip", "netns", "exec", namespace, *command)
