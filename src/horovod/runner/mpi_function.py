"""horovod.run(use_mpi=True): mpirun starts the workers; function and results travel by our store.

The workers learn address and key of the store from their environment, to which mpirun passes them. They
are told neither rank nor size in our variables, so the ranks meet over MPI as under any other mpirun.
"""

from __future__ import annotations

import base64
import os
import secrets

from horovod.runner.addresses import addresses_for
from horovod.runner.agent_link import package_root
from horovod.runner.driver import say_on_stderr
from horovod.runner.hosts import host_name
from horovod.runner.mpi_launch import MpiOptions, plan_mpirun, run_child
from horovod.runner.plan import KEY_VARIABLE, Plan
from horovod.runner.run_job import Values
from horovod.runner.store import EVERYWHERE, HERE, Store


def run_with_mpirun(plan: Plan, mpi_args: str | None, values: Values) -> tuple[int, Store]:
    """Runs the job to its end; returns mpirun's exit code, and the store with the results.

    Raises:
        ValueError: no MPI was found, or it can't do what was asked for.
    """
    options = MpiOptions.from_texts(mpi_args, False, None)
    remote = [host_name(target) for target in plan.remote_targets()]
    store = Store(secrets.token_bytes(32), say_on_stderr, EVERYWHERE if remote else HERE)
    for (scope, name), value in values.items():
        store.set_value(scope, name, value)
    try:
        address = addresses_for(remote, plan.interfaces, store.port)[0] if remote else HERE
        more = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store.port),
            KEY_VARIABLE: base64.b64encode(store.key).decode(),
        }
        root = package_root()
        if root is not None:
            paths = [path for path in (os.environ.get("PYTHONPATH"), root) if path]
            more["PYTHONPATH"] = os.pathsep.join(paths)
        start = plan_mpirun(plan, options, os.environ, more)
        store.start()
        return run_child(plan, start), store
    finally:
        store.stop()
