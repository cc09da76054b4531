"""Unit tests of horovod.numpy use the stand-in core of the tests of horovod.common."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "common"))

from fake_core_fixtures import core, world  # noqa: F401
