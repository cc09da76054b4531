"""The classic hangs: each is reported with the right culprit and its stack, and ends by itself."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest
from launcher_process import launch

WARNING_SECONDS, SHUTDOWN_SECONDS = 1, 6
LIMITS = [
    "--stall-check-warning-time-seconds",
    str(WARNING_SECONDS),
    "--stall-check-shutdown-time-seconds",
    str(SHUTDOWN_SECONDS),
]
JOB = str(Path(__file__).with_name("stall_job.py"))
SHUTDOWN = f"is stalled for longer than {SHUTDOWN_SECONDS} seconds. Will shutdown."


def stall(kind: str, tmp_path: Path, ranks: int = 2, hosts: str = "localhost:4") -> str:
    """Runs the job and returns all it wrote, without the prefixes of ranks."""
    dumps = ["--flight-recorder-dir", str(tmp_path / "dumps")]
    done = launch("-np", str(ranks), "-H", hosts, *LIMITS, *dumps, sys.executable, JOB, kind)
    assert done.returncode != 0
    text = (done.stdout + done.stderr).decode()
    return re.sub(r"^\[\d+\]<std(out|err)>:", "", text, flags=re.M)


def finish(*arguments: str) -> str:
    """Runs a job of one rank that ends well; returns all it wrote."""
    done = launch("-np", "1", *arguments)
    text = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, text
    return text


def paragraph(text: str, rank: int) -> str:
    """What the first report says about a rank."""
    found = re.search(rf"^Rank {rank} on host .*\n(?:  .*\n)*", text, re.M)
    assert found, text
    return found[0]


def test_other_names_are_paired(tmp_path: Path) -> None:
    text = stall("names", tmp_path)
    assert text.count("What the missing ranks are doing:") == 1
    about = paragraph(text, 1)
    assert "It is blocked in 'allreduce.model_1/w'" in about
    assert "It has not submitted 'allreduce.model/w'." in about
    assert "'allreduce.model_1/w' of rank 1 may be 'allreduce.model/w' of rank 0." in about
    assert "in other_names" in about
    assert SHUTDOWN in text


def test_other_order_in_a_blocking_program(tmp_path: Path) -> None:
    text = stall("order", tmp_path)
    for rank, waits, lacks in ((0, "a", "b"), (1, "b", "a")):
        about = paragraph(text, rank)
        assert f"It is blocked in 'allreduce.{waits}'" in about
        assert f"It has not submitted 'allreduce.{lacks}'." in about
        assert "the ranks call blocking operations in different orders" in about
        assert "in other_order" in about
    assert SHUTDOWN in text


def test_a_peer_that_died_is_named_at_once(tmp_path: Path) -> None:
    text = stall("dead", tmp_path)
    assert "HorovodInternalError: Rank 1 on host localhost has died" in text
    assert "Rank 1 on host localhost was killed by signal 9 (SIGKILL)." in text
    assert "is stalled" not in text


def test_a_peer_that_is_stopped_is_named(tmp_path: Path) -> None:
    text = stall("stopped", tmp_path)
    assert "Rank 1 on host localhost does not answer, and its connections are open" in text
    assert SHUTDOWN in text


def test_an_operation_on_rank_0_only(tmp_path: Path) -> None:
    text = stall("rank0", tmp_path, ranks=3)
    for rank in (1, 2):
        about = paragraph(text, rank)
        assert "It has not submitted 'allreduce.only_on_0'." in about
        assert "must be called by all" in about
        assert "in evaluate" in about
    assert "Rank 0 on host localhost is alive" not in text
    assert SHUTDOWN in text


def test_ranks_of_another_host_answer_through_its_leader(tmp_path: Path) -> None:
    """Two declared hosts: rank 0 asks rank 2, which leads the other one and asks rank 3."""
    text = stall("rank0", tmp_path, ranks=4, hosts="localhost:2,127.0.0.1:2")
    assert text.count("What the missing ranks are doing:") == 1
    for rank in (1, 2, 3):
        host = "localhost" if rank == 1 else "127.0.0.1"
        about = paragraph(text, rank)
        assert about.startswith(f"Rank {rank} on host {host} is alive.")
        assert "in evaluate" in about
        assert (tmp_path / "dumps" / f"rank{rank}.json").exists()


def test_stacks_come_from_a_rank_whose_native_code_holds_the_lock(tmp_path: Path) -> None:
    about = paragraph(stall("native", tmp_path), 1)
    assert "in native_code" in about


def test_unequal_numbers_of_batches(tmp_path: Path) -> None:
    text = stall("batches", tmp_path)
    assert "It is blocked in 'allreduce.gradient'" in paragraph(text, 0)
    about = paragraph(text, 1)
    assert "It is blocked in 'allreduce.metric'" in about
    assert "have different numbers of batches (then use hvd.join())" in about
    assert "in unequal_batches" in about
    assert SHUTDOWN in text


def test_a_slow_rank_is_named_once(tmp_path: Path) -> None:
    done = launch("-np", "3", "-H", "localhost:2,127.0.0.1:1", sys.executable, JOB, "slow")
    text = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, text
    assert text.count("Rank 1 on host localhost is slow: the others waited for it for ") == 1
    assert "What the missing ranks are doing" not in text


def test_each_rank_writes_down_what_it_did_last(tmp_path: Path) -> None:
    text = stall("order", tmp_path)
    assert f"`horovodrun flight-recorder {tmp_path / 'dumps'}`" in text
    for rank, waits in ((0, "a"), (1, "b")):
        dump = json.loads((tmp_path / "dumps" / f"rank{rank}.json").read_text())
        assert dump["reason"] == "stall"
        assert (dump["rank"], dump["size"], dump["hosts"]) == (rank, 2, ["localhost"] * 2)
        last = dump["operations"][-1]
        assert (last["name"], last["state"]) == (f"allreduce.{waits}", "announced")
        assert last["agreed"] is None
        done = dump["operations"][0]
        assert (done["name"], done["state"], done["dtype"]) == ("allreduce.warm", "done", "float64")
        assert done["submitted"] <= done["agreed"] <= done["started"] <= done["finished"]


def test_a_signal_makes_a_rank_write_its_dump_with_stacks(tmp_path: Path) -> None:
    finish("--flight-recorder-dir", str(tmp_path), sys.executable, JOB, "signal")
    dump = json.loads((tmp_path / "rank0.json").read_text())
    assert dump["reason"] == "signal"
    assert "in wait_for_dump" in dump["stacks"]


@pytest.mark.parametrize("place", ["/proc/none", "{tmp}/file/x"])
def test_a_folder_that_cannot_be_written_costs_one_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    folder = place.format(tmp=tmp_path)
    text = finish("--flight-recorder-dir", folder, sys.executable, JOB, "call")
    assert text.count("The flight recorder can't write") == 1
    assert "goes on" in text


def test_a_program_keeps_its_own_handler_of_the_dump_signal() -> None:
    text = finish(sys.executable, JOB, "own_handler")
    assert f"own handler got {int(signal.SIGUSR2)}" in text
