"""Reads the dumps of a folder and checks that they belong together; says where a bad one is bad."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horovod.runner.flight_recorder.dump import (
    FORMAT,
    KINDS,
    REASONS,
    STATES,
    VERSION,
    Blocked,
    Dump,
    Operation,
)

FILE_NAME = re.compile(r"rank(\d+)\.json")
LEFT_OVER_SECONDS = (
    600  # dumps of one event are written within a stall's warning time of each other
)


class DumpError(ValueError):
    """A file or folder that cannot be read as dumps; the text says where and why."""


@dataclass(frozen=True)
class Folder:
    """What was found in a folder.

    Attributes:
        dumps: by rank.
        unreadable: by rank, why its file could not be read.
        warnings: what is odd but no reason to give up.
    """

    dumps: Mapping[int, Dump]
    unreadable: Mapping[int, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def read_folder(path: Path) -> Folder:
    """Reads `rank<r>.json` of all ranks.

    Raises:
        DumpError: it is no folder, has no dumps, no readable one, or dumps of different jobs.
    """
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise DumpError(
            f"{path} {what}; expected the folder with the files rank0.json, rank1.json, ... that the "
            "flight recorder wrote."
        )
    found = _files(path)
    if not found:
        raise DumpError(
            f"{path} has no file rank<r>.json. The recorder writes when a job is aborted or stalls, and "
            "on its signal; see docs/flight-recorder.md for where."
        )
    dumps: dict[int, Dump] = {}
    unreadable: dict[int, str] = {}
    for rank, file in sorted(found.items()):
        try:
            dumps[rank] = _read(file, rank)
        except DumpError as error:
            unreadable[rank] = str(error)
    if not dumps:
        raise DumpError("\n".join(unreadable.values()))
    check_one_job(dumps)
    return Folder(dumps, unreadable, tuple(_oddities(dumps)))


def _files(folder: Path) -> dict[int, Path]:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise DumpError(f"{folder}: {error.strerror}") from None
    matches = [(FILE_NAME.fullmatch(name), folder / name) for name in names]
    return {int(match[1]): file for match, file in matches if match}


def _read(file: Path, rank: int) -> Dump:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DumpError(f"{file}: {error.strerror}") from None
    dump = parse_dump(data, str(file))
    if dump.rank != rank:
        raise DumpError(f"{file}: its name says rank {rank}, and in it rank is {dump.rank}.")
    return dump


def parse_dump(data: bytes, source: str) -> Dump:
    """Returns the dump that a file holds.

    Raises:
        DumpError: not UTF-8, not JSON (with line and column), another format or version, or a field that
            is missing or of another type (with its place).
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise DumpError(
            f"{source}:{line}:{column}: this byte is not UTF-8; the file is damaged."
        ) from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        at_end = not text[error.pos :].strip()
        why = "the file ends too early (truncated)" if at_end else error.msg
        raise DumpError(f"{source}:{error.lineno}:{error.colno}: no valid JSON: {why}.") from None
    except RecursionError:
        raise DumpError(
            f"{source}: JSON nested too deeply to be a flight recorder's dump."
        ) from None
    return _dump(content, source)


_INT: tuple[type, ...] = (int,)
_NUMBER: tuple[type, ...] = (int, float)
_STR: tuple[type, ...] = (str,)
_WORDS: dict[tuple[type, ...], str] = {
    _INT: "a whole number",
    _NUMBER: "a number",
    _STR: "a text",
    (list,): "a list",
    (dict,): "an object",
}


