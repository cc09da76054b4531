"""The Python frame in which a rank's main thread was, from the text of its stacks."""

from __future__ import annotations

import re
from dataclasses import dataclass

# faulthandler: `  File "a.py", line 3 in f`; traceback: `  File "a.py", line 3, in f`.
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+|\?+),? in (?P<function>.+)')
_HEADER = re.compile(r"^(Current )?thread\b|^-+ ?thread\b|MainThread", re.IGNORECASE)
_MAIN = re.compile(r"main ?thread|\bmain\b", re.IGNORECASE)
_OURS = re.compile(r"/horovod/(_keras|common|keras|numpy|tensorflow|torch)/")
_LAST_FIRST = "most recent call first"
_LAST_LAST = "most recent call last"


@dataclass(frozen=True)
class Frame:
    """A line of Python code that is being executed."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{_short(self.file)}:{self.line} in {self.function}"

    @property
    def is_ours(self) -> bool:
        """True inside this package."""
        return _OURS.search(self.file) is not None


def _short(file: str) -> str:
    parts = file.split("/")
    return "/".join(parts[-2:]) if len(parts) > 2 else file


def main_frames(stacks: str) -> list[Frame]:
    """Returns the frames of the main thread, innermost first; empty if there are none.

    The main thread is the one whose header says so, else the last, where faulthandler puts it.
    """
    sections: list[tuple[str, list[str]]] = []
    for line in stacks.splitlines():
        is_frame = _FRAME.match(line)
        if not is_frame and _HEADER.search(line.strip()) and not line.startswith("    "):
            sections.append((line, []))
        elif not sections:
            sections.append(("", [line]))
        else:
            sections[-1][1].append(line)
    with_frames = [
        (header, lines) for header, lines in sections if any(_FRAME.match(line) for line in lines)
    ]
    if not with_frames:
        return []
    header, lines = next(
        (section for section in with_frames if _MAIN.search(section[0])), with_frames[-1]
    )
    matches = [match for line in lines if (match := _FRAME.match(line))]
    frames = [Frame(match["file"], match["line"], match["function"]) for match in matches]
    said = header + "\n".join(lines)
    has_comma = any(re.search(r"line \d+, in ", line) for line in lines)
    if _LAST_LAST in said or (_LAST_FIRST not in said and has_comma):
        frames.reverse()
    return frames


def where(stacks: str) -> str:
    """Returns the innermost frame of the main thread as text, empty if unknown.

    If that is inside this package, the frame that called it is named too.
    """
    frames = main_frames(stacks)
    if not frames:
        return ""
    inner = frames[0]
    if not inner.is_ours:
        return str(inner)
    caller = next((frame for frame in frames if not frame.is_ours), None)
    return f"{inner}, called from {caller}" if caller else str(inner)
