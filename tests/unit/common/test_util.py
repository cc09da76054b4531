"""The helpers that scripts import from horovod.common.util, and compression's rules."""

from __future__ import annotations

import os

import pytest

from horovod.common import util
from horovod.common.compression import Compressor, NoneCompressor
from horovod.common.dtypes import Average, Sum
from horovod.common.exceptions import HorovodVersionMismatchError, HostsUpdatedInterrupt


def test_env_sets_and_restores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_A", "1")
    monkeypatch.delenv("HVD_B", raising=False)
    with util.env(HVD_A=None, HVD_B="2"):
        assert "HVD_A" not in os.environ
        assert os.environ["HVD_B"] == "2"
    assert os.environ["HVD_A"] == "1"
    assert "HVD_B" not in os.environ


@pytest.mark.parametrize(
    ("items", "n", "parts"),
    [
        ([1, 2, 3, 4, 5], 2, [[1, 2, 3], [4, 5]]),
        ([1, 2], 3, [[1], [2], []]),
        ([], 2, [[], []]),
    ],
)
def test_split_list(items: list[int], n: int, parts: list[list[int]]) -> None:
    assert util.split_list(items, n) == parts


@pytest.mark.parametrize(("n", "answer"), [(0, False), (1, True), (6, False), (8, True)])
def test_powers_of_two(n: int, answer: bool) -> None:
    assert util.num_rank_is_power_2(n) is answer


@pytest.mark.parametrize(
    ("ver", "target", "answer"),
    [("2.13.0+cpu", "2.1.0", True), ("1.9.0", "1.10.0", False), ("2.0.0rc1", "2.0.0", False)],
)
def test_versions_are_compared(ver: str, target: str, answer: bool) -> None:
    assert util.is_version_greater_equal_than(ver, target) is answer


@pytest.mark.parametrize("target", ["1.2", "1.2.x", "", 3])
def test_a_badly_formed_version_is_an_error(target: str) -> None:
    with pytest.raises(ValueError):
        util.is_version_greater_equal_than("1.0.0", target)


def test_is_iterable() -> None:
    assert util.is_iterable([])
    assert not util.is_iterable(3)


def test_results_are_cached_by_arguments() -> None:
    calls = []

    @util._cache
    def double(x: int, plus: int = 0) -> int:
        calls.append((x, plus))
        return 2 * x + plus

    assert [double(1), double(1), double(1, plus=1), double(1, plus=1)] == [2, 2, 3, 3]
    assert calls == [(1, 0), (1, 1)]


def test_the_old_parameter_average() -> None:
    resolve = util.get_average_backwards_compatibility_fun(None)
    assert resolve(None, None) is Average
    assert resolve(Sum, None) is Sum
    with pytest.raises(ValueError, match="supersedes average"):
        resolve(Sum, True)


def test_what_is_built() -> None:
    assert util.gloo_built()
    assert not any((util.mpi_built(), util.nccl_built(), util.ddl_built(), util.ccl_built()))
    assert util.extension_available("mxnet") is False
    assert util.check_installed_version("torch", "9.9.9") is None


def test_exceptions_carry_what_their_users_read() -> None:
    assert HostsUpdatedInterrupt(True).skip_sync is True
    error = HorovodVersionMismatchError("torch", "2.0", "1.9")
    assert (error.name, error.version, error.installed_version) == ("torch", "2.0", "1.9")
    assert isinstance(error, ImportError)


def test_no_compression_passes_everything_through() -> None:
    thing = object()
    assert NoneCompressor.decompress(*NoneCompressor.compress(thing)) is thing
    assert issubclass(NoneCompressor, Compressor)
