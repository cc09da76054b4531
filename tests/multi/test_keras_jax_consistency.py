"""Consistency checks of `horovod.keras` with Keras 3 on JAX."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"

from collections.abc import Iterator

import pytest
from keras_consistency_cases import *  # noqa: F403

import horovod.keras as hvd

LAUNCHES = ["-np 2"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()
