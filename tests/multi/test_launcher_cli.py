"""horovodrun without a job: completion in a real shell, --dry-run, --check-gpu, the questions of config."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from launcher_process import COMMAND, DEADLINE_SECONDS, launch

from horovod.runner.config_file import read_config

COMPLETE = """
eval "$(cat)"
complete -p horovodrun >&2
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_horovodrun
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(*words: str) -> list[str]:
    """What bash offers for the last word."""
    script = launch("--print-completion", "bash").stdout
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", "horovodrun", *words],
        input=script,
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    assert b"complete -o default -F _horovodrun horovodrun" in done.stderr
    return done.stdout.decode().split()


def test_bash_completes_flags_their_values_and_leaves_the_command_alone(tmp_path: Path) -> None:
    assert completed("--ssh-") == [
        "--ssh-port", "--ssh-identity-file", "--ssh-accept-new-host-keys"
    ]  # fmt: skip
    assert completed("-np", "2", "--log-level", "D") == ["DEBUG"]
    assert completed("-np", "2", "--log-level", "=", "D") == ["DEBUG"]
    assert completed("-np", "") == []
    assert completed("-np", "2", "python", "--ssh") == []
    assert "bash" in completed("-np", "2", "bas")
    (tmp_path / "hosts.txt").touch()
    assert completed("-hostfile", f"{tmp_path}/ho") == [f"{tmp_path}/hosts.txt"]


def test_dry_run_starts_nothing_and_shows_no_secret(tmp_path: Path) -> None:
    started = tmp_path / "started"
    done = launch(
        *("-np", "2", "-H", "localhost:2", "--dry-run", "touch", str(started)),
        env={**os.environ, "PLANTED_TOKEN": "very-secret-value"},
    )
    assert done.returncode == 0, done.stderr
    assert b"Nothing is started." in done.stdout and b"PLANTED_TOKEN=<redacted>" in done.stdout
    assert b"very-secret-value" not in done.stdout + done.stderr
    assert not started.exists()


def test_check_gpu_has_a_verdict_and_its_exit_code() -> None:
    done = launch("--check-gpu")
    verdict = done.stdout.decode().splitlines()[-1]
    usable = verdict == "Verdict: a GPU is usable here"
    assert usable or verdict == "Verdict: no GPU is usable here"
    assert done.returncode == (0 if usable else 1)


def test_config_takes_piped_answers(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    done = launch("config", str(path), input=b"\n64\n" + b"\n" * 60)
    assert done.returncode == 0, done.stderr
    assert read_config(str(path)) == {"fusion_threshold_mb": 64}
    short = launch("config", str(tmp_path / "other.yaml"), input=b"\n")
    assert short.returncode == 1 and b"Nothing has been written." in short.stdout
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("key", "code"), [(b"\x03", 128 + signal.SIGINT), (b"\x04", 1)])
def test_config_on_a_terminal_is_left_without_a_file(tmp_path: Path, key: bytes, code: int) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(COMMAND[0], [*COMMAND, "config", str(tmp_path / "job.yaml")])
    seen = b""

    def wait_for(text: bytes, count: int = 1) -> None:
        nonlocal seen
        while seen.count(text) < count:
            seen += os.read(terminal, 4096)

    try:
        wait_for(b"controller [gloo]:")
        os.write(terminal, b"mpi\n")
        wait_for(b"'mpi' is not one of gloo")
        wait_for(b"controller [gloo]:", 2)
        os.write(terminal, key)
        wait_for(b"Nothing has been written.")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)  # ends a child that is still there
    assert os.waitstatus_to_exitcode(status) == code
    assert not list(tmp_path.iterdir())
