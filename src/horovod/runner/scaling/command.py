"""horovodrun scaling: runs a script at several sizes and reports how it scales."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from horovod.runner.cli import build_parser, print_error
from horovod.runner.cores import usable_cores
from horovod.runner.hosts import UNKNOWN_SLOTS, HostInfo
from horovod.runner.plan import choose_hosts, is_local
from horovod.runner.scaling.one_size import Run, run_one
from horovod.runner.scaling.plot import text_plot, why_no_png, write_png
from horovod.runner.scaling.report import Measured, Row, as_json, rows_of, table
from horovod.runner.scaling.step_marks import FEWEST_MARKS, read_marks, throughput_of_marks
from horovod.runner.scaling.throughput import FIGURES, compile_pattern, throughput_of

TIMELINE, TIMELINE_MAX = "HOROVOD_TIMELINE", "HOROVOD_TIMELINE_MAX_MB"
TIMELINE_MEGABYTES = "64"
NOT_STARTED = 127
EXAMPLES = """\
examples:
  1, 2 and 4 processes on this machine:
    horovodrun scaling --np 1,2,4 python train.py
  on several hosts, with a picture and the figures as JSON; other options are those of horovodrun:
    horovodrun scaling --np 2,4,8 -H node1:4,node2:4 --plot scaling.png --json scaling.json python train.py
  a script that prints its speed in words of its own:
    horovodrun scaling --np 1,2 --pattern 'speed=([0-9.]+)' --figure per-rank python train.py

