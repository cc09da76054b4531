"""How SLURM writes lists of nodes and of counts per node in its variables."""

from __future__ import annotations

import re
from collections.abc import Iterator


def tasks_per_node(text: str) -> list[int]:
    """Returns the tasks of every node, from `2(x3),1` for instance: [2, 2, 2, 1].

    Raises:
        ValueError: it is not in that notation.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise ValueError(f"tasks per node {text!r}: expected a form such as '2(x3),1'")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def nodes(text: str) -> Iterator[str]:
    """Yields the names of a node list, `gpu[01-02,07],login` for instance: gpu01, gpu02, gpu07, login.

    Raises:
        ValueError: it is not in that notation.
    """
    for item in _split(text):
        yield from _expand(item, text)


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    items = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text)
    if ",".join(items) != text or not items:
        raise ValueError(f"node list {text!r}: expected a form such as 'gpu[01-04,07],login'")
    return items


def _expand(item: str, text: str) -> Iterator[str]:
    before, bracket, rest = item.partition("[")
    if not bracket:
        yield before
        return
    inside, _, after = rest.partition("]")
    for part in inside.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None:
            raise ValueError(f"node list {text!r}: {part!r} is neither a number nor a range")
        low, high = found[1], found[2] or found[1]
        for number in range(int(low), int(high) + 1):
            for tail in _expand(after, text):
                yield f"{before}{number:0{len(low)}d}{tail}"
