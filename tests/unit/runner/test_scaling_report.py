"""The report of `horovodrun scaling`: figures, table, JSON and pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.runner.scaling import plot
from horovod.runner.scaling.report import Measured, as_json, rows_of, table
from horovod.runner.scaling.throughput import Throughput

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def images(value: float) -> Throughput:
    return Throughput(value, "images", "the script's total")


def steps(value: float) -> Throughput:
    return Throughput(value, "steps", "marks")


SIZES = [
    Measured(2, 0, 10.0, images(100)),
    Measured(4, 0, 10.5, images(180)),
    Measured(8, 3, 1.0, images(999)),
    Measured(16, 0, 11.0, images(600)),
]


def test_speed_up_and_efficiency_are_relative_to_the_smallest_size() -> None:
    rows = rows_of(SIZES)
    assert [row.speed_up for row in rows] == [1.0, pytest.approx(1.8), None, pytest.approx(6.0)]
    assert [row.efficiency for row in rows] == [1.0, pytest.approx(0.9), None, pytest.approx(0.75)]


def test_a_failed_size_shows_its_exit_code_and_no_figures() -> None:
    text = table(rows_of(SIZES))
    line = next(line for line in text.splitlines() if line.split()[0] == "8")
    assert "failed with exit code 3" in line and "999" not in line
    assert "SPEED-UP (of 2)" in text and "IMAGES/S" in text


def test_sizes_are_compared_by_one_measure() -> None:
    # One size printed nothing: step marks, which all have, are the common measure.
    rows = rows_of([Measured(1, 0, 1, images(50), steps(5)), Measured(2, 0, 1, None, steps(9))])
    assert [row.throughput for row in rows] == [steps(5), steps(9)]
    # Without marks, the sizes that printed are compared with each other.
    rows = rows_of(
        [Measured(1, 0, 1, images(50)), Measured(2, 0, 1), Measured(4, 0, 1, images(100))]
    )
    assert [row.efficiency for row in rows] == [1.0, None, 0.5]


def test_nothing_measured_is_a_report_without_figures() -> None:
    rows = rows_of([Measured(1, 1, 2.0), Measured(2, 0, 2.0)])
    assert "failed with exit code 1" in table(rows) and "no throughput found" in table(rows)
    assert plot.text_plot(rows, "utf-8") == ""


def test_json_has_every_size() -> None:
    document = as_json(rows_of(SIZES), ["-H", "a:16", "python", "t.py"])
    assert document["base_ranks"] == 2
    assert [size["ranks"] for size in document["sizes"]] == [2, 4, 8, 16]
    assert document["sizes"][2]["throughput"] is None and document["sizes"][2]["exit_code"] == 3
    assert document["sizes"][3]["unit"] == "images/s"


@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "ascii", "latin-1", None])
def test_the_terminal_plot_can_be_printed_in_every_encoding(encoding: str | None) -> None:
    text = plot.text_plot(rows_of(SIZES), encoding)
    text.encode(encoding or "ascii")
    assert ("●" in text) == (encoding in ("utf-8", "UTF8"))


def test_the_terminal_plot_puts_the_points_where_they_belong() -> None:
    rows = rows_of([Measured(n, 0, 1, images(10.0 * n)) for n in (1, 2, 4)])
    grid = [line[9:] for line in plot.text_plot(rows, "ascii").splitlines()[1 : plot.HEIGHT + 1]]
    points = [
        (column, plot.HEIGHT - 1 - row)
        for row, line in enumerate(grid)
        for column, mark in enumerate(line)
        if mark == "*"
    ]
    assert sorted(points) == [(15, 3), (30, 6), (59, 13)]  # on the diagonal: nothing is lost
    assert plot.text_plot(rows, "ascii").splitlines()[-1].split() == ["1", "2", "4", "ranks"]


def test_a_png_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "scaling.png"
    plot.write_png(rows_of(SIZES), "python train.py --price $5 --cost $6", file)
    assert file.read_bytes().startswith(PNG_MAGIC)


def test_a_picture_that_can_not_be_drawn_is_refused_before_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "ends in .png" in str(plot.why_no_png(tmp_path / "plot.pdf"))
    assert "no folder" in str(plot.why_no_png(tmp_path / "nowhere" / "plot.png"))
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'horovod[plots]'" in str(plot.why_no_png(tmp_path / "plot.png"))
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: object())
    assert plot.why_no_png(tmp_path / "plot.png") is None
