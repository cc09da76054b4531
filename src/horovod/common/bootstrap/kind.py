"""What a kind of bootstrap answers: can it work here, who is this process, and an all-gather."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

Environment = Mapping[str, str]
OnWaiting = Callable[[list[int]], None]


class Identity(NamedTuple):
    """Who this process is in the job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    host: str


class Session(Protocol):
    """One round of meeting the other ranks.

    Attributes:
        key: secret of the job, equal on all ranks.
        local_address: address by which other ranks can reach this process.
    """

    key: bytes
    local_address: str

    def exchange(self, blob: bytes, timeout: float, on_waiting: OnWaiting) -> list[bytes]:
        """All-gathers one blob per rank; calls `on_waiting` with the missing ranks now and then.

        Raises:
            TimeoutError: some ranks did not come.
        """
        ...

    def close(self) -> None:
        """Hangs up."""
        ...


class Kind(Protocol):
    """A module of this package: one way in which a process may have been started."""

    NAME: str

    def why_not(self, env: Environment) -> str | None:
        """None when this process was started in this way, otherwise a sentence saying why not."""
        ...

    def identity(self, env: Environment) -> Identity:
        """Returns who this process is; ValueError when the variables contradict each other."""
        ...

    def open_session(self, env: Environment, round_number: int, timeout: float) -> Session:
        """Prepares the exchange of the given round; every init of a process is a new round."""
        ...


def whole_number(env: Environment, name: str, default: int | None = None) -> int:
    """Returns the number in a variable.

    Raises:
        ValueError: it is not set and there is no default, or it is not a number >= 0.
    """
    text = env.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdecimal():
        raise ValueError(f"{name}={text!r}: expected a whole number >= 0")
    return int(text)


def check_identity(identity: Identity) -> Identity:
    """Raises ValueError when the numbers contradict each other."""
    for part in ("rank", "local_rank", "cross_rank"):
        size_part = part.replace("rank", "size")
        number, size = getattr(identity, part), getattr(identity, size_part)
        if not 0 <= number < size:
            raise ValueError(f"{part} {number} does not fit {size_part} {size}: {identity}")
    return identity
