"""Log messages in Horovod's format on stderr, through the standard logging module.

`[2026-01-31 12:00:00.000000: W connect.py:42] [3]: message`; the rank is left out while unknown.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from horovod.common import knobs

TRACE = 5
_LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_LETTERS = {number: name[0] for name, number in _LEVELS.items()}

logger = logging.getLogger("horovod")


class HorovodFormatter(logging.Formatter):
    """Writes one record in the format above."""

    def __init__(self, hide_time: bool, rank: int | None) -> None:
        super().__init__()
        self._hide_time = hide_time
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line without a final newline."""
        letter = _LETTERS.get(record.levelno, record.levelname[:1])
        head = f"{letter} {record.filename}:{record.lineno}"
        if not self._hide_time:
            seconds = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
            head = f"{seconds}.{int(record.created % 1 * 1e6):06d}: {head}"
        rank = "" if self._rank is None else f"[{self._rank}]: "
        text = f"[{head}] {rank}{record.getMessage()}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stderr is at that moment, as tests and notebooks replace it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


_handler = _StderrHandler()


def configure(rank: int | None = None, env: Mapping[str, str] | None = None) -> None:
    """Sets level and format from HOROVOD_LOG_LEVEL and HOROVOD_LOG_HIDE_TIME.

    Raises:
        ValueError: one of them has an illegal value.
    """
    logger.setLevel(_LEVELS[knobs.value_of("HOROVOD_LOG_LEVEL", env)])
    hide_time = knobs.value_of("HOROVOD_LOG_HIDE_TIME", env)
    _handler.setFormatter(HorovodFormatter(hide_time, rank))
    if _handler not in logger.handlers:
        logging.addLevelName(TRACE, "TRACE")
        logger.addHandler(_handler)
        logger.propagate = False
