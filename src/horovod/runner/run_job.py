"""Runs a planned job: key, store and driver together."""

from __future__ import annotations

import os
import secrets
import sys

from horovod.runner.driver import Driver, Outcome, say_on_stderr
from horovod.runner.output import Output
from horovod.runner.plan import Plan
from horovod.runner.store import EVERYWHERE, HERE, Store

Values = dict[tuple[str, str], bytes]
MONITOR_SCOPE = "monitor"


def run_job(
    plan: Plan, values: Values | None = None, owns_process: bool = False
) -> tuple[Outcome, Store]:
    """Runs `plan` to its end. Workers find `values` in the store, and the caller theirs afterwards."""
    if plan.monitor_seconds is not None:
        return _run_watched(plan, plan.monitor_seconds, values, owns_process)
    output = Output(plan.num_proc, plan.output_directory, plan.timestamps)
    store = Store(secrets.token_bytes(32), say_on_stderr, _reach(plan))
    _set_values(store, values)
    try:
        outcome = Driver(plan, output, store, say_on_stderr, owns_process).run()
    finally:
        store.stop()
    return outcome, store


def _run_watched(
    plan: Plan, every: float, values: Values | None, owns_process: bool
) -> tuple[Outcome, Store]:
    from horovod.runner.monitor.monitor import open_monitor

    monitor = open_monitor(plan.num_proc, every, sys.stdout, sys.stderr, os.environ)
    output = Output(plan.num_proc, plan.output_directory, plan.timestamps, monitor.sinks)
    takers = {MONITOR_SCOPE: monitor.take}
    store = Store(secrets.token_bytes(32), monitor.say, _reach(plan), takers)
    _set_values(store, values)
    abandoned = False
    try:
        outcome = Driver(plan, output, store, monitor.say, owns_process, monitor).run()
        abandoned = outcome.abandoned  # whoever takes our output may be held: do not wait for it
    finally:
        store.stop()
        if not abandoned:
            monitor.close()
    return outcome, store


def _reach(plan: Plan) -> str:
    return EVERYWHERE if plan.remote_targets() else HERE


def _set_values(store: Store, values: Values | None) -> None:
    for (scope, name), value in (values or {}).items():
        store.set_value(scope, name, value)
