"""`horovodrun flight-recorder DIR`: reads all ranks' dumps and says which rank diverged first and how."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from horovod.runner.cli import print_error
from horovod.runner.flight_recorder.analysis import analyse
from horovod.runner.flight_recorder.reader import DumpError, read_folder
from horovod.runner.flight_recorder.report import as_json, as_text

LAST = 5
EXAMPLES = """\
examples:
  the folder into which a job that hung has written:
    horovodrun flight-recorder flight-recorder
  the last 20 operations of each rank too:
    horovodrun flight-recorder flight-recorder --last 20
  for a program:
    horovodrun flight-recorder flight-recorder --json
"""


def flight_recorder(argv: list[str]) -> int:
    """Runs `horovodrun flight-recorder` with its arguments; 0 if the dumps could be read, else 1."""
    options = _parser().parse_args(argv)
    try:
        folder = read_folder(Path(options.folder))
    except DumpError as error:
        print_error(str(error))
        return 1
    findings = analyse(folder.dumps, folder.unreadable)
    write = as_json if options.json else as_text
    try:
        print(write(folder, findings, options.last), flush=True)
    except BrokenPipeError:
        # Whoever read our output has left. Python must not try to flush what it still holds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun flight-recorder",
        description="Reads what the flight recorders of all ranks have written when a job hung or was "
        "aborted, and says which rank diverged first and how.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", metavar="DIR", help="Folder with rank0.json, rank1.json, ...")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of text.")
    parser.add_argument(
        "--last",
        type=_count,
        default=LAST,
        metavar="N",
        help=f"List the last N operations of each rank (default {LAST}, 0: none).",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number >= 0, found '{text}'")
    return int(text)
