"""A job that prepares data for training jobs.

    horovodrun -np 4 python -m horovod.tensorflow.data.compute_worker /tmp/compute.json

Every process is a worker of a tf.data service. The file says where training jobs find it; a training job ends
the workers with `TfDataServiceConfig.read(file).compute_client().shutdown()`.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

import horovod.tensorflow as hvd
from horovod.runner.common.service.compute_service import ComputeService
from horovod.runner.common.util.secret import make_secret_key
from horovod.tensorflow.data.compute_service import (
    DISPATCHER_SIDES,
    TfDataServiceConfig,
    compute_worker_fn,
)


def main(dispatchers: int, dispatcher_side: str, configfile: str, timeout: int) -> None:
    """Runs the workers until a training job ends them; to be called on all ranks of a job.

    Args:
        dispatchers: number of dispatchers, among which the processes are shared equally.
        dispatcher_side: "compute": some of the processes run them; "training": the training job does.
        configfile: file that rank 0 writes for training jobs, and removes in the end.
        timeout: seconds within which dispatchers and workers must have registered.

    Raises:
        ValueError: the number of processes is no multiple of the number of dispatchers.
        TimeoutException: a dispatcher did not register in time.
    """
    hvd.init()
    if dispatchers < 1 or hvd.size() % dispatchers:
        raise ValueError(
            f"The number of processes ({hvd.size()}) must be a multiple of the number of dispatchers "
            f"({dispatchers})."
        )
    with ExitStack() as stack:
        config = None
        if hvd.rank() == 0:
            key = make_secret_key()
            service = ComputeService(dispatchers, hvd.size() // dispatchers, key)
            stack.callback(service.shutdown)
            config = TfDataServiceConfig(
                dispatchers=dispatchers,
                workers_per_dispatcher=hvd.size() // dispatchers,
                dispatcher_side=dispatcher_side,
                addresses=service.addresses(),
                key=key,
                timeout=timeout,
            )
            config.write(configfile)
            # Or the next training job would look for a service that is gone.
            stack.callback(Path(configfile).unlink, missing_ok=True)
        config = hvd.broadcast_object(config, name="compute_config")
        compute_worker_fn(config)
        # The service stays until every rank has heard that the work is done.
        hvd.allgather_object(None, name="compute_workers_done")
    hvd.shutdown()


def parse_arguments() -> argparse.Namespace:
    """Returns the arguments of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m horovod.tensorflow.data.compute_worker",
        description="Prepare data for training jobs, as a job under horovodrun",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("configfile", help="file that tells training jobs where the service is; the key is in it")
    add("--dispatchers", type=int, default=1, help="number of dispatchers")
    add("--dispatcher-side", choices=DISPATCHER_SIDES, default="compute", help="who runs them")
    add("--timeout", type=int, default=60, help="seconds within which all must have registered")
    return parser.parse_args()


if __name__ == "__main__":
    args = parse_arguments()
    main(args.dispatchers, args.dispatcher_side, args.configfile, args.timeout)
