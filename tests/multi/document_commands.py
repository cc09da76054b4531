"""The fenced blocks of the documents: what they hold, and how a command that can't be run is checked.

The convention, for writers of documents:

- Commands stand in blocks marked ```bash, one command a line (a line may go on after a backslash), and are
  run as they stand, page by page, in a folder that the blocks of one page share. So a page is a story: a
  later command finds the files of an earlier one. A block that begins with `#!` is one script, and goes by
  its last line.
- A block marked ```python whose first line is a comment with a file name (`# train.py`) is written to that
  file. Where a page has no train.py of its own, a small one is there; so are hosts.txt and the folders of the
  repository that examples name.
- A command that can't be run is in `commands_not_run.py` with the reason, or is a benchmark. It is checked
  as far as that goes: `horovodrun` must accept it with --dry-run, `make` must know the target, a Python
  script must exist and know the options, and the shell must be able to read it.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from horovod.runner.launch import SUBCOMMANDS

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)
FILE_COMMENT = re.compile(r"# (?P<name>[\w-]+\.py)\n")
SHELLS = {"bash", "sh", "shell", "console", "zsh"}
LINKED = ("benchmarks", "deploy", "docker", "examples", "tests", "Makefile")
SECONDS = 240  # generous: a busy machine needs a minute for what takes seconds
TOOLS_THAT_MAY_LACK = {"ssh-keygen", "openssl"}

TRAIN = '''"""Fits a line with a few steps of gradient descent, on as many processes as there are."""

import numpy as np

import horovod.numpy as hvd

hvd.init()
rng = np.random.default_rng(hvd.rank())
weight = hvd.broadcast(np.zeros(1), root_rank=0)
for step in range(50):
    x = rng.normal(size=32)
    gradient = np.array([np.mean(2 * x * (weight[0] * x - 3 * x))])
    weight -= 0.1 * hvd.allreduce(gradient, name="gradient")
if hvd.rank() == 0:
    print(f"weight {weight[0]:.3f}, images/sec: {1000.0 * hvd.size()}")
'''


@dataclass(frozen=True)
class Block:
    """One fenced block: `page` from the root of the repository, `line` of its first line of text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """All documents that have examples for users or developers."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md")]
    return top + sorted((ROOT / "docs").rglob("*.md"))


def blocks_of(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page, in their order, without the indentation of the fence."""
    found = []
    for fence in FENCE.finditer(text):
        indent = fence["indent"]
        lines = [line.removeprefix(indent) for line in fence["text"].splitlines(keepends=True)]
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(page, line, fence["language"], "".join(lines)))
    return found


@functools.cache
def all_blocks() -> tuple[Block, ...]:
    """Of all documents."""
    found: list[Block] = []
    for path in pages():
        found += blocks_of(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    return tuple(found)


def commands_of(text: str) -> list[str]:
    """The commands of a shell block: lines, with those joined that end with a backslash; no comments."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = (re.sub(r"(^|\s+)#\s.*$", "", line).strip() for line in joined.splitlines())
    commands = [line for line in lines if line]
    return commands[-1:] if text.startswith("#!") else commands


def named_file(block: Block) -> str | None:
    """The name of the file that a Python block is, or None."""
    found = FILE_COMMENT.match(block.text) if block.language == "python" else None
    return found["name"] if found else None


def hosts_text() -> str:
    """The host file of docs/hosts.md."""
    blocks = [block for block in all_blocks() if block.page == "docs/hosts.md"]
    return next(block.text for block in blocks if "slots=" in block.text)


def prepare(folder: Path) -> None:
    """Puts into `folder` what the commands of any page may name."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "hosts.txt").write_text(hosts_text())
    (folder / ".ssh").mkdir()
    (folder / ".ssh" / "job").touch()
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)


