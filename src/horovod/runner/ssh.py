"""How a remote shell is called: OpenSSH as the user has configured it, or the program that Kubeflow names."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Names the remote shell of Kubeflow's MPI operator, which is called with a host and a command.
AGENT_VARIABLE = "OMPI_MCA_plm_rsh_agent"
KUBERNETES_AGENT = "kubexec.sh"
CONNECT_SECONDS = 10
# A connection that has broken is noticed within three of these.
ALIVE_SECONDS = 2
LOST_SECONDS = 3 * ALIVE_SECONDS
FAILED = 255  # exit code of ssh itself, not of the command

# ssh says one of these when another attempt would end in the same way.
_HOPELESS = (
    "Permission denied",
    "Host key verification failed",
    "REMOTE HOST IDENTIFICATION HAS CHANGED",
    "Too many authentication failures",
    "Bad configuration option",
    "Bad owner or permissions",
    "UNPROTECTED PRIVATE KEY FILE",
    "not accessible",
)


class SshOptions(NamedTuple):
    """What the user has asked for; the rest is in the user's own configuration of ssh."""

    port: int | None = None
    identity_file: str | None = None
    accept_new_host_keys: bool = False


def uses_kubernetes(environment: Mapping[str, str]) -> bool:
    """Whether the remote shell is that of Kubeflow's MPI operator."""
    return os.path.basename(environment.get(AGENT_VARIABLE, "")) == KUBERNETES_AGENT


def ssh_command(target: str, options: SshOptions, environment: Mapping[str, str]) -> list[str]:
    """The words before the remote command, for a `target` such as node1 or user@node1."""
    if uses_kubernetes(environment):
        return [environment[AGENT_VARIABLE], target]
    words = ["ssh", "-T", "-x"]
    settings = {
        "BatchMode": "yes",  # nobody is there to answer a question
        "ConnectTimeout": str(CONNECT_SECONDS),
        "ServerAliveInterval": str(ALIVE_SECONDS),
        "ServerAliveCountMax": "2",
    }
    if options.accept_new_host_keys:
        settings["StrictHostKeyChecking"] = "accept-new"
    for name, value in settings.items():
        words += ["-o", f"{name}={value}"]
    if options.port is not None:
        words += ["-p", str(options.port)]
    if options.identity_file is not None:
        words += ["-i", options.identity_file]
    return [*words, target]


def over_ssh(
    target: str, command: Sequence[str], options: SshOptions, environment: Mapping[str, str]
) -> list[str]:
    """What runs a command on a host; ssh hands one text to a shell there."""
    return [*ssh_command(target, options, environment), shlex.join(command)]


def remote_agent(package_root: str | None) -> list[str]:
    """The remote command that starts an agent. Nothing secret is in it: all goes to its standard input."""
    return remote_python("horovod.runner.agent --remote", package_root)


def remote_python(module: str, package_root: str | None) -> list[str]:
    """The words of a remote command: a module in this Python if it lies there too, else in that of the PATH.

    Args:
        module: its name, and words after it.
        package_root: where this package lies if it isn't installed.
    """
    python = shlex.quote(sys.executable)
    path = "" if package_root is None else f"PYTHONPATH={shlex.quote(package_root)} "
    script = f'p={python}; [ -x "$p" ] || p=python3; {path}exec "$p" -P -m {module}'
    return ["sh", "-c", script]


def is_hopeless(words: str) -> bool:
    """Whether what ssh has said means that trying again is of no use."""
    return any(text in words for text in _HOPELESS)


def explain(target: str, code: int, words: str, program: str = "ssh") -> str:
    """Why no agent has come up on a host, and what helps; `words` is what came on standard error."""
    said = " ".join(words.split()[-60:]) or "it said nothing"
    if code == 0 and program == KUBERNETES_AGENT:
        return (
            "the remote shell ended at once and well, so it does not pass on standard input: kubexec.sh must "
            f"call kubectl exec with --stdin, see deploy/kubeflow/mpijob-v1.yaml ({said})"
        )
    if "Host key verification failed" in words:
        return (
            f"ssh does not know its host key: connect once by hand (ssh {target}), or use "
            f"--ssh-accept-new-host-keys ({said})"
        )
    if "Permission denied" in words:
        return (
            f"ssh was refused: a key without passphrase, or an agent that holds it, must be set up, so "
            f"that 'ssh {target} true' works without a question ({said})"
        )
    if "No module named" in words and "horovod" in words:
        return (
            f"its Python has no horovod: install the same version there, where {sys.executable} or "
            f"else python3 finds it ({said})"
        )
    if code == 127:
        return (
            f"it has no Python: neither {sys.executable} nor python3 in the PATH of a remote command; "
            f"install it there at the same place ({said})"
        )
    if code == FAILED and program == "ssh":
        return f"ssh cannot connect to it: {said}"
    return f"its agent, started by {program}, ended with status {code} before it had begun: {said}"
