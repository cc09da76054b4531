"""Every command in the documents is run, or is in the list of those that can't be, with the reason."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from commands_not_run import NOT_RUN, is_benchmark
from document_commands import (
    ROOT,
    SHELLS,
    Block,
    all_blocks,
    blocks_of,
    commands_of,
    fault_of,
    fault_of_python,
    lacking_tools,
    named_file,
    prepare,
    run_shell,
)

BASH = [block for block in all_blocks() if block.language == "bash"]
PYTHON = [block for block in all_blocks() if block.language == "python"]
BENCHMARKS = {
    command for block in BASH for command in commands_of(block.text) if is_benchmark(command)
}


def runnable(block: Block) -> list[str]:
    """The commands of a block that the tests can run."""
    return [
        command
        for command in commands_of(block.text)
        if command not in NOT_RUN and not is_benchmark(command)
    ]


class Page:
    """The folder in which the commands of one page run, and how far they have run."""

    def __init__(self, name: str, folder: Path) -> None:
        self.folder = folder
        self.waiting = [block for block in all_blocks() if block.page == name]
        self.results: dict[int, str | None] = {}
        prepare(folder)

    def fault(self, block: Block) -> str | None:
        """Runs all blocks up to this one, those before it first, and says what went wrong with it."""
        while block.line not in self.results:
            following = self.waiting.pop(0)
            self.results[following.line] = self._take(following)
        return self.results[block.line]

    def _take(self, block: Block) -> str | None:
        name = named_file(block)
        if name:
            (self.folder / name).write_text(block.text)
        if block.language != "bash":
            return None
        commands = runnable(block)
        if not commands or lacking_tools(commands):
            return None
        done = run_shell("\n".join(commands), self.folder)
        if done.returncode == 0:
            return None
        return f"exit status {done.returncode} of\n{block.text}\nwhich said\n{done.stdout[-5000:]}"


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory):
    @functools.cache
    def page(name: str) -> Page:
        return Page(name, tmp_path_factory.mktemp("page"))

    return page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checked")
    prepare(made)
    return made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", BASH, ids=lambda block: block.place)
def test_the_commands_of_a_block_work(block: Block, page_of):
    if lacking := lacking_tools(runnable(block)):
        pytest.skip(f"not installed: {', '.join(lacking)}")
    fault = page_of(block.page).fault(block)
    assert fault is None, f"{block.place}: {fault}"


@pytest.mark.parametrize("command", [*NOT_RUN, *sorted(BENCHMARKS)])
def test_a_command_that_is_not_run_is_at_least_understood(command: str, folder: Path):
    fault = fault_of(command, folder)
    assert fault is None, fault


def test_every_command_that_is_not_run_is_in_a_document_and_has_a_reason():
    present = {command for block in BASH for command in commands_of(block.text)}
    assert set(NOT_RUN) - present == set()
    assert all(len(reason) > 10 for reason in NOT_RUN.values())
    named = {path for reason in NOT_RUN.values() for path in re.findall(r"tests/\S+\.py", reason)}
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.place)
def test_a_piece_of_python_is_python(block: Block):
    assert fault_of_python(block.text) is None


def test_all_commands_are_in_blocks_that_are_marked_as_bash():
    others = [block.place for block in all_blocks() if block.language in SHELLS - {"bash"}]
    # What a command prints may be shown with the command; then the mark for captured output is before it.
    assert others == []


# --- The reader of blocks itself -----------------------------------------------------------------


def test_blocks_are_found_with_their_lines_languages_and_without_indentation():
    text = "a\n```bash\none\n```\n- b\n\n  ```python\n  # x.py\n  y = 1\n  ```\n"
    found = blocks_of("p.md", text)
    assert [(block.line, block.language, block.text) for block in found] == [
        (3, "bash", "one\n"),
        (8, "python", "# x.py\ny = 1\n"),
    ]
    assert [named_file(block) for block in found] == [None, "x.py"]


def test_commands_are_joined_at_backslashes_and_freed_of_comments():
    text = "# all of it\nrun a \\\n  --b c   # why\n\nsay 'x#y'\n"
    assert commands_of(text) == ["run a --b c", "say 'x#y'"]
    assert commands_of("#!/bin/bash\n#SBATCH -n 2\nexport A=1\nsrun x\n") == ["srun x"]


@pytest.mark.parametrize(
    ("command", "what"),
    [
        ("horovodrun -np 2 --no-such-flag python train.py", "no-such-flag"),
        ("horovodrun -np 4 -H node1:1 python train.py", "slots"),
        ("horovodrun doctor --no-such-flag", "no-such-flag"),
        ("make no-such-target", "no-such-target"),
        ("python benchmarks/allreduce.py --no-such-flag", "no-such-flag"),
        ("python benchmarks/no_such_file.py", "no_such_file"),
        ("docker build -f docker/no.Dockerfile .", "no.Dockerfile"),
        ("echo 'open", "matching"),
    ],
)
def test_a_wrong_command_is_found_without_running_it(command: str, what: str, folder: Path):
    fault = fault_of(command, folder)
    assert fault is not None and what in fault
