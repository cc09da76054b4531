"""The checks of `horovodrun doctor`, by topic. They run on every host and need nothing but Python."""

from __future__ import annotations

from horovod.runner.doctor_checks.finding import Finding

__all__ = ["Finding"]
