"""The knob table as command-line flags, and the chosen values as variables for the workers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from horovod.common.knobs import KNOBS, Knob

# Headings of the help under which flags of the table stand.
JOB, MPI, TUNING, DIAGNOSIS = "Job", "MPI", "Tuning", "Diagnosis"
_DIAGNOSTIC = (
    "HOROVOD_STALL_",
    "HOROVOD_TIMELINE",
    "HOROVOD_METRICS_",
    "HOROVOD_FLIGHT_RECORDER_",
    "HOROVOD_CHECK_CONSISTENCY_",
)
# Where the default is no single value.
_DEFAULT_TEXTS = {"HOROVOD_START_TIMEOUT": "grows with the number of hosts"}


def option_knobs() -> list[Knob]:
    """The knobs that have a flag or a key in the configuration file."""
    return [knob for knob in KNOBS if knob.flags or knob.yaml_key]


def destination(knob: Knob) -> str:
    """The attribute of the parsed arguments that holds a knob's value; None there: not given."""
    name = knob.flags[0] if knob.flags else str(knob.yaml_key).rpartition(".")[2]
    return name.lstrip("-").replace("-", "_")


def option_name(knob: Knob) -> str:
    """How a user calls the knob."""
    return knob.flags[0] if knob.flags else str(knob.yaml_key)


def _heading(knob: Knob) -> str:
    if knob.variable.startswith("HOROVOD_MPI_"):
        return MPI
    if knob.variable.startswith(_DIAGNOSTIC) or knob.scope == "log":
        return DIAGNOSIS
    if knob.variable.startswith("HOROVOD_AUTOTUNE"):
        return TUNING
    return JOB if knob.scope == "start" else TUNING


def add_knob_flags(groups: Mapping[str, argparse._ArgumentGroup]) -> None:
    """One flag, or a pair, for every row that has some; `groups` has all headings."""
    for knob in KNOBS:
        if not knob.flags:
            continue
        group = groups[_heading(knob)]
        if knob.type == "bool":
            _add_pair(group, knob)
        else:
            group.add_argument(
                *knob.flags,
                dest=destination(knob),
                type=_converter(knob),
                choices=knob.choices or None,
                metavar=_metavar(knob),
                help=f"{knob.help} ({knob.variable}; default {_default(knob)})".replace("%", "%%"),
            )


def _add_pair(group: argparse._ArgumentGroup, knob: Knob) -> None:
    pair = group.add_mutually_exclusive_group()
    dest = destination(knob)
    pair.add_argument(
        *knob.flags,
        dest=dest,
        action="store_const",
        const=True,
        help=f"{knob.help} ({knob.variable}=1)".replace("%", "%%"),
    )
    if knob.negative_flag is not None:
        pair.add_argument(
            knob.negative_flag,
            dest=dest,
            action="store_const",
            const=False,
            help=f"The opposite of {knob.flags[0]}. ({knob.variable}=0)",
        )


def _metavar(knob: Knob) -> str | None:
    if knob.choices:
        return None
    return {"int": "N", "float": "X"}.get(knob.type, "VALUE") if knob.scale == 1 else "MB"


def _default(knob: Knob) -> Any:
    if knob.variable in _DEFAULT_TEXTS:
        return _DEFAULT_TEXTS[knob.variable]
    if not knob.default:
        return knob.default if knob.type in ("int", "float") else "unset"
    return knob.default // knob.scale if knob.type == "int" else knob.default


def _converter(knob: Knob) -> Any:
    """How argparse reads a value; it puts the function's name into its error message."""
    if knob.type == "int":
        return int
    if knob.type == "float":
        return float
    if knob.type == "choice":
        return str.upper if knob.choices[0].isupper() else str.lower
    return str


def variable_text(knob: Knob, value: Any) -> str:
    """The variable's text for a flag's value; raises ValueError for an illegal one."""
    if knob.type == "bool":
        return "1" if value else "0"
    if knob.type in ("int", "float"):
        if not knob.is_within_bounds(value * knob.scale):
            raise ValueError(f"{option_name(knob)}={value} must be{knob.bounds_text()}")
        return str(value * knob.scale)
    text = str(value)
    if knob.type == "int_list" and not all(part.strip().isdigit() for part in text.split(",")):
        raise ValueError(
            f"{option_name(knob)}={text} must be numbers >= 0 with commas between them"
        )
    return text


def validate_config_args(args: argparse.Namespace) -> None:
    """Raises ValueError when a chosen value is illegal."""
    set_env_from_args({}, args)


def set_env_from_args(env: dict[str, str], args: argparse.Namespace) -> dict[str, str]:
    """Sets the variable of every knob that was given; others keep what `env` has."""
    for knob in option_knobs():
        value = getattr(args, destination(knob), None)
        if value is not None:
            env[knob.variable] = variable_text(knob, value)
    return env
