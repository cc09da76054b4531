"""horovodrun predict: how a training job would scale on a cluster that is only described."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from horovod.common.knobs import KNOBS
from horovod.runner.cli import print_error
from horovod.runner.scaling.cluster import EXCHANGES, Cluster
from horovod.runner.scaling.model import Options, Prediction
from horovod.runner.scaling.model import predict as predict_step
from horovod.runner.scaling.networks import NETWORKS, program_of
from horovod.runner.scaling.predict_report import as_json, as_text
from horovod.runner.scaling.programs import InputError, Workload, model_json, read_model
from horovod.runner.scaling.trace import read_workload
from horovod.runner.scaling.units import parse_rate, parse_size, parse_time

# Ethernet, MTU 1500: a TCP segment has 1448 bytes of data (with timestamps) and takes 1538 on the wire.
LINK_EFFICIENCY = 1448 / 1538
MOST_HOSTS = 1 << 20
EXAMPLES = """\
examples:
  record some steps, then ask what 16 hosts of 4 ranks would do:
    horovodrun -np 2 --timeline-filename t.json python train.py
    horovodrun predict t.json --hosts 16 --ranks-per-host 4 --bandwidth 25Gbit/s --latency 20us
  a known network, of which one GPU needs 416 ms per step:
    horovodrun predict --model vgg16 --step-time 416ms --hosts 128 --ranks-per-host 4 \\
      --bandwidth 25Gbit/s --latency 20us
  the model of a timeline as a file, to change it by hand:
    horovodrun predict t.json --hosts 2 --bandwidth 10Gbit/s --save-model model.json
    horovodrun predict --from-json model.json --hosts 2 --bandwidth 10Gbit/s

documentation: docs/scaling.md and docs/scaling-model.md of the source
"""
_Value = TypeVar("_Value")


def predict(argv: list[str]) -> int:
    """Runs `horovodrun predict` with its arguments; returns its exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    _check(parser, args)
    try:
        workload, notes = _workload(args)
        if args.save_model is not None:
            _write(args.save_model, model_json(workload))
        options = Options(args.fusion_threshold, args.cycle_time, args.jitter)
        predictions = {
            exchange: [
                (cluster, predict_step(workload.programs, cluster, EXCHANGES[exchange], options))
                for cluster in _clusters(args)
            ]
            for exchange in args.exchange
        }
        _report(args, workload, predictions, options, notes)
    except InputError as error:
        print_error(str(error))
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Whoever read our output has left. Python must not try to flush what it still holds.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    return 0


def _report(
    args: argparse.Namespace,
    workload: Workload,
    predictions: dict[str, list[tuple[Cluster, Prediction]]],
    options: Options,
    notes: Sequence[str],
) -> None:
    document = as_json(workload, predictions, options, args.link_efficiency)
    if args.json is not None and str(args.json) == "-":
        print(json.dumps(document, indent=1), flush=True)
        return
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(as_text(workload, predictions, options, args.link_efficiency), flush=True)
    if args.json is not None:
        _write(args.json, json.dumps(document, indent=1) + "\n")


def _workload(args: argparse.Namespace) -> tuple[Workload, list[str]]:
    if args.model is not None:
        program = program_of(NETWORKS[args.model](), args.step_time)
        return Workload(args.model, "known network", (program,)), []
    if args.from_json is not None:
        return read_model(args.from_json), []
    return read_workload(args.timelines)


def _clusters(args: argparse.Namespace) -> list[Cluster]:
    return [
        Cluster(
            hosts,
            args.ranks_per_host,
            # One host alone needs no network, and then none has to be described.
            args.bandwidth * args.link_efficiency if args.bandwidth is not None else math.inf,
            args.latency,
            args.intra_host_bandwidth,
            args.intra_host_latency,
            args.servers,
        )
        for hosts in args.hosts
    ]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror}") from None


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    given = [bool(args.timelines), args.from_json is not None, args.model is not None]
    if sum(given) != 1:
        parser.error(
            "give what is to be predicted: timeline files, --model with --step-time, or --from-json"
            + (" (one of them)" if sum(given) else "")
        )
    if (args.model is None) != (args.step_time is None):
        parser.error(
            "--model and --step-time belong together: the time of a step of one rank alone"
        )
    if args.bandwidth is None and (max(args.hosts) > 1 or args.servers):
        parser.error("--bandwidth is missing: what one host can send, as in --bandwidth 25Gbit/s")


