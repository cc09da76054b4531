"""horovod.run: calls a Python function on every rank and returns the results."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horovod.runner.ssh import SshOptions

if TYPE_CHECKING:
    from horovod.runner.store import Store

FUNCTION_SCOPE, FUNCTION_KEY = "runfunc", "func"
RESULT_SCOPE = "runfunc_result"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,  # noqa: ARG001 - there is no cache
    output_filename: str | None = None,
    verbose: bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Runs `func(*args, **kwargs)` in `num_proc` processes; returns their results by rank.

    The function, its arguments and the results are pickled with cloudpickle, so functions of
    `__main__` and closures work; the calling script is not executed again.

    The arguments mean what horovodrun's flags of the same names mean: `hosts` is "host1:2,host2:4"
    (by default all processes run on this machine), `hostfile` is a file with lines "host slots=n",
    `start_timeout` is in seconds, `output_filename` is a directory for the output of each rank.
    `executable` is the Python interpreter of the workers (this one). `ssh_port` and `ssh_identity_file`
    are for hosts other than this machine; `network_interfaces` limits by which of this machine's
    interfaces they reach it. `use_mpi` starts the processes with the mpirun that is installed, which gets
    `mpi_args` (docs/mpi.md). `disable_cache` and `use_gloo` ask for what is so anyway; `np` is the
    deprecated name of `num_proc`.

    Raises:
        ValueError: arguments that contradict each other, or more processes than slots.
        NotImplementedError: an argument whose feature does not exist yet.
        RuntimeError: a worker failed; the text has rank, traceback and last lines of output.
    """
    _refuse_later(
        {
            "elastic training": (
                min_num_proc, max_num_proc, slots, reset_limit, cooldown_range,
                host_discovery_script, min_np, max_np,
            ),
        }
    )  # fmt: skip
    if use_gloo and use_mpi:
        raise ValueError("use_gloo and use_mpi cannot both be set")
    if mpi_args is not None and not use_mpi:
        raise ValueError("mpi_args are for mpirun: use_mpi=True is missing")
    if np is not None:
        warnings.warn("np is deprecated, use num_proc", DeprecationWarning, stacklevel=2)
        num_proc = np
    return _run(
        _pickled(func, args, kwargs or {}),
        num_proc=num_proc,
        hosts=hosts,
        hostfile=hostfile,
        start_timeout=start_timeout,
        output_filename=output_filename,
        verbose=bool(verbose),
        executable=executable or sys.executable,
        ssh=SshOptions(ssh_port, ssh_identity_file),
        interfaces=_interfaces(network_interface, network_interfaces),
        use_mpi=bool(use_mpi),
        mpi_args=mpi_args,
    )


def _interfaces(one: str | None, several: Sequence[str] | str | None) -> list[str] | None:
    """The names of both parameters, each of which may be a text with commas."""
    texts = [one] if one else []
    texts += [several] if isinstance(several, str) else list(several or ())
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    return names or None


def _refuse_later(features: dict[str, tuple[Any, ...]]) -> None:
    for feature, values in features.items():
        if any(value is not None for value in values):
            raise NotImplementedError(f"{feature} is not available yet")


def _pickled(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
    """The call, and where to find the modules that it refers to."""
    import cloudpickle
    import msgpack

    if not callable(func):
        raise TypeError(f"horovod.run needs a function, not {type(func).__name__}")
    call: bytes = cloudpickle.dumps((func, tuple(args), dict(kwargs)))
    packed: bytes = msgpack.packb([[os.fsencode(path) for path in sys.path], call])
    return packed


def _run(
    call: bytes,
    *,
    num_proc: int,
    hosts: str | None,
    hostfile: str | None,
    start_timeout: int | None,
    output_filename: str | None,
    verbose: bool,
    executable: str,
    ssh: SshOptions,
    interfaces: list[str] | None,
    use_mpi: bool,
    mpi_args: str | None,
) -> list[Any]:
    from horovod.runner.driver import say_on_stderr
    from horovod.runner.plan import Plan, assign, choose_hosts, settle_start_timeout
    from horovod.runner.run_job import run_job

    if num_proc < 1:
        raise ValueError(f"num_proc={num_proc}: at least one process must be started")
    variables = {} if start_timeout is None else {"HOROVOD_START_TIMEOUT": str(start_timeout)}
    chosen = choose_hosts(num_proc, hosts, hostfile, say_on_stderr)
    plan = Plan(
        num_proc=num_proc,
        hosts=chosen,
        slots=assign(num_proc, chosen),
        command=[executable, "-m", "horovod.runner.run_task"],
        variables=variables,
        output_directory=output_filename,
        verbose=verbose,
        start_timeout=settle_start_timeout(len(chosen), variables, os.environ),
        ssh=ssh,
        interfaces=interfaces,
    )
    if use_mpi:
        from horovod.runner.mpi_function import run_with_mpirun

        code, store = run_with_mpirun(plan, mpi_args, {(FUNCTION_SCOPE, FUNCTION_KEY): call})
        if code:
            raise RuntimeError(
                f"mpirun failed with exit code {code}{_worker_errors(store, num_proc)}"
            )
        return [_result(store, rank) for rank in range(num_proc)]
    outcome, store = run_job(plan, {(FUNCTION_SCOPE, FUNCTION_KEY): call})
    if outcome.interrupted == signal.SIGINT:
        raise KeyboardInterrupt
    if outcome.interrupted:
        os.kill(os.getpid(), outcome.interrupted)  # our caller's handler is in place again
    if outcome.failure is not None or outcome.interrupted:
        raise RuntimeError(outcome.report + _worker_errors(store, num_proc))
    return [_result(store, rank) for rank in range(num_proc)]


def _worker_errors(store: Store, size: int) -> str:
    """The exceptions of the ranks, in the order in which they came."""
    import msgpack

    texts = []
    for _, value in store.values(RESULT_SCOPE):
        rank, worked, content = msgpack.unpackb(value)
        if not worked:
            texts.append(f"\nException on rank {rank} of {size}:\n{content}")
    return "".join(texts)


def _result(store: Store, rank: int) -> Any:
    import cloudpickle
    import msgpack

    value = store.value(RESULT_SCOPE, str(rank))
    if value is None:
        raise RuntimeError(
            f"rank {rank} ended with status 0 before its function returned (did it call os._exit?)"
        )
    return cloudpickle.loads(msgpack.unpackb(value)[2])
