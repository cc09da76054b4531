"""`HorovodBasics`: init, shutdown, and who am I; the same object for every framework."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import Any

from horovod import _core
from horovod.common import collectives, engine, log, observation
from horovod.common.bootstrap.kind import Identity
from horovod.common.dtypes import Adasum, Average, Max, Min, Product, Sum
from horovod.common.knobs import review_environment
from horovod.common.process_sets import MPI, ProcessSet, register_at_init

HOROVOD_PROCESS_SET_ERROR_INIT = -1
HOROVOD_PROCESS_SET_ERROR_DYNAMIC = -2
HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -3
HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET = -4
HOROVOD_PROCESS_SET_ERROR_SHUTDOWN = -5
HOROVOD_PROCESS_SET_ERROR_EXISTING_SET = -6


class HorovodBasics:
    """The functions that every framework's module re-exports.

    All objects of this class stand for the one engine of the process. The arguments, the place of a
    compiled library in Horovod 0.28, are ignored.
    """

    Average = Average
    Sum = Sum
    Adasum = Adasum
    Min = Min
    Max = Max
    Product = Product

    HOROVOD_PROCESS_SET_ERROR_INIT = HOROVOD_PROCESS_SET_ERROR_INIT
    HOROVOD_PROCESS_SET_ERROR_DYNAMIC = HOROVOD_PROCESS_SET_ERROR_DYNAMIC
    HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET
    HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET = HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET
    HOROVOD_PROCESS_SET_ERROR_SHUTDOWN = HOROVOD_PROCESS_SET_ERROR_SHUTDOWN
    HOROVOD_PROCESS_SET_ERROR_EXISTING_SET = HOROVOD_PROCESS_SET_ERROR_EXISTING_SET

    def __init__(self, pkg_path: str | None = None, *args: str) -> None:
        del pkg_path, args

    # --- life --------------------------------------------------------------------------------

    def init(
        self,
        comm: Sequence[int] | MPI.Comm | None = None,
        process_sets: Sequence[ProcessSet] | str | None = None,
    ) -> None:
        """Meets the other ranks and starts the engine; blocks until all of them have come.

        While the engine runs, only `process_sets` is looked at. Allowed again after `shutdown`.

        Args:
            comm: None or an empty list. A list of ranks is ignored, as without MPI in Horovod 0.28.
            process_sets: sets to register, the same on all ranks, or "dynamic" to allow
                `add_process_set` later.

        Raises:
            ValueError: an argument or an environment variable is wrong, ranks were given different
                process sets, or a set is a duplicate (then the engine runs nevertheless).
            HorovodInternalError: not all ranks came in time.
        """
        listed = _check_comm(comm)
        sets = _check_process_sets(process_sets)
        if engine.aborted():
            self.shutdown()
        if not engine.state.active:
            _start(sets)
            if listed and sorted(listed) != list(range(self.size())):
                log.logger.warning(
                    "init(comm=%s) is ignored: without MPI all %d ranks take part. Use process sets.",
                    listed,
                    self.size(),
                )
        register_at_init(sets)

    def shutdown(self) -> None:
        """Ends the engine on all ranks; outstanding operations fail. Harmless when not initialised."""
        if engine.state.active:
            observation.prepare_end()
            engine.stop()
            observation.end()
            collectives.end_round()

    def is_initialized(self) -> bool:
        """Returns whether the engine runs in this process."""
        return engine.state.active

    # --- seeing --------------------------------------------------------------------------------

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Begins a timeline, also in place of one that is being written; may be called on any rank.

        Rank 0 writes it, or every rank its own (HOROVOD_TIMELINE_ALL_RANKS); on the hosts where they run.
        Returns when it has begun. If `file_path` is being written already nothing happens.

        Args:
            file_path: file of rank 0; an existing one is replaced. Rank 3 writes "t.rank3.json" for "t.json".
            mark_cycles: mark when tensors that were ready were flushed for execution.

        Raises:
            ValueError: before init, without HOROVOD_TIMELINE (DYNAMIC records nothing until this call), or
                the file can't be written.
            HorovodInternalError: the job has ended.
        """
        observation.start_timeline(file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Ends the timeline that is being written, if any; from any rank. Raises as `start_timeline`."""
        observation.stop_timeline()

    def metrics(self) -> dict[str, Any]:
        """Returns counters and histograms of this rank's engine since init.

        Times are in seconds, sizes in bytes. A histogram has `bounds` (upper, inclusive), `counts` (one more
        than bounds), `sum` and `count`. docs/metrics.md explains each.

        Raises:
            ValueError: before init.
        """
        return observation.metrics()

    def dump_flight_recorder(self) -> None:
        """Makes this rank write its last operations to a file soon; see docs/flight-recorder.md.

        Raises:
            ValueError: before init.
        """
        engine.identity()
        _core.demand_flight_dump("call")

    # --- who am I; each raises ValueError before init --------------------------------------------

    def size(self) -> int:
        """Returns the number of ranks."""
        return engine.identity().size

    def local_size(self) -> int:
        """Returns the number of ranks on this host."""
        return engine.identity().local_size

    def cross_size(self) -> int:
        """Returns the number of hosts that have a rank with this local rank."""
        return engine.identity().cross_size

    def rank(self) -> int:
        """Returns the rank of this process."""
        return engine.identity().rank

    def local_rank(self) -> int:
        """Returns the rank of this process on its host."""
        return engine.identity().local_rank

    def cross_rank(self) -> int:
        """Returns the index of this host among those that have a rank with this local rank."""
        return engine.identity().cross_rank

    def is_homogeneous(self) -> bool:
        """Returns whether all hosts have the same number of ranks."""
        own = engine.identity().local_size
        return all(local_size == own for local_size in engine.state.local_sizes)

    # --- what there is ---------------------------------------------------------------------------

    def mpi_threads_supported(self) -> bool:
        """Raises ValueError: the MPI controller does not exist."""
        engine.identity()
        raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")

    def mpi_enabled(self) -> bool:
        """Returns False: there is no MPI controller."""
        return False

    def mpi_built(self) -> bool:
        """Returns False: there is no MPI backend yet."""
        return False

    def gloo_enabled(self) -> bool:
        """Returns True: the built-in controller stands for what needs no MPI."""
        return True

    def gloo_built(self) -> bool:
        """Returns True: the built-in backend stands for what needs no MPI."""
        return True

    def nccl_built(self) -> int:
        """Returns 0: there is no NCCL backend yet."""
        return 0

    def ddl_built(self) -> bool:
        """Returns False."""
        return False

    def ccl_built(self) -> bool:
        """Returns False."""
        return False

    def cuda_built(self) -> bool:
        """Returns False: tensors on a GPU go through host memory."""
        return False

    def rocm_built(self) -> bool:
        """Returns False: tensors on a GPU go through host memory."""
        return False

    # --- process sets, used by tests -------------------------------------------------------------

    def _add_process_set_impl(self, ranks: Sequence[int]) -> int:
        engine.require_dynamic_sets()
        return engine.add_set(sorted(ranks))

    def _remove_process_set_impl(self, process_set_id: int) -> int:
        engine.require_dynamic_sets()
        engine.remove_set(process_set_id)
        return process_set_id

    def _process_set_rank(self, process_set_id: int) -> int:
        return engine.set_rank(process_set_id)

    def _process_set_size(self, process_set_id: int) -> int:
        return len(engine.registered_set(process_set_id).ranks)

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        engine.identity()
        return {set_id: list(entry.ranks) for set_id, entry in engine.state.sets.items()}

    def _comm_process_set_id(self, comm: Any) -> int:
        del comm
        raise ValueError("Process sets made of MPI communicators need the MPI backend.")


def _check_comm(comm: Any) -> list[int]:
    if comm is None:
        return []
    if hasattr(comm, "Get_rank"):
        raise ValueError(
            "init(comm=<communicator>) needs the MPI backend, which does not exist yet."
        )
    is_list = isinstance(comm, Sequence) and not isinstance(comm, (str, bytes))
    if not is_list or not all(isinstance(rank, int) for rank in comm):
        raise ValueError(
            f"Invalid type of argument comm. Expected a list of ranks or None, got {comm!r}."
        )
    return list(comm)


def _check_process_sets(process_sets: Any) -> list[ProcessSet]:
    if process_sets is None:
        return []
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(
                f"process_sets={process_sets!r}: expected a list of ProcessSet or 'dynamic'."
            )
        os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        return []
    sets = list(process_sets)
    if not all(isinstance(process_set, ProcessSet) for process_set in sets):
        raise ValueError(f"process_sets={process_sets!r}: expected a list of ProcessSet.")
    return sets


def _start(sets: Sequence[ProcessSet]) -> None:
    log.configure()
    engine.start([process_set.ranks or [] for process_set in sets], os.environ)
    identity = engine.identity()
    log.configure(rank=identity.rank)
    collectives.begin_round()
    _review_environment_once(identity)
    observation.begin(os.environ)
    atexit.unregister(_shutdown_at_exit)
    atexit.register(_shutdown_at_exit)


_reviewed = False


def _review_environment_once(identity: Identity) -> None:
    """One rank per host speaks, so that a job of a thousand ranks says it once per host."""
    global _reviewed
    if _reviewed or identity.local_rank != 0:
        return
    _reviewed = True
    review = review_environment()
    for text in review.warnings:
        log.logger.warning("%s", text)
    for text in review.notes:
        log.logger.info("%s", text)


def _shutdown_at_exit() -> None:
    HorovodBasics().shutdown()
