"""Collectives inside functions that XLA compiles."""

from __future__ import annotations


def in_compiled_function() -> bool:
    return False
