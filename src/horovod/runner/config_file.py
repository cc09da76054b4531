"""Reads the YAML file of --config-file; whatever is wrong in it is named with file and line."""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

from horovod.common.knobs import Knob
from horovod.runner.knob_options import destination, option_knobs, variable_text

if TYPE_CHECKING:
    import yaml

# Keys of Horovod 0.28 whose feature does not exist yet. `false` and nothing ask for nothing.
LATER_KEYS: dict[str, str] = {
    "params.hierarchical_allreduce": "the choice of algorithm",
    "params.hierarchical_allgather": "the choice of algorithm",
    "params.torus_allreduce": "the choice of algorithm",
    "library_options.num_nccl_streams": "the NCCL backend",
}

CONTROLLER_KEY = "controller"

_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "bool": (bool, "true or false"),
    "str": (str, "text"),
    "path": (str, "a path"),
    "choice": (str, "text"),
    "int_list": ((int, str), "numbers with commas between them"),
}


class ConfigError(ValueError):
    """Something in the configuration file is wrong; the text begins with file and line."""


class _Entry(NamedTuple):
    value: Any
    place: str  # file:line


def read_config(path: str) -> dict[str, Any]:
    """The values that a file gives, by the name of the argument that they stand for.

    Raises ConfigError for syntax errors, unknown keys, wrong types and illegal values.
    """
    entries = _entries(path)
    by_key = {str(knob.yaml_key): knob for knob in option_knobs() if knob.yaml_key}
    values: dict[str, Any] = {}
    for key, (value, place) in entries.items():
        if key == CONTROLLER_KEY and str(value).lower() == "mpi":
            # Not the variable's value: mpirun starts the processes, the engine is the same.
            values["use_mpi"] = True
        elif key in by_key:
            knob = by_key[key]
            if value is not None:
                try:
                    values[destination(knob)] = checked_value(knob, value)
                except ValueError as error:
                    raise ConfigError(f"{place}: {key}: {error}") from None
        elif key not in LATER_KEYS:
            raise ConfigError(f"{place}: {_unknown(key, [*by_key, *LATER_KEYS])}")
        elif value is not None and value is not False:
            raise ConfigError(f"{place}: {key}: {LATER_KEYS[key]} is not available yet")
    return values


def set_args_from_config(
    args: argparse.Namespace, config: dict[str, Any], override_args: set[str] | None = None
) -> None:
    """Fills in what was not given on the command line (or is named in `override_args`)."""
    for name, value in config.items():
        if name not in (override_args or ()) and getattr(args, name, None) is None:
            setattr(args, name, value)


def _entries(path: str) -> dict[str, _Entry]:
    """All values of the file under their dotted keys."""
    import yaml

    try:
        with open(path, encoding="utf-8") as file:
            loader = yaml.SafeLoader(file.read())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    found: dict[str, _Entry] = {}
    try:
        root = loader.get_single_node()
        if root is not None:
            _collect(path, loader, root, "", found)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{path}:{line}: not valid YAML: {error.problem}") from None
    finally:
        loader.dispose()
    return found


def _collect(
    path: str, loader: yaml.SafeLoader, node: yaml.Node, prefix: str, found: dict[str, _Entry]
) -> None:
    import yaml

    place = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        where = f"section '{prefix}'" if prefix else "the file"
        raise ConfigError(f"{place}: {where} must hold lines 'key: value'")
    for key_node, value_node in node.value:
        name = str(loader.construct_object(key_node))
        key = f"{prefix}.{name}" if prefix else name
        place = f"{path}:{key_node.start_mark.line + 1}"
        empty = isinstance(value_node, yaml.ScalarNode) and value_node.value in ("", "~", "null")
        if key in _sections():
            if not empty:
                _collect(path, loader, value_node, key, found)
            continue
        if key in found:
            raise ConfigError(f"{place}: {key} is given twice")
        found[key] = _Entry(loader.construct_object(value_node, deep=True), place)


def _sections() -> set[str]:
    keys = [*LATER_KEYS, *(str(knob.yaml_key) for knob in option_knobs() if knob.yaml_key)]
    return {key.partition(".")[0] for key in keys if "." in key}


def _unknown(key: str, known: list[str]) -> str:
    name = key.rpartition(".")[2]
    # The right name in the wrong section, then what is spelled alike.
    elsewhere = [other for other in known if other.rpartition(".")[2] == name]
    alike = difflib.get_close_matches(
        key, known if "." in key else [*known, *_sections()], n=1, cutoff=0.5
    )
    nearest = (elsewhere + alike)[:1]
    hint = f"; did you mean '{nearest[0]}'?" if nearest else f"; known are {', '.join(known)}"
    return f"unknown key '{key}'{hint}"


def checked_value(knob: Knob, value: Any) -> Any:
    """The argument that the value of a knob's key stands for. ValueError says what was expected."""
    accepted, expected = _TYPES[knob.type]
    if knob.type == "int_list" and isinstance(value, list):
        value = ",".join(str(item) for item in value)
    wrong_bool = isinstance(value, bool) and knob.type != "bool"
    if not isinstance(value, accepted) or wrong_bool:
        raise ValueError(f"expected {expected}, found {value!r} ({type(value).__name__})")
    if knob.type == "choice":
        by_lower = {choice.lower(): choice for choice in knob.choices}
        if str(value).lower() not in by_lower:
            choices = (*knob.choices, *(("mpi",) if knob.yaml_key == CONTROLLER_KEY else ()))
            raise ValueError(f"'{value}' is not one of {', '.join(choices)}")
        return by_lower[str(value).lower()]
    if knob.inverted:
        return not value
    variable_text(knob, value)
    return value
