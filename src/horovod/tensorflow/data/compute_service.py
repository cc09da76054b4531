"""A tf.data service for training jobs: a job of workers prepares data, the ranks of a training job read it.

A *dispatcher* hands out work to its *workers*; datasets and elements travel through TensorFlow's own data
service, which knows no authentication. Dispatchers, workers and ranks find each other through a compute
service (`horovod.runner.common.service.compute_service`), which does. Where it is, and its key, are in a
configuration file that the job of workers writes and the training job reads; see docs/tensorflow.md.
"""

from __future__ import annotations

import base64
import hmac
import itertools
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from horovod.runner.common.service.compute_service import ComputeClient

DISPATCHER_SIDES = ("training", "compute")
PROTOCOL = "grpc"
LOOK_SECONDS = 0.2  # how often it is looked whether the configuration file is there
REMIND_SECONDS = 30.0

_service = tf.data.experimental.service


@dataclass(frozen=True)
class TfDataServiceConfig:
    """What jobs need to know to find each other.

    Args:
        dispatchers: number of dispatchers.
        workers_per_dispatcher: number of workers of each.
        dispatcher_side: where the dispatchers run: "compute", beside the workers, or "training", in the
            first ranks of the training job.
        addresses: by network interface, the addresses and ports of the compute service.
        key: the key of the compute service.
        timeout: seconds within which dispatchers and workers must have registered.

    Raises:
        ValueError: an argument is wrong.
    """

    dispatchers: int
    workers_per_dispatcher: int
    dispatcher_side: str
    addresses: Mapping[str, Sequence[tuple[str, int]]]
    key: bytes = field(repr=False)
    timeout: int = 60

    def __post_init__(self) -> None:
        if self.dispatchers < 1 or self.workers_per_dispatcher < 1:
            raise ValueError(
                f"dispatchers and workers_per_dispatcher must be at least 1, not {self.dispatchers} and "
                f"{self.workers_per_dispatcher}."
            )
        if self.dispatcher_side not in DISPATCHER_SIDES:
            raise ValueError(
                f"dispatcher_side must be one of {DISPATCHER_SIDES}, not {self.dispatcher_side!r}."
            )
        # Lists as JSON gives them, so that what was written equals what is read.
        plain = {
            name: [(str(host), int(port)) for host, port in of_nic]
            for name, of_nic in self.addresses.items()
        }
        object.__setattr__(self, "addresses", plain)

    def compute_client(self, verbose: int = 1) -> ComputeClient:
        """Returns a client of the compute service; ConnectionError if it can't be reached."""
        return ComputeClient(self.addresses, self.key, verbose=verbose)

    def to_dict(self) -> dict[str, Any]:
        """Returns the configuration as what JSON knows, the key in base64."""
        return {**asdict(self), "key": base64.b64encode(self.key).decode()}

    @staticmethod
    def from_dict(config: Mapping[str, Any]) -> TfDataServiceConfig:
        """Returns what `to_dict` was called on.

        Raises:
            ValueError: something is missing, unknown or wrong.
        """
        values = dict(config)
        try:
            values["key"] = base64.b64decode(values["key"], validate=True)
            return TfDataServiceConfig(**values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no configuration of a tf.data service: {error!r}") from error

    def write(self, filename: str) -> None:
        """Writes a file that only this user may read, because the key is in it.

        The file appears at once and complete: who waits for it never reads a part.
        """
        path = Path(filename)
        # mkstemp makes it readable by this user alone.
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(self.to_dict(), file, indent=2)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise

    @staticmethod
    def read(filename: str, wait_for_file_creation: bool = False) -> TfDataServiceConfig:
        """Reads what `write` wrote.

        Args:
            filename: the file.
            wait_for_file_creation: wait until it is there, for ever, with a reminder on stderr.

        Raises:
            FileNotFoundError: it is not there.
            ValueError: it holds something else.
        """
        path = Path(filename)
        remind_at = time.monotonic() + REMIND_SECONDS
        while wait_for_file_creation and not path.exists():
            if time.monotonic() > remind_at:
                print(f"waiting for the file {path.absolute()}", file=sys.stderr, flush=True)
                remind_at += REMIND_SECONDS
            time.sleep(LOOK_SECONDS)
        try:
            return TfDataServiceConfig.from_dict(json.loads(path.read_text()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


# --- the training job ---------------------------------------------------------------------------


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """Gives a rank of a training job the address of its dispatcher.

    With `dispatcher_side="training"` the first ranks run the dispatchers while they are in the block, so
    no rank may leave it before all have read their data.

    Args:
        compute_config: as the job of workers has written it.
        rank: of this process in the training job. Rank r uses dispatcher r modulo the number of them.

    Yields:
        The address for `tf.data.experimental.service.distribute(service=...)`.

    Raises:
        ConnectionError: the compute service can't be reached.
        TimeoutException: dispatcher or workers did not register in time.
    """
    client = compute_config.compute_client(verbose=2)
    dispatcher = rank % compute_config.dispatchers
    with ExitStack() as stack:
        if compute_config.dispatcher_side == "training" and rank == dispatcher:
            stack.enter_context(_running_dispatcher(client, dispatcher))
        address = client.wait_for_dispatcher_registration(dispatcher, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(dispatcher, compute_config.timeout)
        yield address


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> tf.data.Dataset:
    """Has the workers of a tf.data service prepare a dataset; also a method of `tf.data.Dataset`.

    Args:
        dataset: what has to be done. It runs in other processes, so it can't call Python functions.
        compute_config: as the job of workers has written it, with dispatchers beside the workers.
        rank: of this process in the training job.
        size: number of ranks of the training job; needed for `round_robin`.
        processing_mode: "distributed_epoch": each element once, whichever worker has time;
            "parallel_epochs": each worker goes through the whole dataset.
        reuse_dataset: the ranks of one dispatcher share what their workers prepare, each element goes to
            one of them. Otherwise each rank gets all of it, prepared for it alone.
        round_robin: as `reuse_dataset`, and the ranks get elements strictly in turn. The dataset must be
            infinite, e.g. with `repeat()`.

    Returns:
        The dataset of prepared elements.

    Raises:
        RuntimeError: the dispatchers run in the training job; use `tf_data_service` for these.
        ValueError: `round_robin` without `size`.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service needs dispatchers that run beside the workers (dispatcher_side='compute'). "
            "With dispatcher_side='training' they run in this job while it is in the context manager "
            "tf_data_service(compute_config, rank); use tf.data.experimental.service.distribute in there."
        )
    if round_robin and size is None:
        raise ValueError("send_to_data_service with round_robin=True needs size=hvd.size().")
    turns: dict[str, Any] = {}
    if round_robin:
        turns = _turns(rank, size or 1, compute_config.dispatchers)
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            _service.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=_job_name(address) if reuse_dataset or round_robin else None,
                **turns,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def _turns(rank: int, size: int, dispatchers: int) -> dict[str, int]:
    """Returns whose turn it is when: this rank's number among those of its dispatcher, and how many."""
    ranks = range(rank % dispatchers, size, dispatchers)
    return {"consumer_index": ranks.index(rank), "num_consumers": len(ranks)}


_sent: dict[str, Iterator[int]] = defaultdict(itertools.count)


def _job_name(address: str) -> str:
    """Returns a name that all ranks have for the same dataset: the n-th one that is sent to a dispatcher.

    A dispatcher that outlives a training job remembers its names as done, so the name has something in it
    that is different for every job and equal on its ranks: a digest of the key.
    """
    key = os.environ.get("_HOROVOD_SECRET_KEY", "")
    job = hmac.digest(key.encode(), b"tf.data service", "sha256").hex()[:16] if key else "job"
    return f"{job}-{next(_sent[address])}"


# --- the job of workers -------------------------------------------------------------------------


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Runs a worker, and on some ranks a dispatcher, until some client shuts down the compute service.

    To be called on all ranks of a job of `dispatchers * workers_per_dispatcher` processes; calls
    `hvd.init()` if nobody has.

    Raises:
        ValueError: the job has another size.
        TimeoutException: a dispatcher did not register in time.
    """
    import horovod.tensorflow as hvd

    if not hvd.is_initialized():
        hvd.init()
    workers = compute_config.workers_per_dispatcher
    needed = compute_config.dispatchers * workers
    if hvd.size() != needed:
        raise ValueError(
            f"{compute_config.dispatchers} dispatcher(s) with {workers} worker(s) each need a job of "
            f"{needed} process(es), and this one has {hvd.size()}."
        )
    client = compute_config.compute_client(verbose=2)
    dispatcher, number = divmod(hvd.rank(), workers)
    with ExitStack() as stack:
        if compute_config.dispatcher_side == "compute" and number == 0:
            stack.enter_context(_running_dispatcher(client, dispatcher))
        address = client.wait_for_dispatcher_registration(dispatcher, compute_config.timeout)
        server = _service.WorkerServer(
            _service.WorkerConfig(
                dispatcher_address=address.removeprefix(f"{PROTOCOL}://"),
                # TensorFlow fills in the port that it gets.
                worker_address=f"{client.local_address}:%port%",
                protocol=PROTOCOL,
            )
        )
        stack.callback(server.stop)
        client.register_worker_for_dispatcher(dispatcher, hvd.rank())
        client.wait_for_shutdown()


@contextmanager
def _running_dispatcher(client: ComputeClient, dispatcher: int) -> Iterator[None]:
    """A dispatcher in this process, registered at the compute service."""
    server = _service.DispatchServer(_service.DispatcherConfig(port=0, protocol=PROTOCOL))
    try:
        port = server.target.rsplit(":", 1)[1]
        client.register_dispatcher(dispatcher, f"{PROTOCOL}://{client.local_address}:{port}")
        yield
    finally:
        server.stop()
