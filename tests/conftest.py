"""Shared by all tests: every rank writes the outcome of its tests where the runner finds them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

OUTCOMES = pytest.StashKey[dict[str, str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OUTCOMES] = {}


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):
    result = yield
    report = result.get_result()
    outcomes = item.config.stash[OUTCOMES]
    if report.when == "call" or report.outcome != "passed":
        # A failure of set-up or clean-up counts for the test it belongs to.
        outcomes[item.nodeid] = report.outcome


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    folder = os.environ.get("HVD_TEST_RESULTS")
    if folder is None:
        return
    outcomes = session.config.stash[OUTCOMES]
    if exitstatus not in (0, 1, 5):
        outcomes["(session)"] = "failed"
    rank = os.environ.get("HOROVOD_RANK", "0")
    (Path(folder) / f"{rank}.json").write_text(json.dumps(outcomes))
