"""Small helpers under the names that scripts import from Horovod 0.28."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from horovod.common.dtypes import ReduceOp

EXTENSIONS = ["tensorflow", "torch", "mxnet"]
_DOORS = ("numpy", "torch", "tensorflow", "keras")

T = TypeVar("T")


# --- what is built: one compiled core serves every framework -----------------------------------------


def get_ext_suffix() -> str:
    """Returns how the file name of a compiled module ends on this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Returns the path of the compiled core. The arguments, a place per framework once, are ignored."""
    del pkg_path, args
    found = importlib.util.find_spec("horovod._core")
    if found is None or found.origin is None:
        raise ImportError("Horovod's compiled core is missing; reinstall Horovod.")
    return found.origin


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Raises ImportError when the compiled core, which all frameworks share, is missing."""
    del ext_name, ext_env_var
    get_extension_full_path(pkg_path, *args)


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether this framework is installed and Horovod can serve it."""
    available = ext_base_name in _DOORS and importlib.util.find_spec(ext_base_name) is not None
    if verbose:
        print(f"Horovod for {ext_base_name}: {'available' if available else 'not available'}")
    return available


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Returns whether the framework sees a GPU. Imports the framework."""
    if not extension_available(ext_base_name, verbose):
        return False
    if ext_base_name == "torch":
        import torch

        return torch.cuda.is_available()
    if ext_base_name == "tensorflow":
        import tensorflow

        return bool(tensorflow.config.list_physical_devices("GPU"))
    return False


def mpi_built(verbose: bool = False) -> bool:
    """Returns False: there is no MPI backend yet."""
    del verbose
    return False


def gloo_built(verbose: bool = False) -> bool:
    """Returns True: the built-in controller and backend stand for what needs no MPI."""
    del verbose
    return True


def nccl_built(verbose: bool = False) -> bool:
    """Returns False: there is no NCCL backend yet."""
    del verbose
    return False


def ddl_built(verbose: bool = False) -> bool:
    """Returns False."""
    del verbose
    return False


def ccl_built(verbose: bool = False) -> bool:
    """Returns False."""
    del verbose
    return False


def check_installed_version(
    name: str, version: str, exception: BaseException | None = None
) -> None:
    """Does nothing: Horovod is built against no framework, so no version can differ."""
    del name, version, exception


# --- everything else ---------------------------------------------------------------------------------


@contextlib.contextmanager
def env(**kwargs: str | None) -> Iterator[None]:
    """Sets environment variables (None unsets) and restores them at the end."""
    before = {name: os.environ.get(name) for name in kwargs}
    _set_variables(kwargs)
    try:
        yield
    finally:
        _set_variables(before)


def _set_variables(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cache(function: Callable[..., T]) -> Callable[..., T]:
    """Remembers results by the arguments."""
    results: dict[tuple[Any, ...], T] = {}

    @functools.wraps(function)
    def cached(*args: Any, **kwargs: Any) -> T:
        key = (args, tuple(sorted(kwargs.items())))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]

    return cached


def get_average_backwards_compatibility_fun(
    reduce_ops: Any,
) -> Callable[[ReduceOp | int | None, bool | None], ReduceOp]:
    """Returns the function `(op, average) -> op` that resolves the old parameter `average`."""
    from horovod.common.collectives import resolve_op

    del reduce_ops

    def handle_average_backwards_compatibility(
        op: ReduceOp | int | None, average: bool | None
    ) -> ReduceOp:
        return resolve_op(average, op)

    return handle_average_backwards_compatibility


def num_rank_is_power_2(num_rank: int) -> bool:
    """Returns whether the number is a power of two."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741 - the public name
    """Returns `n` consecutive parts whose lengths differ by at most one, longer ones first."""
    quotient, remainder = divmod(len(l), n)
    bounds = [i * quotient + min(i, remainder) for i in range(n + 1)]
    return [l[begin:end] for begin, end in itertools.pairwise(bounds)]


def is_iterable(x: Any) -> bool:
    """Returns whether `iter(x)` works."""
    try:
        iter(x)
    except TypeError:
        return False
    return True


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Returns whether version `ver` is at least `target`, a version of the form "1.2.3".

    Raises:
        ValueError: an argument is not text, or `target` is not of that form.
    """
    from packaging import version

    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"Versions are given as text, not as {ver!r} and {target!r}.")
    parts = target.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"The version to compare with must look like 1.2.3, not {target!r}.")
    return version.parse(ver) >= version.parse(target)
