"""The grammar of host lists (-H) and host files, as docs/hosts.md writes it down. Pure: text in, entries out.

list   = entry { "," entry }
entry  = host [ ":" slots ]
line   = [ host [ ":" slots ] { option } ] [ "#" anything ]
option = ( "slots" | "max_slots" | "max-slots" ) "=" slots
host   = [ user "@" ] ( name | IPv4 | "[" IPv6 [ "%" zone ] "]" )
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import NamedTuple

UNKNOWN_SLOTS = 0  # the host has as many slots as its agent counts
MAX_SLOTS = 65535  # more processes than this on a host is a slip of the finger
INVALID = "Invalid host input, please make sure it has format as : worker-0:2,worker-1:2."

# The first character is no dash: ssh would take such a host for one of its options.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*@")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]+)(%[A-Za-z0-9_.-]+)?\]")
_BLANKS = re.compile(r"[ \t]*")
_DIGITS = re.compile(r"[0-9]+")
_OPTION = re.compile(r"[A-Za-z][A-Za-z_-]*")
_OPTIONS = {"slots": "slots", "max_slots": "max_slots", "max-slots": "max_slots"}
_HOST_EXPECTED = "a host such as node1, user@node1, 10.0.0.1 or [fe80::1%eth0]"

Note = Callable[[str], None]


class HostEntry(NamedTuple):
    """A host as the text gives it: what ssh is given, its slots, and the most that it allows."""

    target: str
    slots: int
    max_slots: int | None = None


class Mistake(Exception):
    """What is wrong, and at which offset of the text."""

    def __init__(self, offset: int, text: str) -> None:
        super().__init__(text)
        self.offset = offset


class _Reader:
    """Walks over one line; every method that finds something steps over it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.offset = 0

    def blanks(self) -> None:
        found = _BLANKS.match(self._text, self.offset)
        self.offset = found.end() if found else self.offset

    def at_end(self) -> bool:
        return self.offset == len(self._text)

    def take(self, literal: str) -> bool:
        found = self._text.startswith(literal, self.offset)
        self.offset += len(literal) if found else 0
        return found

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self.offset)
        self.offset = found.end() if found else self.offset
        return found

    def wrong(self, expected: str) -> Mistake:
        return Mistake(self.offset, f"expected {expected}, found {self._found()}")

    def _found(self) -> str:
        if self.at_end():
            return "the end"
        rest = self._text[self.offset :]
        return repr(rest if len(rest) <= 40 else rest[:40] + "...")

    def host(self) -> str:
        """What ssh is given: `user@name`, or an address without its brackets."""
        begin = self.offset
        user = self.match(_USER)
        prefix = user.group() if user else ""
        if self._text.startswith("[", self.offset):
            return prefix + self._ipv6()
        name_begin = self.offset
        name = self.match(_NAME)
        if name is None:
            raise self.wrong(_HOST_EXPECTED)
        if _looks_like_ipv6(self._text, name_begin):
            self.offset = name_begin
            raise self.wrong("an IPv6 address in brackets, as in [fe80::1%eth0]:2")
        labels = name.group().split(".")
        if all(label.isdigit() for label in labels) and not _is_ipv4(name.group()):
            self.offset = begin
            raise self.wrong(f"{_HOST_EXPECTED}, and an IPv4 address of four numbers up to 255")
        if "" in labels[:-1] or name.group()[-1] == "-":
            self.offset = begin
            raise self.wrong(f"{_HOST_EXPECTED}, without an empty part and no '-' at its end")
        return prefix + name.group()

    def _ipv6(self) -> str:
        begin = self.offset
        found = self.match(_IPV6)
        try:
            if found is not None:
                return str(ipaddress.IPv6Address(found[1])) + (found[2] or "")
        except ValueError:
            self.offset = begin
        raise self.wrong("an IPv6 address in brackets, as in [fe80::1%eth0]")

    def number(self, what: str) -> int:
        begin = self.offset
        found = self.match(_DIGITS)
        if found is None:
            raise self.wrong(f"{what}, a number from 1 to {MAX_SLOTS}")
        digits = found.group().lstrip("0")
        # The length first: Python refuses to convert thousands of digits.
        if not digits or len(digits) > len(str(MAX_SLOTS)) or int(digits) > MAX_SLOTS:
            self.offset = begin
            least = " (a host must have at least one slot)" if not digits else ""
            raise self.wrong(f"{what}, a number from 1 to {MAX_SLOTS}{least}")
        return int(digits)


def _looks_like_ipv6(text: str, begin: int) -> bool:
    """Two colons in one word: '::1' and 'fe80::1' without brackets, not 'node1:2'."""
    word = re.match(r"[0-9A-Fa-f:.%]*", text[begin:])
    return word is not None and word.group().count(":") > 1


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def read_list(
    text: str, note: Note | None = None, *, slots_required: bool = False
) -> list[HostEntry]:
    """The entries of a host list, duplicates merged. ValueError with the column in the text."""
    try:
        merged = _Merged(note)
        for offset, entry in _read_list(text, slots_required=slots_required):
            merged.add(offset, entry, f"column {offset + 1} of the host list")
        return merged.entries()
    except Mistake as mistake:
        raise _invalid(text, mistake) from None


