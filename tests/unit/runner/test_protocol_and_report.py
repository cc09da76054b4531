"""Frames between driver and agent, and what is said at the end of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.runner import protocol
from horovod.runner.oom import OomWatch
from horovod.runner.protocol import FrameReader, Job, Worker, encode
from horovod.runner.report import Failure, culprit, describe


def test_frames_survive_being_cut_anywhere() -> None:
    messages = [["output", 1, 2, bytes(range(256))], ["done"], ["note", "é"]]
    stream = b"".join(encode(message) for message in messages)
    for step in (1, 3, len(stream)):
        reader = FrameReader()
        pieces = [stream[i : i + step] for i in range(0, len(stream), step)]
        assert [m for piece in pieces for m in reader.feed(piece)] == messages


def test_a_job_survives_its_frame() -> None:
    worker = Worker(3, {b"HOROVOD_RANK": b"3", b"X": b"\xff\n"})
    job = Job("host", [b"a", b"\xfe"], b"/tmp", {b"A": b""}, [worker], 4, ["192.0.2.1"], 80, b"k")
    [message] = FrameReader().feed(encode(job.to_message()))
    assert Job.from_message(message) == job
    with pytest.raises(ValueError, match="expects its job first"):
        Job.from_message(["kill"])


def test_frames_that_are_too_long_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 10)
    with pytest.raises(ValueError, match="too long"):
        encode(["output", bytes(20)])
    with pytest.raises(ValueError, match="announced"):
        list(FrameReader().feed(b"\xff\xff\xff\xff"))


ONE = Failure(1, "h", 1)
TWO = Failure(2, "h", 137, 9)


def test_a_rank_that_failed_because_of_another_is_not_the_culprit() -> None:
    lost = ["[1]<stderr>:horovod.common.exceptions.HorovodInternalError: rank 2 died"]
    assert culprit([ONE, TWO], {1: lost, 2: []})[0] == TWO
    assert culprit([ONE, TWO], {1: [], 2: []})[0] == ONE
    assert culprit([ONE, TWO], {1: lost, 2: lost})[0] == ONE


def test_the_report_names_rank_host_signal_and_last_lines() -> None:
    text = describe(TWO._replace(text="out of memory"), ["[2]<stdout>:a", "[2]<stderr>:b"])
    assert "The first process to do so was:\nProcess name: 2\nExit code: 137\n" in text
    assert "Rank 2 on host h was killed by signal 9 (SIGKILL): out of memory." in text
    assert text.endswith("[2]<stdout>:a\n[2]<stderr>:b\n")
    assert "Host h: the agent is gone." in describe(
        Failure(None, "h", 1, 0, "the agent is gone"), []
    )
    assert "signal 40 (real-time signal)" in describe(Failure(0, "h", 168, 40), [])


def test_a_rising_count_speaks_for_the_out_of_memory_killer(tmp_path: Path) -> None:
    events = tmp_path / "memory.events"
    events.write_text("low 0\noom 1\noom_kill 1\n")
    watch = OomWatch([str(tmp_path / "absent"), str(events)])
    assert watch.evidence() == ""
    events.write_text("low 0\noom 2\noom_kill 3\n")
    assert "out-of-memory killer: it struck 2 time(s) in this job's group" in watch.evidence()
