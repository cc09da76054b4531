"""The figures of a report, against what was planted in the simulated job or counted another way."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import median_low

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timeline_samples import MIB, Sample, write_job

from horovod.runner.timeline.advice import hidden_share, sections, unknown
from horovod.runner.timeline.analysis import analyse
from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.figures import Figures, Steps
from horovod.runner.timeline.header import Header
from horovod.runner.timeline.job import open_job
from horovod.runner.timeline.recording import Operation, Recording
from horovod.runner.timeline.shares import share_of
from horovod.runner.timeline.steps import parse_range
from horovod.runner.timeline.summary import remarks, summary
from horovod.runner.timeline.transfers import Response, fusion_of, responses_of, size_classes


def figures_of(
    folder: Path,
    sample: Sample,
    ranks: list[int] | None = None,
    steps: tuple[int | None, int | None] | None = None,
) -> Figures:
    return analyse(open_job(write_job(folder / "t.json", sample, ranks)), steps)


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-6, abs=0.5)


# --- Compute, waiting, communicating -----------------------------------------------------------------


def test_the_shares_of_a_job_with_a_late_rank_are_those_planted(tmp_path: Path) -> None:
    sample = Sample(late={2: 20_000}, data_wait=200)
    figures = figures_of(tmp_path, sample)
    steps = len(figures.steps.numbers)
    assert steps == sample.steps - 1
    executing = [sample.per_response + size / sample.bandwidth for _, size, _ in sample.layers]
    own = sample.forward + sum(layer[2] for layer in sample.layers) + sample.update
    tail = sample.latency + sample.data_wait + executing[-1]  # after the last gradient
    for share in figures.shares:
        late = sample.late.get(share.rank, 0)
        assert share.wall / steps == near(own + 20_000 + tail)
        assert share.compute / steps == near(own + late)
        assert share.from_callers
    for rank in (0, 1, 3):  # the late rank's first gradient comes after their last
        share = figures.shares[rank]
        assert share.communicating / steps == near(sum(executing))
        assert share.waiting / steps == near(20_000 + tail - sum(executing))
        assert share.hidden == near(0)
        assert share.data_wait / steps == near(4 * sample.data_wait)
    late_share = figures.shares[2]
    assert late_share.communicating / steps == near(executing[-1])
    assert late_share.hidden / steps == near(sum(executing[:-1]))
    assert late_share.waiting / steps == near(sample.latency + sample.data_wait)


def test_clocks_that_differ_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = figures_of(tmp_path / "a", Sample(late={1: 7_000}))
    skewed = Sample(
        late={1: 7_000}, clock_offsets={1: 2e6, 2: -3e9, 3: 0.25}, started={1: 900, 3: 40}
    )
    other = figures_of(tmp_path / "b", skewed)
    for one, two in zip(plain.shares, other.shares, strict=True):
        assert two.waiting == near(one.waiting)
        assert two.compute == pytest.approx(one.compute, abs=1000)
    assert [s.rank for s in other.lateness.ranking] == [1]
    assert other.lateness.ranking[0].late == near(7_000)


times = st.integers(0, 80)
pair = st.tuples(times, times).map(lambda p: (float(min(p)), float(max(p))))


def units(ranges: list[tuple[float, float]]) -> set[int]:
    return {t for begin, end in ranges for t in range(int(begin), int(end))}


def operation(executed: tuple[float, float], waits: list[tuple[float, float]]) -> Operation:
    op = Operation("t", "allreduce", executed[0])
    op.marks.extend((1, executed[0]))
    op.negotiated = op.execute_begin = executed[0]
    op.execute_end = op.end = executed[1]
    op.data_waits = waits
    return op


@given(
    st.lists(pair, max_size=6),
    st.lists(st.tuples(pair, pair), max_size=6),
    st.tuples(times, times).map(sorted),
)
def test_the_partition_is_what_counting_each_unit_of_time_gives(
    blocked: list, executed: list, window: list[int]
) -> None:
    header = Header(1, 2, ("a", "b"), 0, 0.0, 0.0)
    recording = Recording(header, 0.0, 80.0, blocked=blocked, has_waits=True)
    waits = [(max(e[0], w[0]), min(e[1], w[1])) for e, w in executed]
    recording.operations = [operation(e, [w]) for (e, _), w in zip(executed, waits, strict=True)]
    share = share_of(recording, Steps([1], [float(t) for t in window], marked=True))
    wall = set(range(*window))
    stuck = units(blocked) & wall
    transfer = (units([e for e, _ in executed]) - units(waits)) & wall
    assert share.wall == len(wall)
    assert share.communicating == len(stuck & transfer)
    assert share.waiting == len(stuck - transfer)
    assert share.compute == len(wall - stuck)
    assert share.hidden == len(transfer - stuck)
    assert share.data_wait == len(stuck & units(waits))


def test_without_blocked_callers_negotiation_counts_as_waiting_and_it_is_said(
    tmp_path: Path,
) -> None:
    sample = Sample(size=2, late={1: 30_000}, waits=False, data_wait=100)
    figures = figures_of(tmp_path, sample)
    steps = len(figures.steps.numbers)
    executing = sum(sample.per_response + size / sample.bandwidth for _, size, _ in sample.layers)
    first, second = figures.shares
    for share in (first, second):
        assert not share.from_callers
        assert share.communicating / steps == near(executing)
        assert share.compute + share.waiting + share.communicating == near(share.wall)
    # Rank 0 negotiates from its first gradient on; rank 1's are agreed on after the latency.
    assert first.waiting / steps > 30_000
    assert second.waiting / steps == near(4 * (sample.latency / 2 + sample.data_wait))
    assert hidden_share(figures.shares) is None
    assert any("No caller of ranks 0, 1 was seen blocked" in text for text in remarks(figures))


# --- The slowest rank --------------------------------------------------------------------------------


def test_the_rank_that_was_made_late_is_the_slowest_in_each_step(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(late={2: 20_000}, jitter=500))
    (entry,) = figures.lateness.ranking
    assert (entry.rank, entry.host, entry.share) == (2, "b", 1.0)
    assert entry.late == pytest.approx(20_000, abs=500)
    assert entry.cost == pytest.approx(20_000, abs=500)
    text = sections(figures)["slowest"]
    assert "Rank 2 on host b was last in 100 % of the steps" in text
    assert "cost each other rank" in text
    assert "because of the one named below" in sections(figures)["time"]


def test_lateness_is_that_behind_the_median_rank(tmp_path: Path) -> None:
    sample = Sample(size=5, jitter=9_000, seed=7, steps=8)
    figures = figures_of(tmp_path, sample)
    rng = random.Random(sample.seed)
    for row in figures.lateness.matrix:
        extra = [rng.uniform(0, sample.jitter) for _ in range(sample.size)]
        middle = median_low(extra)
        assert list(row) == [pytest.approx(max(0.0, e - middle), abs=0.01) for e in extra]


def test_a_late_host_is_named_where_its_ranks_take_turns(tmp_path: Path) -> None:
    hosts = [f"h{rank // 4}" for rank in range(16)]
    late = dict.fromkeys(range(8, 12), 10000.0)
    figures = figures_of(tmp_path, Sample(size=16, steps=40, hosts=hosts, late=late, jitter=2_000))
    assert {entry.rank for entry in figures.lateness.ranking} <= {8, 9, 10, 11}
    text = sections(figures)
    assert "on host h2" in text["slowest"]
    assert "on host h2" in text["tensors"]


def test_equal_ranks_are_not_blamed(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(jitter=20))
    assert figures.lateness.nobody == len(figures.steps.numbers)
    assert "nothing to do" in sections(figures)["slowest"]


def test_ranks_that_take_turns_are_not_blamed(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(size=8, steps=60, jitter=40_000))
    assert len(figures.lateness.ranking) > 4
    assert "no rank is slow by itself" in sections(figures)["slowest"]
    assert "no single rank is to blame" in sections(figures)["time"]


def test_lateness_within_the_error_of_the_clocks_does_not_count(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(late={2: 700}, clock_error=400))
    assert figures.lateness.ranking == []
    assert any("The clocks of the ranks are known to 400 us only" in t for t in remarks(figures))


def test_what_a_rank_says_of_itself_is_better_than_what_rank_0_heard(tmp_path: Path) -> None:
    sample = Sample(late={1: 4_000}, heard_late={3: 9_000}, latency=20_000)
    everybody = figures_of(tmp_path, sample)
    assert [entry.rank for entry in everybody.lateness.ranking] == [1]
    assert everybody.tensors[0].last_rank == 1
    alone = figures_of(tmp_path, sample, [0])
    assert [entry.rank for entry in alone.lateness.ranking] == [3]


def test_where_a_clock_is_bad_the_word_of_rank_0_counts_and_it_is_said(tmp_path: Path) -> None:
    sample = Sample(late={2: 900}, clock_error=50_000, steps=8)
    paths = write_job(tmp_path / "t.json", sample)
    for path in paths[1:]:  # believed, these clocks would make all ranks but 0 late
        path.write_text(
            path.read_text().replace('_offset_micros": 0.0', '_offset_micros": -40000.0')
        )
    figures = analyse(open_job(paths))
    assert figures.bad_clocks == [1, 2, 3]
    assert [entry.rank for entry in figures.lateness.ranking] == [2]
    assert figures.lateness.ranking[0].late == near(900)
    assert any("the clock of ranks 1 to 3 is not known well enough" in t for t in remarks(figures))


def test_the_file_of_rank_0_alone_tells_who_was_late_and_what_it_cannot(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(late={2: 20_000}), [0])
    assert figures.lateness.ranking[0].rank == 2
    assert figures.lateness.ranking[0].cost == near(20_000)  # to rank 0
    assert "the file of rank 0 alone" in unknown(figures)
    assert "--timeline-all-ranks" in unknown(figures)
    assert len(figures.shares) == 1


def test_the_file_of_another_rank_alone_blames_nobody(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(late={2: 20_000}), [1])
    assert figures.lateness.ranking == []
    assert "not in this file" in sections(figures)["slowest"]
    assert figures.tensors == []


def test_a_missing_rank_is_seen_from_rank_0(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(late={2: 20_000}), [0, 1, 3])
    assert figures.lateness.ranking[0].rank == 2
    assert any("no file of rank 2" in text for text in remarks(figures))


# --- Steps -------------------------------------------------------------------------------------------


def test_a_first_step_that_is_much_longer_is_left_out_and_it_is_said(tmp_path: Path) -> None:
    sample = Sample(first_step_extra=900_000)
    figures = figures_of(tmp_path, sample)
    assert figures.steps.numbers == list(range(1, sample.steps - 1))
    assert any("Step 0, the first, took" in text for text in remarks(figures))
    assert all(share.wall < 900_000 for share in figures.shares)
    everything = figures_of(tmp_path, sample, steps=(0, None))
    assert everything.steps.numbers == list(range(sample.steps - 1))


def test_steps_can_be_chosen(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(steps=20), steps=(5, 9))
    assert figures.steps.numbers == [5, 6, 7, 8, 9]
    assert figures.fusion.responses == 5 * 4
    assert any("Only steps 5 to 9" in text for text in remarks(figures))
    with pytest.raises(TimelineError, match="no complete step from 50"):
        figures_of(tmp_path, Sample(steps=20), steps=(50, None))


def test_without_marks_of_steps_the_whole_recording_counts(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(steps=1, late={1: 5_000}))
    assert not figures.steps.marked
    assert figures.fusion.responses == 4
    assert "no marks of steps" in sections(figures)["slowest"]


@pytest.mark.parametrize("text", ["5", "x:", "9:5", "", "1:2:3"])
def test_a_range_of_steps_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected FIRST:LAST"):
        parse_range(text)


# --- Tensors, sizes, fusion --------------------------------------------------------------------------


def test_the_tensor_that_is_waited_for_longest_comes_first(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(size=2, late={1: 4_000}))
    assert len(figures.tensors) == 4
    for tensor in figures.tensors:
        assert tensor.typical == near(4_000)
        assert tensor.waited == near(4_000 * tensor.times)
        assert (tensor.last_rank, tensor.last_share) == (1, 1.0)
    assert "that rank is slow, not a layer" in sections(figures)["tensors"]


def test_bytes_time_and_bandwidth_are_those_planted(tmp_path: Path) -> None:
    sample = Sample(size=2, data_wait=300)
    figures = figures_of(tmp_path, sample)
    steps = len(figures.steps.numbers)
    by_label = {c.label: c for c in figures.sizes}
    assert list(by_label) == ["up to 1 KiB", "16 to 256 KiB", "256 KiB to 4 MiB", "4 to 64 MiB"]
    for label, size in (("up to 1 KiB", 512), ("4 to 64 MiB", 16 * MIB)):
        entry = by_label[label]
        time = sample.per_response + size / sample.bandwidth
        assert (entry.responses, entry.bytes) == (steps, steps * size)
        assert entry.time == near(steps * time)
        assert entry.bandwidth == pytest.approx(size / time * 1e6, rel=1e-4)
        assert entry.best == pytest.approx(entry.bandwidth, rel=1e-3)


def test_fused_tensors_are_one_response(tmp_path: Path) -> None:
    sample = Sample(size=2, fuse=3)
    fusion = figures_of(tmp_path, sample).fusion
    steps = sample.steps - 1
    assert (fusion.responses, fusion.tensors) == (2 * steps, 4 * steps)
    assert fusion.fused_tensors == 3 * steps
    assert fusion.fused_bytes == steps * sum(layer[1] for layer in sample.layers[:3])
    assert {label: n for label, n, _ in fusion.by_count if n} == {"1": steps, "2-3": steps}
    assert fusion.decision is not None


def test_size_classes_keep_every_byte_and_kind() -> None:
    rng = random.Random(3)
    responses = [
        Response(rng.choice(["allreduce", "allgather"]), 1, rng.randrange(10**9), rng.random())
        for _ in range(500)
    ]
    classes = size_classes(responses)
    for kind in ("allreduce", "allgather"):
        mine = [c for c in classes if c.kind == kind]
        assert sum(c.bytes for c in mine) == sum(r.bytes for r in responses if r.kind == kind)
        assert sum(c.responses for c in mine) == sum(r.kind == kind for r in responses)


def test_operations_that_were_never_executed_are_no_responses() -> None:
    done = operation((0.0, 10.0), [(2.0, 5.0)])
    done.bytes, done.response = 8, 1
    twin = operation((0.0, 10.0), [(2.0, 5.0)])
    twin.bytes, twin.response = 4, 1
    never = Operation("n", "barrier", 0.0)
    (response,) = responses_of([done, twin, never])
    assert (response.tensors, response.bytes, response.time) == (2, 12, 7.0)
    assert fusion_of([], []).decision is None
    assert math.isnan(never.execute_begin)


# --- When the recording ended --------------------------------------------------------------------------


def test_a_hang_names_the_rank_that_did_not_submit(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(size=4, steps=6, open_end=True, missing=3))
    assert len(figures.pending) == 4
    assert all(p.silent == [3] and p.ready == [0, 1, 2] for p in figures.pending)
    assert "rank 3 on host b has not submitted them" in sections(figures)["pending"]


def test_the_summary_has_a_line_for_each_section_and_no_control_characters(tmp_path: Path) -> None:
    layers = [("evil\x1b[31m\n\ud800", 4 * MIB, 900.0), ("b", 4, 100.0)]
    figures = figures_of(tmp_path, Sample(layers=layers, late={1: 5_000}))
    text = summary(figures)
    for title in ("Time", "Hidden", "Slowest rank", "Tensors", "Bandwidth", "Fusion"):
        assert f"\n{title}" in text
    assert all(c.isprintable() or c == "\n" for c in text)
    assert max(len(line) for line in text.splitlines()) <= 100


def test_one_rank_alone_gets_a_report_too(tmp_path: Path) -> None:
    figures = figures_of(tmp_path, Sample(size=1))
    assert "waits for nobody" in sections(figures)["time"]
    assert unknown(figures) == ""