def read_single(text: str) -> HostEntry:
    """The entry of a text that is one `host:slots`. ValueError with the column in the text."""
    try:
        [(_, entry)] = _read_list(text, slots_required=True, single=True)
    except Mistake as mistake:
        raise _invalid(text, mistake) from None
    return entry


def _invalid(text: str, mistake: Mistake) -> ValueError:
    shown = text if len(text) <= 80 else text[:80] + "..."
    return ValueError(f"{INVALID} Column {mistake.offset + 1} of {shown!r}: {mistake}")


def _read_list(
    text: str, *, slots_required: bool, single: bool = False
) -> list[tuple[int, HostEntry]]:
    reader = _Reader(text)
    found: list[tuple[int, HostEntry]] = []
    while True:
        reader.blanks()
        begin = reader.offset
        target = reader.host()
        slots = UNKNOWN_SLOTS
        if reader.take(":"):
            slots = reader.number("the number of slots")
        elif slots_required:
            raise reader.wrong("':' and the number of slots")
        found.append((begin, HostEntry(target, slots)))
        reader.blanks()
        if reader.at_end():
            return found
        if single or not reader.take(","):
            follows = "the end" if single else "',' and the next host, or the end"
            raise reader.wrong(follows if slots else f"':' and the number of slots, {follows}")


def read_file(path: str, data: bytes, note: Note | None = None) -> list[HostEntry]:
    """The entries of a host file with the bytes `data`, duplicates merged.

    Raises ValueError that begins with `path:line:column: `.
    """
    merged = _Merged(note)
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            found = _read_line(_decoded(line.removesuffix(b"\r")))
            if found is not None:
                merged.add(found[0], found[1], f"{path}:{number}")
        except Mistake as mistake:
            raise ValueError(f"{path}:{number}:{mistake.offset + 1}: {mistake}") from None
    if not merged.entries():
        raise ValueError(
            f"{path}:{len(lines)}:1: no host in this file; expected lines such as 'worker-0 slots=2'"
        )
    return merged.entries()


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        offset = len(line[: error.start].decode())
        raise Mistake(offset, f"expected UTF-8, found byte 0x{line[error.start]:02x}") from None


def _read_line(line: str) -> tuple[int, HostEntry] | None:
    """The offset and the entry of a line; None when there is only a comment or nothing."""
    reader = _Reader(line.partition("#")[0])
    reader.blanks()
    if reader.at_end():
        return None
    begin = reader.offset
    target = reader.host()
    given: dict[str, int] = {}
    if reader.take(":"):
        given["slots"] = reader.number("the number of slots")
    after_host = reader.offset
    reader.blanks()
    while not reader.at_end():
        option_begin = reader.offset
        name = reader.match(_OPTION)
        key = _OPTIONS.get(name.group()) if name else None
        if key is None or option_begin == after_host:
            reader.offset = option_begin
            raise reader.wrong("slots=N, max_slots=N, a comment with # or the end of the line")
        if key in given:
            reader.offset = option_begin
            raise reader.wrong(f"{key} only once")
        reader.blanks()
        if not reader.take("="):
            raise reader.wrong(f"'=' after {name.group() if name else key}")
        reader.blanks()
        given[key] = reader.number(f"the value of {key}")
        after_host = reader.offset
        reader.blanks()
    slots, most = given.get("slots", UNKNOWN_SLOTS), given.get("max_slots")
    if most is not None and slots == UNKNOWN_SLOTS:
        raise Mistake(begin, f"expected slots=N beside max_slots={most} of host '{target}'")
    if most is not None and most < slots:
        raise Mistake(
            begin, f"expected max_slots of at least slots for '{target}', found {most} < {slots}"
        )
    return begin, HostEntry(target, slots, most)


class _Merged:
    """Hosts in the order of their first mention; the slots of later mentions are added."""

    def __init__(self, note: Note | None) -> None:
        self._entries: dict[str, HostEntry] = {}
        self._places: dict[str, str] = {}
        self._note = note

    def entries(self) -> list[HostEntry]:
        return list(self._entries.values())

    def add(self, offset: int, entry: HostEntry, place: str) -> None:
        target = entry.target
        before = self._entries.get(target)
        if before is None:
            self._entries[target], self._places[target] = entry, place
            return
        if UNKNOWN_SLOTS in (before.slots, entry.slots) and before.slots != entry.slots:
            raise Mistake(
                offset,
                f"expected host '{target}' always with or always without slots; "
                f"it stands in {self._places[target]} already",
            )
        limits = [most for most in (before.max_slots, entry.max_slots) if most is not None]
        slots, most = before.slots + entry.slots, min(limits, default=None)
        if slots > (MAX_SLOTS if most is None else most):
            raise Mistake(
                offset,
                f"expected at most {MAX_SLOTS if most is None else most} slots for host '{target}', "
                f"found {slots} with those of {self._places[target]}",
            )
        self._entries[target] = HostEntry(target, slots, most)
        if self._note is not None:
            count = "counted once" if slots == UNKNOWN_SLOTS else f"{slots} slots in all"
            self._note(
                f"{place}: host '{target}' stands in {self._places[target]} already; "
                f"they are merged, {count}"
            )
