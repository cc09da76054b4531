"""A time limit that several activities share."""

from __future__ import annotations

import time


class TimeoutException(Exception):
    """The time limit has passed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class Timeout:
    """`message` may contain `{timeout}` and `{activity}`."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._end = time.monotonic() + timeout
        self._message = message

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether no time is left."""
        return self.remaining() == 0.0

    def check_time_out_for(self, activity: str) -> None:
        """Raises TimeoutException when no time is left."""
        if self.timed_out():
            raise TimeoutException(
                self._message.format(activity=activity, timeout=f"{self._timeout:g}")
            )
