"""What a driver talks to when nobody has asked for --monitor: nothing happens."""

from __future__ import annotations


class Unwatched:
    """The calls that a driver makes.

    Attributes:
        next_at: when `refresh` wants to be called again, by the monotonic clock; None: never.
        is_live: a change of the terminal's size is worth a `refresh`, and `resumed` must be told.
    """

    next_at: float | None = None
    is_live: bool = False

    def started(self, rank: int, host: str) -> None:
        """The process of a rank runs."""

    def ended(self, rank: int, code: int) -> None:
        """The process of a rank has ended with that status."""

    def resumed(self) -> None:
        """Signal handler: the launcher goes on after Ctrl-Z, and others have used the terminal."""

    def refresh(self) -> None:
        """Shows what has come since the last call; called after every round of events."""
