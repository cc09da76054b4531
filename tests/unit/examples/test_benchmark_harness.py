"""Figures, tables and worker groups of the benchmarks; no time is ever asserted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import allreduce
import bare_exchange
import groups
import harness
from groups import Conductor, Group, PeerUnavailable
from harness import Report, Target

ECHO = """
import os, sys
sys.path.insert(0, {benchmarks!r})
from worker_link import serve
def fail(request): raise ValueError("no figures today")
serve(int(os.environ["RANK"]), {{"echo": lambda r: {{"got": r["value"]}}, "fail": fail}})
"""


def echo_group(ranks: int = 2, code: str = ECHO) -> Group:
    code = code.format(benchmarks=str(harness.FOLDER))
    return Group("echo", groups.side_by_side([sys.executable, "-c", code], ranks), ranks)


@pytest.mark.parametrize(
    ("measured", "limit", "at_most", "ratio", "met"),
    [(2.0, 1.0, False, 2.0, True), (0.5, 1.0, False, 0.5, False), (20.0, 40.0, True, 2.0, True),
     (80.0, 40.0, True, 0.5, False), (0.0, 0.0, True, float("inf"), True)],
)  # fmt: skip
def test_ratio_is_one_or_more_where_the_target_is_met(
    measured: float, limit: float, at_most: bool, ratio: float, met: bool
) -> None:
    target = Target("claim", measured, limit, at_most)
    assert (target.ratio, target.is_met) == (ratio, met)


def test_percentiles_are_values_that_occurred() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [harness.percentile(values, p) for p in (0, 50, 99, 100)] == [1.0, 3.0, 5.0, 5.0]
    with pytest.raises(ValueError, match="no values"):
        harness.percentile([], 50)


@pytest.mark.parametrize(
    ("count", "text"), [(4, "4 B"), (1536, "1536 B"), (65536, "64 KiB"), (256 << 20, "256 MiB")]
)
def test_sizes_are_written_with_binary_prefixes(count: int, text: str) -> None:
    assert harness.size_text(count) == text


def test_table_is_markdown_with_three_significant_digits() -> None:
    lines = harness.markdown([{"a": 1.23456, "b": None}, {"a": 12345.6, "b": "x"}]).splitlines()
    assert lines[0].split() == ["|", "a", "|", "b", "|"]
    assert lines[2].split() == ["|", "1.23", "|", "-", "|"]
    assert lines[3].split() == ["|", "12,346", "|", "x", "|"]
    assert len({len(line) for line in lines}) == 1


def test_report_writes_everything_as_json(tmp_path: Path) -> None:
    report = Report("demo", {"quick": True}, cache_states=[90.0, None])
    report.table("figures", [{"bytes": "4 B", "us": 1.5}])
    report.targets.append(Target("claim", 3.0, 2.0, at_most=False))
    file = tmp_path / "new" / "demo.json"
    report.finish(file)
    data = json.loads(file.read_text())
    assert data["tables"] == {"figures": [{"bytes": "4 B", "us": 1.5}]}
    assert data["targets"][0]["is_met"] is True
    assert data["cache_line_round_trip_ns"] == [90.0, None]
    assert "CPU" in data["machine"]


def test_cache_states_are_told_apart() -> None:
    assert harness.describe_cache_states([90.0, 310.0, None]) == (
        "90 ns (shared), 310 ns (apart), unknown"
    )


def test_group_answers_in_rank_order_and_more_than_once() -> None:
    with echo_group(3) as group:
        assert len(set(group.pids)) == 3
        assert group.ask("echo", value=7) == [{"got": 7}] * 3
        assert group.ask("echo", value=8) == [{"got": 8}] * 3


def test_error_of_a_worker_is_raised_with_its_text_and_the_group_goes_on() -> None:
    with echo_group() as group:
        with pytest.raises(RuntimeError, match=r"echo, rank 0(.|\n)*no figures today"):
            group.ask("fail")
        assert group.ask("echo", value=1) == [{"got": 1}] * 2


def test_group_that_can_not_start_gives_its_last_words() -> None:
    with pytest.raises(PeerUnavailable, match="there is no such peer"):
        echo_group(code="raise SystemExit('there is no such peer')")
    with pytest.raises(PeerUnavailable, match="No such file"):
        Group("absent", [(["/no/such/program"], {})], 1)


def test_missing_mpi_is_left_out_with_a_sentence(tmp_path: Path) -> None:
    said: list[str] = []
    with Conductor(said.append) as conductor:
        conductor.add("MPICH", 2, groups.under_mpi, "mpich", tmp_path, "worker.py", [])
        assert conductor.groups == {}
    assert said[0].startswith("MPICH is left out: ")
    assert "mpi_environments.py mpich" in said[0]


def test_a_program_that_can_not_be_compiled_is_named_with_the_compilers_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(harness.CompilerFailed, match=r"no-such-compiler failed: .*No such file"):
        harness.compile_program("ping_pong.cpp")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(harness.CompilerFailed, match="false failed"):
        harness.compile_program("ping_pong.cpp")


def test_peers_start_each_round_with_another_one() -> None:
    conductor = Conductor(print)
    conductor.groups = {name: Mock(Group) for name in "abc"}
    orders = ["".join(name for name, _ in conductor.in_turn(index)) for index in range(4)]
    assert orders == ["abc", "bca", "cab", "abc"]


def test_allreduce_targets_compare_within_rounds() -> None:
    size = 64 << 20
    row = {
        "Horovod": [0.010, 0.020, 0.010, 0.010],
        "torch-Gloo": [0.060, 0.120, 0.060, 0.060],
        "Open MPI": [0.040, 0.080, 0.040, 0.040],
        "MPICH": [0.030, 0.060, 0.030, 0.031],
        "memcpy": [0.007, 0.016, 0.007, 0.001],
    }
    states = {size: ["shared", "apart", "shared", "changing"]}
    found = {t.claim: t for t in allreduce.find_targets({size: row}, 2, states)}
    shared = found["64 MiB: share of the memcpy rate, shared (2 rounds)"]
    apart = found["64 MiB: share of the memcpy rate, apart (1 round)"]
    assert (shared.limit, apart.limit) == (0.75, 0.6)
    assert shared.measured == pytest.approx(0.7)
    assert apart.measured == pytest.approx(0.8)
    assert found["64 MiB: speed over the best MPI"].measured == pytest.approx(3.0)
    assert found["64 MiB: speed over torch-Gloo"].is_met


def test_allreduce_targets_of_more_ranks_than_cores_are_about_gloo_only() -> None:
    row = {"Horovod": [1.0], "torch-Gloo": [2.0], "memcpy": [0.1]}
    found = allreduce.find_targets({4: row, 64 << 20: row}, 4, {64 << 20: ["apart"]})
    assert [t.claim for t in found] == [
        "4 B: speed over torch-Gloo",
        "64 MiB: speed over torch-Gloo",
    ]


@pytest.fixture(scope="module")
def bare_program() -> Path:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two processes that spin need two cores")
    try:
        return harness.compile_program("bare_exchange.cpp", *bare_exchange.COMPILER_OPTIONS)
    except harness.CompilerFailed as error:
        pytest.skip(str(error))


# One tile for each half; pieces that are not full; more pieces than slots.
@pytest.mark.parametrize("size", [8192, 8192 * 67, 8192 * 643])
@pytest.mark.parametrize("way", bare_exchange.WAYS)
def test_the_bare_exchange_checks_its_sums_and_prints_a_time(
    bare_program: Path, way: str, size: int
) -> None:
    report = Report("bare_exchange", {})
    taken = bare_exchange.run_bare(report, bare_program, way, size, 3)
    assert (taken is not None and taken > 0) or way == "kernel"  # containers may forbid that one
    assert (taken is None) == bool(report.notes)


def test_the_bare_exchange_ends_when_its_other_process_does(bare_program: Path) -> None:
    with subprocess.Popen(
        [bare_program, "arena", str(64 << 20), "1000000"], stderr=subprocess.PIPE
    ) as parent:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        while not children.read_text():
            assert parent.poll() is None
        os.kill(int(children.read_text()), signal.SIGKILL)
        assert parent.wait(60) == 1


def test_the_bare_exchange_refuses_sizes_that_it_can_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bare_exchange.py", "--sizes", "8192", "1000"])
    with pytest.raises(SystemExit):
        bare_exchange.parse_arguments()
    assert "1000 is not a positive multiple of 8192" in capsys.readouterr().err
