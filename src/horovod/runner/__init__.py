"""The launcher: horovodrun and horovod.run. Nothing here needs the compiled core or a framework."""

from __future__ import annotations

from horovod.runner.run_function import run

__all__ = ["run"]
