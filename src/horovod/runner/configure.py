"""horovodrun config: asks for the values of a configuration file, and writes it.

The answers come from a terminal or from a pipe, one a line.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from itertools import groupby
from typing import Any, TextIO

from horovod.common.knobs import Knob
from horovod.runner.config_file import checked_value, read_config
from horovod.runner.knob_options import destination, option_knobs

DEFAULT_FILE = "horovod.yaml"
INTERRUPTED, REFUSED = 130, 1
HEADER = (
    "# Written by: horovodrun config\n"
    "# Use it with: horovodrun -np N --config-file {path} command ...\n"
    "# docs/knobs.md explains the keys. What is not here keeps its default or the environment's value.\n"
)
_TITLES = {
    "": "General",
    "params": "Fusion and cache",
    "autotune": "Trying fusion thresholds and cycle times while training",
    "timeline": "Recording a timeline",
    "stall_check": "Watching for stalled tensors",
    "flight_recorder": "What ranks write when a job stalls or breaks",
    "metrics": "Metrics for Prometheus",
    "library_options": "Threads and time limits",
    "logging": "Log messages",
}
_YES, _NO = ("yes", "y", "true", "on", "1"), ("no", "n", "false", "off", "0")


class _NoMoreAnswersError(Exception):
    """Ctrl-D, or the end of the pipe."""


class _Dialogue:
    """Questions go to one stream, answers come from another."""

    def __init__(self, answers: TextIO, questions: TextIO) -> None:
        self._answers, self._questions = answers, questions

    def say(self, text: str = "") -> None:
        print(text, file=self._questions, flush=True)

    def ask(self, question: str) -> str:
        print(question, end=" ", file=self._questions, flush=True)
        line = self._answers.readline()
        if not self._answers.isatty():
            self.say()  # the terminal's own newline is missing
        if not line:
            raise _NoMoreAnswersError
        return line.strip()

    def ask_yes(self, question: str) -> bool:
        """A question whose default is no."""
        while True:
            answer = self.ask(f"{question} [no]").lower()
            if answer in ("", *_NO):
                return False
            if answer in _YES:
                return True
            self.say(f"    expected yes or no, found '{answer}'")


def configure(
    arguments: list[str], answers: TextIO | None = None, questions: TextIO | None = None
) -> int:
    """Runs `horovodrun config` with its arguments; returns the exit code."""
    options = _parser().parse_args(arguments)
    dialogue = _Dialogue(answers or sys.stdin, questions or sys.stdout)
    try:
        return _dialogue(options, dialogue)
    except (KeyboardInterrupt, _NoMoreAnswersError) as reason:
        dialogue.say("\nNothing has been written.")
        return INTERRUPTED if isinstance(reason, KeyboardInterrupt) else REFUSED
    except (OSError, ValueError) as error:
        print(f"horovodrun config: error: {error}", file=sys.stderr)
        return REFUSED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun config",
        description="Asks for the options that a configuration file can hold, and writes the file.",
    )
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help=f"The file to write; asked for, or {DEFAULT_FILE}."
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace the file without a question."
    )
    return parser


def _dialogue(options: argparse.Namespace, dialogue: _Dialogue) -> int:
    dialogue.say("Enter keeps what is in brackets; Ctrl-C leaves without writing anything.")
    path = options.file or dialogue.ask(f"File to write [{DEFAULT_FILE}]:") or DEFAULT_FILE
    if os.path.isdir(path):
        raise ValueError(f"expected the name of a file, found a directory: '{path}'")
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise ValueError(f"the directory '{directory}' does not exist; make it first")
    asks = os.path.lexists(path) and not options.overwrite
    if asks and not dialogue.ask_yes(f"'{path}' exists already. Replace it?"):
        dialogue.say("It stays as it is; name another file: horovodrun config FILE")
        return REFUSED
    chosen = _ask_all(dialogue)
    _write(path, chosen)
    dialogue.say(f"\n'{path}' is written and has been read back: {len(chosen)} value(s).")
    dialogue.say(f"Use it with: horovodrun -np N --config-file {path} command ...")
    return 0


def _section(knob: Knob) -> str:
    return str(knob.yaml_key).rpartition(".")[0]


def _ask_all(dialogue: _Dialogue) -> list[tuple[Knob, Any]]:
    """The knobs whose value is not the default, with the value of the key."""
    order = list(_TITLES)
    knobs = sorted(
        (knob for knob in option_knobs() if knob.yaml_key),
        key=lambda knob: order.index(_section(knob)),
    )
    chosen = []
    for section, members in groupby(knobs, _section):
        dialogue.say(f"\n{_TITLES[section]}")
        for knob in members:
            value = _ask_for(dialogue, knob)
            if value is not None:
                chosen.append((knob, value))
    return chosen


def _ask_for(dialogue: _Dialogue, knob: Knob) -> Any:
    """What the user wants under the knob's key; None: the default."""
    dialogue.say(f"  {'no: ' if knob.inverted else ''}{knob.help}")
    while True:
        answer = dialogue.ask(f"  {knob.yaml_key} [{default_text(knob)}]:")
        if not answer:
            return None
        try:
            value = _parsed(knob, answer)
            checked_value(knob, value)
        except ValueError as error:
            dialogue.say(f"    {error}")
            continue
        return value


def default_text(knob: Knob) -> str:
    """The default in the terms of the key, which may count in other units or say the opposite."""
    if knob.type == "bool":
        return "yes" if bool(knob.default) != knob.inverted else "no"
    if knob.type == "int" and knob.default is not None:
        return str(knob.default // knob.scale)
    return str(knob.default) if knob.default else "not set"


def _parsed(knob: Knob, answer: str) -> Any:
    """The answer as the YAML file would give it; raises ValueError."""
    if knob.type == "bool":
        if answer.lower() not in (*_YES, *_NO):
            raise ValueError(f"expected yes or no, found '{answer}'")
        return answer.lower() in _YES
    if knob.type in ("int", "float"):
        kind, expected = (int, "a whole number") if knob.type == "int" else (float, "a number")
        try:
            return kind(answer)
        except ValueError:
            raise ValueError(f"expected {expected}, found '{answer}'") from None
    if knob.type == "int_list":
        parts = [part.strip() for part in answer.split(",")]
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"expected numbers with commas between them, found '{answer}'")
        return [int(part) for part in parts]
    return answer


def _write(path: str, chosen: list[tuple[Knob, Any]]) -> None:
    """Writes the file and reads it back before it gets its name.

    Raises:
        ValueError: it does not read as what was chosen, which would be a fault of this program.
        OSError: it can't be written.
    """
    expected = {destination(knob): checked_value(knob, value) for knob, value in chosen}
    directory = os.path.dirname(path) or "."
    with tempfile.NamedTemporaryFile(
        "w", dir=directory, prefix=".horovodrun-", encoding="utf-8", delete=False
    ) as file:
        file.write(_yaml_text(path, chosen))
    try:
        found = read_config(file.name)
        if found != expected:
            raise ValueError(
                f"the file reads as {found!r} instead of {expected!r}; please report it"
            )
        os.chmod(file.name, 0o666 & ~_umask())
        os.replace(file.name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(file.name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _yaml_text(path: str, chosen: list[tuple[Knob, Any]]) -> str:
    import yaml

    root: dict[str, Any] = {}
    for knob, value in chosen:
        section, _, name = str(knob.yaml_key).rpartition(".")
        (root.setdefault(section, {}) if section else root)[name] = value
    shown = path if path.isprintable() else ascii(path)
    text: str = yaml.safe_dump(root, sort_keys=False) if root else ""
    return HEADER.format(path=shown) + text
