"""Throughput from a script's output and from step marks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from horovod.runner.scaling.step_marks import read_marks, throughput_of_marks
from horovod.runner.scaling.throughput import (
    PER_RANK,
    TOTAL,
    UNSAID,
    Throughput,
    compile_pattern,
    sight,
    throughput_of,
)


def of(lines: list[str], ranks: int, pattern: str | None = None, figure: str = "auto"):
    compiled = None if pattern is None else compile_pattern(pattern)
    seen = [sight(line, compiled, figure) for line in lines]
    return throughput_of([one for one in seen if one is not None], ranks)


@pytest.mark.parametrize(
    ("text", "value", "unit", "whose"),
    [
        ("epoch 1/2: train loss 0.3, 12,345 images/s", 12345, "images", UNSAID),
        ("Iter #3: 12.5 img/sec per CPU", 12.5, "images", PER_RANK),
        ("Img/sec per GPU: 103.4 +-0.4", 103.4, "images", PER_RANK),
        ("Total img/sec on 4 GPU(s): 413.6 +-1.6", 413.6, "images", TOTAL),
        ("total images/sec: 1656.82", 1656.82, "images", TOTAL),
        ("all ranks: 99 samples per second", 99, "samples", TOTAL),
        ("100\timages/sec: 139.2 +/- 0.0 (jitter = 0.3)\t7.917", 139.2, "images", UNSAID),
        (
            "average examples/sec: 10.5, current examples/sec: 11.5, step: 3",
            11.5,
            "examples",
            UNSAID,
        ),
        ("  5%|5    | 5/100 [00:01<00:19,  4.94it/s]", 4.94, "steps", PER_RANK),
        ("  5%|5    | 5/100 [00:09<02:59,  1.25s/it]", 0.8, "steps", PER_RANK),
        ("469/469 - 6s - 12ms/step - loss: 0.2", 1 / 0.012, "steps", PER_RANK),
        ("speed 1.5e3 tokens/s/gpu", None, None, None),  # who knows what s/gpu is
        ("1.5e3 tokens/s", 1500, "tokens", UNSAID),
        ("\x1b[32m7 seqs/s\x1b[0m", 7, "sequences", UNSAID),
        ("3 batches/sec", 3, "steps", PER_RANK),
        ("loss 0.25 after 3 s", None, None, None),
        ("read 200 MB/s", None, None, None),
        ("0 images/s", None, None, None),
        ("nan images/s", None, None, None),
        ("10.1.2.3 images/subset", None, None, None),
    ],
)
def test_a_line_is_understood(text: str, value: float, unit: str, whose: str) -> None:
    seen = sight(f"[0]<stdout>:{text}\n")
    if value is None:
        assert seen is None
    else:
        assert seen is not None
        assert (seen.value, seen.unit, seen.whose) == (pytest.approx(value), unit, whose)


def test_lines_of_the_launcher_itself_are_no_throughput() -> None:
    assert sight("1000 images/s") is None
    stamped = sight("Sun Nov 30 15:00:00 2025[12]<stderr>:7 images/s")
    assert stamped is not None and stamped.rank == 12


def test_a_total_is_believed_before_figures_of_ranks() -> None:
    lines = [f"[0]<stdout>:Iter #{i}: {10 + i}.0 img/sec per CPU" for i in range(10)]
    lines += ["[0]<stdout>:Img/sec per CPU: 14.0", "[0]<stdout>:Total img/sec on 2 CPU(s): 27.5"]
    assert of(lines, 2) == Throughput(27.5, "images", "the script's total")


def test_figures_of_one_rank_count_for_all() -> None:
    found = of(["[0]<stdout>:12 img/sec per GPU"], 4)
    assert found == Throughput(48, "images", "rank 0's figure x 4 ranks")
    assert of(["[0]<stderr>: 5/9 [00:01<00:19, 2.5it/s]"], 4).value == 10


def test_what_every_rank_prints_is_summed() -> None:
    lines = [f"[{rank}]<stdout>:{10 + rank} images/s" for rank in range(4)]
    assert of(lines, 4) == Throughput(46, "images", "sum of 4 ranks' figures")
    # Two of four: their mean stands for the others.
    assert of(lines[:2], 4).value == 42


def test_a_lone_line_that_does_not_say_is_a_total_unless_told_otherwise() -> None:
    line = ["[0]<stdout>:100 images/s"]
    assert of(line, 4).value == 100
    assert "taken as the total" in of(line, 4).how
    assert of(line, 4, figure="per-rank").value == 400
    assert of(["[0]<stdout>:12 img/sec per GPU"], 4, figure="total").value == 12


def test_of_repeated_lines_the_median_after_the_warm_up_counts() -> None:
    values = [1, 1, 2, 40, 50, 50, 50, 900]
    lines = [f"[0]<stdout>:step {i}: {value} images/s" for i, value in enumerate(values)]
    assert of(lines, 1).value == 50


def test_a_pattern_of_the_user_replaces_the_known_ones() -> None:
    lines = ["[0]<stdout>:speed=12.5 (5 images/s)", "[0]<stdout>:nothing"]
    assert of(lines, 2, r"speed=([0-9.]+)").value == 12.5
    named = of(lines, 2, r"(?P<what>speed)=(?P<value>[0-9.]+)", "per-rank")
    assert named.value == 25
    assert of(["[0]<stdout>:speed=fast"], 2, r"speed=(\w+)") is None


@pytest.mark.parametrize("text", ["(", "[0-9]+", "", "(?P<value>"])
def test_a_pattern_that_can_not_work_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a regular expression"):
        compile_pattern(text)


# --- step marks ----------------------------------------------------------------------------------


def timeline(path: Path, stamps: list[float], start: int = 0, closed: bool = True) -> Path:
    header = {
        "name": "process_name", "ph": "M", "pid": 0,
        "args": {"name": "Horovod", "start_time_since_epoch_in_micros": start, "rank": 0},
    }  # fmt: skip
    events = [header]
    events += [
        {"name": "STEP", "ph": "i", "s": "p", "ts": ts, "pid": 0, "args": {"step": i}}
        for i, ts in enumerate(stamps)
    ]
    text = "[\n" + ",\n".join(map(json.dumps, events))
    path.write_text(text + ("\n]\n" if closed else ""))
    return path


def test_step_marks_give_steps_of_all_ranks(tmp_path: Path) -> None:
    # The first steps are slow, and one waits for an evaluation.
    stamps = [0, 9e5, 12e5, 13e5, 14e5, 15e5, 65e5, 66e5, 67e5]
    found = throughput_of_marks(read_marks(timeline(tmp_path / "t.json", stamps)), 4)
    assert found == Throughput(pytest.approx(40), "steps", "9 step marks x 4 ranks")


def test_marks_survive_rotation_and_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    timeline(tmp_path / "t.json.1", [0, 1e5, 2e5], start=5_000_000)
    timeline(path, [0.5e5, 1.5e5], start=5_250_000, closed=False)
    path.write_text(path.read_text() + ',\n{"name":"STEP","ph":"i","t')
    assert read_marks(path) == pytest.approx([5.0, 5.1, 5.2, 5.3, 5.4])


def test_too_few_marks_say_nothing(tmp_path: Path) -> None:
    assert throughput_of_marks(read_marks(timeline(tmp_path / "t.json", [0, 1, 2])), 2) is None
    (tmp_path / "empty.json").write_text("")
    assert read_marks(tmp_path / "empty.json") == []
