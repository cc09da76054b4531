"""Autotune: finds fusion threshold, cycle time and use of the cache while a job trains.

`start` after the engine has started, `stop` before it is shut down; both do nothing unless
HOROVOD_AUTOTUNE is set. The parts, in the order of a tuning:

options.py           what the environment asks for
space.py             what may be chosen
gaussian_process.py  a model of the scores
search.py            what to measure next, by expected improvement
tuner.py             warm-up, searches, final: the whole tuning as a pure object
measure.py           a score from a running engine
log_file.py          the CSV file and its reader
driver.py            the thread that brings all this together
"""

from __future__ import annotations

from horovod import _core
from horovod.common.autotune.driver import Autotune
from horovod.common.autotune.log_file import AutotuneLogError, read_log
from horovod.common.autotune.options import Options, options_from_environment

__all__ = ["AutotuneLogError", "Options", "options_from_environment", "read_log", "start", "stop"]

_autotune = Autotune()


def start(options: Options, rank: int, size: int) -> None:
    """Begins to tune the engine of this process, on rank 0 and if asked for; returns at once.

    Args:
        options: from `options_from_environment`.
        rank: of this process.
        size: number of ranks.
    """
    _autotune.start(options, rank, size, _core)


def stop() -> None:
    """Ends tuning, within a tenth of a second; what was learnt serves the next engine of this size."""
    _autotune.stop()
