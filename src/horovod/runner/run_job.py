"""Runs a planned job: key, store and driver together."""

from __future__ import annotations

import secrets

from horovod.runner.driver import Driver, Outcome, say_on_stderr
from horovod.runner.output import Output
from horovod.runner.plan import Plan
from horovod.runner.store import EVERYWHERE, HERE, Store

Values = dict[tuple[str, str], bytes]


def run_job(
    plan: Plan, values: Values | None = None, owns_process: bool = False
) -> tuple[Outcome, Store]:
    """Runs `plan` to its end. Workers find `values` in the store, and the caller theirs afterwards."""
    output = Output(plan.num_proc, plan.output_directory, plan.timestamps)
    reach = EVERYWHERE if plan.remote_targets() else HERE
    store = Store(secrets.token_bytes(32), say_on_stderr, reach)
    for (scope, name), value in (values or {}).items():
        store.set_value(scope, name, value)
    try:
        outcome = Driver(plan, output, store, say_on_stderr, owns_process).run()
    finally:
        store.stop()
    return outcome, store
