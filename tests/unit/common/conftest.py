"""Unit tests of horovod.common run in one process; a stand-in takes the compiled core's place."""

from __future__ import annotations

from fake_core_fixtures import core, world  # noqa: F401