def _typed(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """A parser's ValueError as argparse wants to hear it."""

    def read(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _hosts(text: str) -> list[int]:
    """'8' means 1, 2, 4, 8; '1,6,12' just these."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() and len(word) < 9 for word in words):
        raise ValueError(f"expected a number of hosts such as 16, or a list 1,6,12, found '{text}'")
    numbers = sorted({int(word) for word in words})
    if numbers[0] < 1 or numbers[-1] > MOST_HOSTS:
        raise ValueError(f"expected 1 to {MOST_HOSTS} hosts, found '{text}'")
    if len(words) > 1:
        return numbers
    last = numbers[0]
    return [*(1 << power for power in range((last - 1).bit_length())), last]


def _count(least: int, what: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 7 and int(text) >= least):
            raise ValueError(f"expected {what}, a whole number from {least} up, found '{text}'")
        return int(text)

    return _typed(read)


def _share(text: str) -> float:
    """'3%' or '0.03'."""
    word, factor = (text[:-1], 0.01) if text.endswith("%") else (text, 1.0)
    try:
        value = float(word) * factor
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError(f"expected a share such as 3% or 0.03, found '{text}'")
    return value


def _positive_share(text: str) -> float:
    value = _share(text)
    if value == 0:
        raise ValueError(f"expected a share greater than 0, found '{text}'")
    return value


def _step_time(text: str) -> float:
    value = parse_time(text)
    if value == 0:
        raise ValueError(f"expected a time greater than 0, found '{text}'")
    return value


def _exchanges(text: str) -> list[str]:
    names = list(EXCHANGES) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in EXCHANGES]:
        raise ValueError(f"expected {', '.join(EXCHANGES)} or all, found '{unknown[0]}'")
    return list(dict.fromkeys(names))


def _default_of(variable: str) -> float:
    return float(next(knob.default for knob in KNOBS if knob.variable == variable))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="horovodrun predict",
        usage="horovodrun predict TIMELINE ... --hosts H [--ranks-per-host R] --bandwidth RATE [options]\n"
        "       horovodrun predict --model NAME --step-time TIME --hosts H --bandwidth RATE [options]\n"
        "       horovodrun predict --from-json FILE --hosts H --bandwidth RATE [options]",
        description="Predicts step time and efficiency of a training job on a cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_what(parser.add_argument_group("What is trained"))
    _add_cluster(parser.add_argument_group("The cluster"))
    _add_exchange(parser.add_argument_group("The exchange"))
    output = parser.add_argument_group("Output")
    output.add_argument("--json", type=Path, metavar="FILE", help="Also write JSON; - prints it.")
    output.add_argument(
        "--save-model", type=Path, metavar="FILE", help="Write the model, for --from-json."
    )
    return parser


def _add_what(group: Any) -> None:
    add = group.add_argument
    add(
        "timelines",
        nargs="*",
        type=Path,
        metavar="TIMELINE",
        help="Timeline of one rank, or those of several ranks of one job.",
    )
    add("--from-json", type=Path, metavar="FILE", help="Description of a model.")
    add("--model", choices=sorted(NETWORKS), help="A known network.")
    add(
        "--step-time",
        type=_typed(_step_time),
        metavar="TIME",
        help="For --model: a step of one rank alone, such as 416ms.",
    )


def _add_cluster(group: Any) -> None:
    add = group.add_argument
    add(
        "--hosts",
        type=_typed(_hosts),
        required=True,
        metavar="H",
        help="Number of hosts; 1, 2, 4, ... H are shown. Or a list: 1,6,12.",
    )
    add(
        "--ranks-per-host",
        type=_count(1, "ranks per host"),
        default=1,
        metavar="R",
        help="Default 1.",
    )
    add(
        "--bandwidth",
        type=_typed(parse_rate),
        metavar="RATE",
        help="Line rate of one host's link in each direction, such as 25Gbit/s or 3GB/s.",
    )
    add(
        "--latency",
        type=_typed(parse_time),
        default=20e-6,
        metavar="TIME",
        help="Of a small message from rank to rank of another host. Default 20us.",
    )
    add(
        "--link-efficiency",
        type=_typed(_positive_share),
        default=LINK_EFFICIENCY,
        metavar="SHARE",
        help="Share of the line rate that is payload. Default 94.1%%: headers of TCP over Ethernet. "
        "100%% if --bandwidth is what was measured.",
    )
    add(
        "--intra-host-bandwidth",
        type=_typed(parse_rate),
        default=10e9,
        metavar="RATE",
        help="What one rank can send to another of its host. Default 10GB/s.",
    )
    add(
        "--intra-host-latency",
        type=_typed(parse_time),
        default=5e-6,
        metavar="TIME",
        help="The same for a small message. Default 5us.",
    )
    add(
        "--jitter",
        type=_typed(_share),
        default=0.0,
        metavar="SHARE",
        help="Standard deviation of a rank's step time, as a share of it. Default 0.",
    )


def _add_exchange(group: Any) -> None:
    add = group.add_argument
    add(
        "--exchange",
        type=_typed(_exchanges),
        default=list(EXCHANGES),
        metavar="LIST",
        help=f"{', '.join(EXCHANGES)}, or all, which is the default.",
    )
    add(
        "--servers",
        type=_count(0, "parameter servers"),
        default=0,
        metavar="S",
        help="Parameter servers with hosts of their own. Default 0: one beside the ranks of each host.",
    )
    add(
        "--fusion-threshold",
        type=_typed(parse_size),
        default=_default_of("HOROVOD_FUSION_THRESHOLD"),
        metavar="SIZE",
        help="As HOROVOD_FUSION_THRESHOLD. Default 128MiB.",
    )
    add(
        "--cycle-time",
        type=_typed(parse_time),
        default=_default_of("HOROVOD_CYCLE_TIME") / 1e3,
        metavar="TIME",
        help="As HOROVOD_CYCLE_TIME. Default 1ms.",
    )