def stand_in(folder: Path, name: str, says: str) -> None:
    """A program that only says who it is, for launchers of others that are not installed."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / name
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o755)


# The allocation of two nodes with four processes each, as the launcher sees it in a job of a scheduler.
IN_SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_NTASKS": "8",
}
IN_LSF = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "launch 1 node1 4 node2 4"}


def allocation_for(words: list[str]) -> dict[str, str]:
    """Variables of the scheduler in whose job a command of the launcher is meant to be given."""
    if "--srun" in words:
        return IN_SLURM
    return {} if "-np" in words or "--num-proc" in words else IN_LSF


def environment(home: Path) -> dict[str, str]:
    """That of a user: the programs of this environment, and no variable of a job."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROVOD_", "OMPI_", "PMI", "SLURM_", "LSB_", "PYTEST_"))
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "HOME": str(home)}


def run_shell(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a script as bash does, with empty lines as its standard input; stops at the first error."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment(folder),
        input="\n" * 400,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=SECONDS,
        check=False,
    )


def lacking_tools(commands: list[str]) -> list[str]:
    """Of the programs that a machine need not have, those that these commands use and that are missing."""
    used = {word for command in commands for word in re.findall(r"[\w-]+", command)}
    return sorted(tool for tool in used & TOOLS_THAT_MAY_LACK if shutil.which(tool) is None)


# --- What can't be run ---------------------------------------------------------------------------


def fault_of(command: str, folder: Path) -> str | None:
    """What is wrong with a command that is not run, as far as can be seen; None if nothing is."""
    syntax = subprocess.run(
        ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
    )
    if syntax.returncode:
        return syntax.stderr
    words = shlex.split(command)
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words.pop(0)
    if missing := [
        word for word in words if is_repository_path(word) and not (ROOT / word).exists()
    ]:
        return f"there is no {', '.join(missing)}"
    if words[:1] == ["make"]:
        return fault_of_run(["make", "--dry-run", "-C", str(ROOT), *words[1:]], folder)
    if words[:1] == ["horovodrun"]:
        return fault_of_launch(words[1:], folder)
    if len(words) > 1 and Path(words[0]).name == "python" and words[1].endswith(".py"):
        if not (folder / words[1]).exists():
            return f"there is no {words[1]}"
        return fault_of_options([sys.executable, words[1]], words[2:], folder)
    return None


def is_repository_path(word: str) -> bool:
    """Whether a word of a command names a file of the repository."""
    return word.split("/")[0] in LINKED and "/" in word and not set(word) & set("*?$")


def fault_of_run(
    argv: list[str], folder: Path, variables: dict[str, str] | None = None
) -> str | None:
    done = subprocess.run(
        argv,
        cwd=folder,
        env={**environment(folder), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout if done.returncode else None


def fault_of_launch(words: list[str], folder: Path) -> str | None:
    """With --dry-run the launcher reads all options and hosts, says what it would do, and does nothing."""
    if words[:1] and words[0] in SUBCOMMANDS:
        deeper = [word for word in words[1:2] if re.fullmatch(r"[a-z-]+", word) and word[0] != "-"]
        return fault_of_options(["horovodrun", words[0], *deeper], words[1:], folder)
    stand_in(folder, "mpirun", "mpirun (Open MPI) 5.0.11")
    stand_in(folder, "jsrun", "jsrun")
    path = f"{environment(folder)['PATH']}{os.pathsep}{folder / 'bin'}"
    variables = {**allocation_for(words), "PATH": path}
    return fault_of_run(["horovodrun", "--dry-run", *words], folder, variables)


def fault_of_options(argv: list[str], words: list[str], folder: Path) -> str | None:
    """A program knows the options that it names in its help. Those of a command after it are not its own."""
    own = words[: words.index("python")] if "python" in words else words
    options = [word.split("=")[0] for word in own if word.startswith("-")]
    if not options:
        return None
    done = subprocess.run(
        [*argv, "--help"],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    known = done.stdout if done.returncode == 0 else ""
    unknown = [
        option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", known)
    ]
    return f"{' '.join(argv)} --help does not name {', '.join(unknown)}" if unknown else None


def fault_of_python(text: str) -> str | None:
    """A piece of a Python program must at least be one."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        return str(error)
    return None