documentation: docs/scaling.md of the source
"""


class _Request(NamedTuple):
    """The command line, split into what is ours, horovodrun's, and the script's."""

    own: argparse.Namespace
    launcher: list[str]
    command: list[str]

    def hosts(self) -> list[HostInfo]:
        """Those that horovodrun will choose. ValueError for what makes no sense."""
        args = build_parser().parse_args(["-np", "1", *self.launcher, "true"])
        try:
            return choose_hosts(max(self.own.np), args.hosts, args.hostfile)
        except OSError as error:
            raise ValueError(f"host file {args.hostfile}: {error.strerror}") from None


def scaling(argv: list[str]) -> int:
    """Runs `horovodrun scaling` with its arguments; returns its exit code."""
    try:
        return _scaling(_read(argv))
    except ValueError as error:
        print_error(str(error))
        return 1
    except KeyboardInterrupt:  # between two runs
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has left. Python must not try to flush what it still holds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE


def _scaling(request: _Request) -> int:
    own = request.own
    _check_outputs(own)
    hosts = request.hosts()
    for note in _check_slots(own.np, hosts):
        _say(note)
    marks = _wants_marks(own, hosts)
    measured: list[Measured] = []
    interrupted = 0
    folder = Path(tempfile.mkdtemp(prefix="horovod-scaling-"))
    try:
        for index, ranks in enumerate(own.np):
            _say(
                f"{_ranks(ranks)} (run {index + 1} of {len(own.np)}): {shlex.join(request.command)}"
            )
            run = _run(request, ranks, _timeline(folder, ranks) if marks else None)
            if run.interrupted:
                interrupted = run.interrupted
                break
            measured.append(_measured(run, ranks, _timeline(folder, ranks), own.measure))
            _say_outcome(measured[-1], run, own.quiet)
            if run.code and own.stop_on_failure:
                left = own.np[index + 1 :]
                if left:
                    _say(f"stopped; not run: {', '.join(map(str, left))} ranks")
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = rows_of(measured)
    if rows:
        _report(rows, request)
    if interrupted:
        _say(f"interrupted; {len(measured)} of {len(own.np)} runs are complete")
        return 128 + interrupted
    return 0 if all(row.throughput for row in rows) and len(rows) == len(own.np) else 1


def _wants_marks(own: argparse.Namespace, hosts: Sequence[HostInfo]) -> bool:
    """Whether jobs are to write a timeline; rank 0 does, and it must be able to write where we read."""
    if own.measure == "output" or TIMELINE in os.environ:
        return False
    is_here = is_local(hosts[0].hostname)
    if not is_here and own.measure == "steps":
        raise ValueError(
            f"--measure steps needs rank 0 on this machine, where its timeline is read; it would run on "
            f"{hosts[0].hostname}. Put this machine first, or let the script print its throughput"
        )
    return is_here


def _run(request: _Request, ranks: int, timeline: Path | None) -> Run:
    own = request.own
    command = [sys.executable, "-m", "horovod.runner", "-np", str(ranks)]
    command += [*request.launcher, *request.command]
    environment = dict(os.environ)
    if timeline is not None:
        environment[TIMELINE] = str(timeline)
        environment.setdefault(TIMELINE_MAX, TIMELINE_MEGABYTES)
    try:
        return run_one(command, environment, own.quiet, own.pattern, own.figure)
    except OSError as error:
        _say(f"horovodrun can't be started: {error.strerror}")
        return Run(NOT_STARTED, 0.0)


def _timeline(folder: Path, ranks: int) -> Path:
    return folder / f"timeline-{ranks}.json"


def _measured(run: Run, ranks: int, timeline: Path, measure: str) -> Measured:
    marks: list[float] = []
    if timeline.exists():
        try:
            marks = read_marks(timeline)
        except OSError as error:
            _say(f"the timeline can't be read: {error.strerror}")
    printed = throughput_of(run.sightings, ranks) if measure != "steps" else None
    return Measured(ranks, run.code, run.seconds, printed, throughput_of_marks(marks, ranks))


def _say_outcome(one: Measured, run: Run, quiet: bool) -> None:
    if one.code:
        _say(f"{_ranks(one.ranks)} failed with exit code {one.code} after {one.seconds:.1f} s")
        if quiet and run.last_lines:
            print("\n".join(run.last_lines), file=sys.stderr, flush=True)
        return
    found = one.printed or one.marked
    if found is None:
        _say(
            f"{_ranks(one.ranks)}: no throughput was found. Expected a line such as '123.4 images/s' or "
            f"'samples/sec: 123.4' on any rank, or at least {FEWEST_MARKS} training steps in a timeline; "
            "give --pattern for lines of another form"
        )
        return
    _say(f"{_ranks(one.ranks)}: {found.value:,.1f} {found.unit_per_second} ({found.how})")


def _report(rows: Sequence[Row], request: _Request) -> None:
    own = request.own
    print(f"\n{table(rows)}", flush=True)
    plot = text_plot(rows, getattr(sys.stdout, "encoding", None))
    if plot:
        print(f"\n{plot}", flush=True)
    title = shlex.join(request.command)
    if own.json is not None:
        _write(own.json, lambda path: path.write_text(_json(rows, request), encoding="utf-8"))
    if own.plot is not None:
        if any(row.throughput for row in rows):
            _write(own.plot, lambda path: write_png(rows, title[:100], path))
        else:
            _say(f"{own.plot} is not written: no size gave a throughput")


def _json(rows: Sequence[Row], request: _Request) -> str:
    return json.dumps(as_json(rows, [*request.launcher, *request.command]), indent=1) + "\n"


def _write(path: Path, write: object) -> None:
    assert callable(write)
    try:
        write(path)
    except OSError as error:
        raise ValueError(f"{path}: can't be written: {error.strerror}") from None
    _say(f"written: {path}")


def _check_outputs(own: argparse.Namespace) -> None:
    """What would fail after the runs is better refused before them."""
    if own.plot is not None and (reason := why_no_png(own.plot)) is not None:
        raise ValueError(reason)
    for flag, path in (("--json", own.json), ("--plot", own.plot)):
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{flag} {path}: expected a file, found a directory")
        folder = path.absolute().parent
        if not folder.is_dir():
            raise ValueError(f"{flag} {path}: there is no folder {folder}")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise ValueError(f"{flag} {path}: this user may not write there")


def _check_slots(sizes: Sequence[int], hosts: Sequence[HostInfo]) -> list[str]:
    """Refuses sizes for which the hosts have too few slots; a note where ranks share cores."""
    most = max(sizes)
    if any(host.slots == UNKNOWN_SLOTS for host in hosts):
        return []
    slots = sum(host.slots for host in hosts)
    if most > slots:
        names = ", ".join(f"{host.hostname}:{host.slots}" for host in hosts)
        raise ValueError(
            f"--np {','.join(map(str, sizes))}: {most} ranks need {most} slots, but the hosts have "
            f"{slots} ({names}); add hosts or slots, or leave out the sizes above {slots}"
        )
    cores = usable_cores()
    if len(hosts) == 1 and is_local(hosts[0].hostname) and most > cores:
        note = (
            f"{most} ranks on {cores} core{'' if cores == 1 else 's'}: ranks that share cores slow "
            "each other down, which the efficiency will show"
        )
        return [note]
    return []


def _ranks(ranks: int) -> str:
    return f"{ranks} rank{'' if ranks == 1 else 's'}"


def _say(text: str) -> None:
    print(f"horovodrun scaling: {text}", file=sys.stderr, flush=True)


# --- The command line ------------------------------------------------------------------------------


def _read(argv: Sequence[str]) -> _Request:
    """Splits the command line; leaves with a message if it is wrong."""
    own_parser = _parser()
    # Without -h, which would swallow -hostfile.
    splitter = argparse.ArgumentParser(
        prog=own_parser.prog, usage=own_parser.usage, add_help=False, allow_abbrev=False
    )
    _add_own(splitter)
    if not argv or argv[0] in ("-h", "--help"):
        own_parser.parse_args(["--help"] if argv else ["--np"])
    whole = build_parser()
    whole.prog, whole.usage = own_parser.prog, own_parser.usage
    _add_own(whole.add_argument_group("Scaling"))
    seen = whole.parse_args(list(argv))
    command = list(seen.command)
    head = list(argv[: len(argv) - len(command)])
    if command[:1] == ["--"]:
        command = command[1:]
    own, launcher = splitter.parse_known_args(head)
    if launcher and launcher[-1] == "--":
        launcher.pop()
    if seen.num_proc is not None:
        own_parser.error("-np is of one job; give the sizes with --np, as in --np 1,2,4")
    if seen.check_build or seen.check_gpu or seen.version or seen.print_completion or seen.dry_run:
        own_parser.error("nothing would be run; give that option to horovodrun itself")
    if not command:
        own_parser.error("no command given, as in: horovodrun scaling --np 1,2,4 python train.py")
    if own.measure == "steps" and own.pattern is not None:
        own_parser.error("--pattern is for lines of output; it has no use with --measure steps")
    if own.measure == "steps" and TIMELINE in os.environ:
        own_parser.error(f"--measure steps sets {TIMELINE} itself; unset it")
    return _Request(own, launcher, command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun scaling",
        usage="horovodrun scaling --np 1,2,4 [options of horovodrun and those below] command ...",
        description="Runs a training script at several sizes and reports speed-up and efficiency.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_own(parser)
    return parser


def _add_own(group: argparse._ActionsContainer) -> None:
    add = group.add_argument
    add("--np", type=_sizes, metavar="LIST", required=True, help="Numbers of processes: 1,2,4.")
    add("--plot", type=Path, metavar="FILE", help="Draw throughput and efficiency as a PNG file.")
    add("--json", type=Path, metavar="FILE", help="Write all figures as JSON.")
    add("--quiet", action="store_true", help="Do not pass the script's output on.")
    add(
        "--pattern",
        type=_pattern,
        metavar="REGEX",
        help="What a line with the throughput looks like; its first group is the number.",
    )
    add(
        "--figure",
        choices=FIGURES,
        default="auto",
        help="Whether a printed figure is of all ranks (total) or of one (per-rank). By default the "
        "line's words decide.",
    )
    add(
        "--measure",
        choices=("auto", "output", "steps"),
        default="auto",
        help="Look at the script's output, at the steps in a timeline, or at both (auto).",
    )
    add("--stop-on-failure", action="store_true", help="Run no more sizes after one has failed.")


def _sizes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 8 for word in words):
        raise argparse.ArgumentTypeError(
            f"expected numbers of processes such as 1,2,4, found '{text}'"
        )
    sizes = [int(word) for word in words]
    if 0 in sizes:
        raise argparse.ArgumentTypeError(f"at least one process must be started, found '{text}'")
    return sorted(set(sizes))


def _pattern(text: str) -> object:
    try:
        return compile_pattern(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
