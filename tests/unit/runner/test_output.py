"""Lines, prefixes and files of the workers' output."""

from __future__ import annotations

import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from horovod.runner import output
from horovod.runner.output import LineSplitter, Output, Sink
from horovod.runner.protocol import STDERR, STDOUT


class Console:
    """Two sinks that remember what they got."""

    def __init__(self) -> None:
        self.raw = {stream: io.BytesIO() for stream in (STDOUT, STDERR)}
        self.sinks = {s: Sink(io.TextIOWrapper(raw)) for s, raw in self.raw.items()}

    def text(self, stream: int = STDOUT) -> bytes:
        return self.raw[stream].getvalue()


def lines(*pieces: bytes) -> list[bytes]:
    splitter = LineSplitter()
    found = [piece for data in pieces for piece in splitter.feed(data)]
    return [piece.data for piece in found + splitter.flush()]


def test_lines_end_at_newline_return_or_both() -> None:
    assert lines(b"a\nb\rc\r\nd") == [b"a\n", b"b\r", b"c\r\n", b"d"]
    assert lines(b"\n\r\r\n") == [b"\n", b"\r", b"\r\n"]
    assert lines(b"form\x0cfeed\x85\n") == [b"form\x0cfeed\x85\n"]


@given(st.lists(st.sampled_from([b"a", b"\r", b"\n", "é".encode(), b"xyz"])), st.randoms())
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts, random) -> None:
    text = b"".join(parts)
    cuts = sorted(random.sample(range(len(text) + 1), min(3, len(text) + 1)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert lines(*pieces) == lines(text)
    assert b"".join(lines(*pieces)) == text


def test_a_line_too_long_to_hold_is_cut_between_characters(monkeypatch) -> None:
    monkeypatch.setattr(output, "HELD_BYTES", 4)
    splitter = LineSplitter()
    first = splitter.feed("aaé".encode() + "€".encode()[:1])
    assert [(p.data, p.continued) for p in first] == [("aaé".encode(), False)]
    rest = splitter.feed("€".encode()[1:] + b"\nnext\n")
    assert [(p.data, p.continued) for p in rest] == [("€\n".encode(), True), (b"next\n", False)]


def test_prefixes_stand_before_every_line_on_the_right_stream() -> None:
    console = Console()
    out = Output(2, sinks=console.sinks)
    out.write(0, STDOUT, b"one\ntw")
    out.write(1, STDERR, b"bad\n")
    out.write(0, STDOUT, b"o\nend")
    assert console.text() == b"[0]<stdout>:one\n[0]<stdout>:two\n"
    out.end(0)
    assert console.text().endswith(b"[0]<stdout>:end")
    assert console.text(STDERR) == b"[1]<stderr>:bad\n"


def test_timestamps_come_first() -> None:
    console = Console()
    Output(1, timestamps=True, sinks=console.sinks, clock=lambda: "NOON").write(0, STDOUT, b"x\n")
    assert console.text() == b"NOON[0]<stdout>:x\n"


def test_bytes_that_are_not_utf8_pass_unchanged() -> None:
    console = Console()
    Output(1, sinks=console.sinks).write(0, STDOUT, b"\xff\xc3\n")
    assert console.text() == b"[0]<stdout>:\xff\xc3\n"


def test_a_text_stream_without_bytes_gets_text() -> None:
    text = io.StringIO()
    Output(1, sinks={STDOUT: Sink(text), STDERR: Sink(text)}).write(0, STDOUT, "é\n".encode())
    assert text.getvalue() == "[0]<stdout>:é\n"


def test_the_last_lines_are_remembered_without_blank_ones() -> None:
    out = Output(1, sinks=Console().sinks)
    for number in range(50):
        out.write(0, STDOUT, b"%d\n\n" % number)
    out.write(0, STDERR, b"x" * 5000 + b"\n")
    remembered = out.last_lines(0)
    assert remembered[0] == "[0]<stdout>:31" and len(remembered) == 20
    assert len(remembered[-1]) < 2100
    assert out.last_lines(7) == []


def test_files_hold_the_bytes_of_each_rank(tmp_path: Path) -> None:
    out = Output(2, str(tmp_path), sinks=Console().sinks)
    out.write(1, STDERR, b"no newline")
    out.close()
    assert (tmp_path / "rank.1" / "stderr").read_bytes() == b"no newline"
    assert (tmp_path / "rank.0" / "stdout").read_bytes() == b""
