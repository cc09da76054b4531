"""horovodrun timeline merge|report: the command line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from horovod.runner.timeline.analysis import analyse
from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.job import Job, open_job
from horovod.runner.timeline.merge import merge
from horovod.runner.timeline.page import page
from horovod.runner.timeline.steps import parse_range
from horovod.runner.timeline.summary import summary
from horovod.runner.timeline.units import count

EXAMPLES = """\
examples:
  record all ranks of a job, then see where the time goes:
    horovodrun -np 4 --timeline-filename t.json --timeline-all-ranks python train.py
    horovodrun timeline report t.json t.rank*.json
  one trace for chrome://tracing or https://ui.perfetto.dev:
    horovodrun timeline merge -o all.json t.json t.rank*.json
"""


def timeline(argv: list[str]) -> int:
    """Runs `horovodrun timeline` with its arguments; returns 0, or 1 after an error that was printed."""
    options = _parser().parse_args(argv)
    act: Callable[[argparse.Namespace], None] = options.act
    try:
        act(options)
    except TimelineError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename or options.output}: {error.strerror}")
    except KeyboardInterrupt:
        _say("horovodrun timeline: interrupted")
        return 128 + signal.SIGINT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun timeline",
        description="Reads the timelines that ranks of one job recorded.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    joined = commands.add_parser(
        "merge",
        help="write one trace of all ranks, for chrome://tracing or Perfetto",
        description="Writes one trace of all ranks, in the time of rank 0's clock.",
    )
    joined.set_defaults(act=_merge)
    _add_files(joined, "timeline-merged.json", "the trace")
    report = commands.add_parser(
        "report",
        help="write a page that says where the time goes, and print its summary",
        description="Writes one HTML page that needs nothing else, and prints its summary.",
    )
    report.set_defaults(act=_report)
    _add_files(report, "timeline-report.html", "the page")
    report.add_argument(
        "--steps",
        metavar="FIRST:LAST",
        type=_steps,
        help="only these steps, for example 10:50 or 10: (default: all; the first is left out if it is much "
        "longer than the others)",
    )
    return parser


def _add_files(parser: argparse.ArgumentParser, output: str, what: str) -> None:
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="a rank's timeline; FILE.1, the part before it, is read too",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=Path(output),
        help=f"{what} (default: {output})",
    )


def _steps(text: str) -> tuple[int | None, int | None]:
    try:
        return parse_range(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _open(options: argparse.Namespace) -> Job:
    """The files as one job. TimelineError too if the output would replace one of them."""
    output: Path = options.output
    if output.is_dir():
        raise TimelineError(f"{output}: is a directory; give the name of a file to write")
    job = open_job(options.files)
    inputs = [part.path for files in job.ranks for part in files.parts]
    if output.exists() and any(path.samefile(output) for path in inputs):
        raise TimelineError(f"{output}: is one of the files to read; choose another name with -o")
    return job


def _merge(options: argparse.Namespace) -> None:
    result = merge(_open(options), options.output)
    for note in result.notes:
        _say(f"horovodrun timeline: note: {note}")
    print(
        f"{options.output}: {count(result.events, 'event')} on {count(result.rows, 'row')}; open it in "
        "chrome://tracing or https://ui.perfetto.dev"
    )


def _report(options: argparse.Namespace) -> None:
    figures = analyse(_open(options), options.steps, _progress)
    text = page(figures)
    options.output.write_text(text, encoding="utf-8", errors="backslashreplace")
    _print(f"{summary(figures)}\n\n{options.output}: open it in a browser")


def _progress(done: int, of: int) -> None:
    """On a terminal, where many files are read, says how far it is."""
    if of > 8 and sys.stderr.isatty():
        end = "\n" if done == of else ""
        print(f"\rhorovodrun timeline: {done} of {of} files", end=end, file=sys.stderr, flush=True)


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Whoever read our output has left. Python must not try to flush what it still holds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fail(text: str) -> int:
    _say(f"horovodrun timeline: error: {text}")
    return 1


def _say(text: str) -> None:
    encoding = sys.stderr.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr)