def _is_a(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


class _Fields:
    """Typed access to an object of JSON; errors name file and field."""

    def __init__(self, source: str, place: str, content: Any) -> None:
        self._source = source
        self._place = place
        if not isinstance(content, dict):
            raise self.error(f"{place or 'the file'} is {_shown(content)}, expected an object")
        self._content = content

    def error(self, text: str) -> DumpError:
        return DumpError(f"{self._source}: {text}.")

    def _name(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def get(self, key: str, types: tuple[type, ...]) -> Any:
        if key not in self._content:
            raise self.error(f"{self._name(key)} is missing")
        value = self._content[key]
        if not _is_a(value, types):
            raise self.error(f"{self._name(key)} is {_shown(value)}, expected {_WORDS[types]}")
        return value

    def optional(self, key: str, types: tuple[type, ...]) -> Any:
        return None if self._content.get(key) is None else self.get(key, types)

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        value: str = self.get(key, _STR)
        if value not in choices:
            raise self.error(
                f"{self._name(key)} is {_shown(value)}, expected one of {', '.join(choices)}"
            )
        return value

    def items(self, key: str) -> list[_Fields]:
        values = self.get(key, (list,))
        place = self._name(key)
        return [_Fields(self._source, f"{place}[{i}]", value) for i, value in enumerate(values)]

    def list_of(self, key: str, types: tuple[type, ...]) -> tuple[Any, ...]:
        values = self.get(key, (list,))
        for i, value in enumerate(values):
            if not _is_a(value, types):
                raise self.error(
                    f"{self._name(key)}[{i}] is {_shown(value)}, expected {_WORDS[types]}"
                )
        return tuple(values)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _dump(content: Any, source: str) -> Dump:
    fields = _Fields(source, "", content)
    if fields.get("format", _STR) != FORMAT:
        raise fields.error(f"format is {_shown(content['format'])}, expected {_shown(FORMAT)}")
    version = fields.get("version", _INT)
    if version != VERSION:
        raise fields.error(
            f"version is {version}, and this horovodrun reads version {VERSION}; use the horovodrun of "
            "the version that the job ran with"
        )
    size = fields.get("size", _INT)
    rank = fields.get("rank", _INT)
    hosts = fields.list_of("hosts", _STR)
    if not 0 <= rank < size:
        raise fields.error(f"rank is {rank}, expected 0 to {size - 1} as size is {size}")
    if len(hosts) != size:
        raise fields.error(f"hosts has {len(hosts)} entries, expected {size} as size is {size}")
    operations = tuple(_operation(item) for item in fields.items("operations"))
    for i in range(1, len(operations)):
        if operations[i].serial <= operations[i - 1].serial:
            raise fields.error(f"operations[{i}].serial does not exceed the one before it")
    return Dump(
        source=source,
        rank=rank,
        size=size,
        host=fields.get("host", _STR),
        hosts=hosts,
        pid=fields.get("pid", _INT),
        reason=fields.choice("reason", REASONS),
        text=fields.get("text", _STR),
        time=float(fields.get("time", _NUMBER)),
        monotonic=float(fields.get("monotonic", _NUMBER)),
        capacity=fields.get("capacity", _INT),
        recorded=fields.get("recorded", _INT),
        operations=operations,
        blocked=tuple(
            Blocked(item.get("name", _STR), float(item.get("since", _NUMBER)))
            for item in fields.items("blocked")
        ),
        stacks=fields.get("stacks", _STR),
        process_sets=_process_sets(fields),
    )


def _operation(fields: _Fields) -> Operation:
    return Operation(
        serial=fields.get("serial", _INT),
        process_set=fields.get("process_set", _INT),
        set_serial=fields.get("set_serial", _INT),
        name=fields.get("name", _STR),
        kind=fields.choice("kind", KINDS),
        dtype=fields.optional("dtype", _STR) or "",
        shape=fields.list_of("shape", _INT) if fields.optional("shape", (list,)) else (),
        op=fields.optional("op", _STR) or "",
        root=_or(fields.optional("root", _INT), -1),
        group=fields.optional("group", _STR) or "",
        bytes=fields.optional("bytes", _INT) or 0,
        state=fields.choice("state", STATES),
        submitted=float(fields.get("submitted", _NUMBER)),
        agreed=fields.optional("agreed", _NUMBER),
        started=fields.optional("started", _NUMBER),
        finished=fields.optional("finished", _NUMBER),
        response=fields.optional("response", _INT),
        error=fields.optional("error", _STR) or "",
    )


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _process_sets(fields: _Fields) -> dict[int, tuple[int, ...]]:
    content = fields.optional("process_sets", (dict,)) or {}
    inner = _Fields("", "", content)
    found: dict[int, tuple[int, ...]] = {}
    for key in content:
        if not key.isdecimal():
            raise fields.error(f"process_sets has the key {_shown(key)}, expected a number")
        try:
            found[int(key)] = inner.list_of(key, _INT)
        except DumpError:
            raise fields.error(f"process_sets.{key} is no list of ranks") from None
    return found


def check_one_job(dumps: Mapping[int, Dump]) -> None:
    """Raises DumpError unless all dumps name the same size and hosts."""
    first = dumps[min(dumps)]
    for dump in dumps.values():
        if dump.size != first.size:
            raise DumpError(
                f"These are dumps of different jobs: {first.source} is of a job of {first.size} ranks, "
                f"{dump.source} of one of {dump.size}. Remove those that do not belong."
            )
        if dump.hosts != first.hosts:
            raise DumpError(
                f"These are dumps of different jobs: {first.source} says that the ranks are on "
                f"{_hosts(first)}, {dump.source} that they are on {_hosts(dump)}. Remove those that do "
                "not belong."
            )


def _hosts(dump: Dump) -> str:
    names = list(dict.fromkeys(dump.hosts))
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _oddities(dumps: Mapping[int, Dump]) -> list[str]:
    newest = max(dump.time for dump in dumps.values())
    return [
        f"{dump.source} was written {newest - dump.time:.0f} s before the newest dump: it may be left over "
        "from an earlier event or job."
        for dump in dumps.values()
        if newest - dump.time > LEFT_OVER_SECONDS
    ]
