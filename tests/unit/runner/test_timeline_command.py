"""horovodrun timeline merge|report: exit codes, what is printed, and the page as text."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest
from timeline_samples import Sample, write_job

from horovod.runner.launch import run_commandline
from horovod.runner.timeline.analysis import analyse
from horovod.runner.timeline.command import timeline
from horovod.runner.timeline.heatmap import png
from horovod.runner.timeline.job import open_job
from horovod.runner.timeline.page import page
from horovod.runner.timeline.units import duration, percent, rate, shown, size


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return [str(p) for p in write_job(tmp_path / "t.json", Sample(late={2: 20_000}))]


def test_report_writes_a_page_and_prints_its_summary(
    job: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_commandline(["timeline", "report", *job]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("4 ranks on 2 hosts, 19 steps of 41.1 ms\n")
    assert "Rank 2 on host b was last in 100 % of the steps" in out
    assert "timeline-report.html" in out.splitlines()[-1]
    assert err == ""
    assert Path("timeline-report.html").read_text().startswith("<!DOCTYPE html>")


def test_merge_writes_a_trace(job: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert timeline(["merge", "-o", "all.json", *job]) == 0
    assert "perfetto" in capsys.readouterr().out
    assert json.loads(Path("all.json").read_text())[0]["args"]["size"] == 4


@pytest.mark.parametrize("command", ["merge", "report"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file"),
        ("", "is empty"),
        ("[\n{", "line 2, column"),
        ("{}", "no "),
        ('[\n{"ph": "B", "name": "x", "ts": 1, "pid": 1}\n]', "line 2: no timeline of Horovod"),
    ],
)
def test_a_bad_file_ends_with_1_and_one_line_that_names_it(
    command: str,
    text: str | None,
    reason: str,
    job: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is not None:
        Path("bad.json").write_text(text)
    assert timeline([command, "-o", "out", job[0], "bad.json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("horovodrun timeline: error: bad.json: ")
    assert reason in err
    assert err.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize("command", ["merge", "report"])
@pytest.mark.parametrize("output", ["nowhere/out", "."])
def test_an_output_that_cannot_be_written_ends_with_1(
    command: str, output: str, job: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert timeline([command, "-o", output, *job]) == 1
    assert re.match(r"horovodrun timeline: error: (nowhere/out|\.)", capsys.readouterr().err)


@pytest.mark.parametrize("command", ["merge", "report"])
def test_a_file_that_is_read_is_not_overwritten(
    command: str, job: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(job[1]).read_bytes()
    assert timeline([command, "-o", job[1], *job]) == 1
    assert "one of the files to read" in capsys.readouterr().err
    assert Path(job[1]).read_bytes() == before


@pytest.mark.parametrize(
    "arguments", [[], ["draw"], ["report"], ["report", "--steps", "9:1", "t.json"]]
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        timeline(arguments)
    assert caught.value.code == 2


def test_names_that_the_terminal_cannot_show_do_no_harm(tmp_path: Path) -> None:
    layers = [("模型\x1b]0;x\x07.weight", 4_000_000, 900.0)]
    paths = write_job(tmp_path / "t.json", Sample(size=2, layers=layers, late={1: 9_000}))
    done = subprocess.run(
        [sys.executable, "-m", "horovod.runner", "timeline", "report", "-o", "r.html", *paths],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    assert b"\\u6a21" in done.stdout


# --- The page --------------------------------------------------------------------------------------


class Elements(HTMLParser):
    """What a page consists of; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def page_of(folder: Path, sample: Sample, ranks: list[int] | None = None) -> str:
    return page(analyse(open_job(write_job(folder / "t.json", sample, ranks))))


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text = page_of(tmp_path, Sample(late={2: 20_000}))
    for tag, attributes in Elements(text).found:
        assert tag not in ("link", "iframe", "object", "base", "form")
        assert not (tag == "script" and "src" in attributes)
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert "default-src 'none'" in text
    assert "@import" not in text
    assert "url(" not in text


def test_each_section_has_its_sentence(tmp_path: Path) -> None:
    text = page_of(tmp_path, Sample(late={2: 20_000}))
    sections = re.findall(
        r'<section id="(\w+)"><h2>.*?</h2>\n<p class="advice[^>]*>(.*?)</p>', text
    )
    names = [name for name, _ in sections]
    assert names == ["time", "hidden", "slowest", "tensors", "sizes", "fusion"]
    assert all(re.fullmatch(r"[^\n]{20,400}\.", sentence) for _, sentence in sections)


def test_names_are_never_markup(tmp_path: Path) -> None:
    name = "</td><script>alert(1)</script><b x=\"'&"
    layers = [(name, 4_000_000, 900.0), ("b", 4, 100.0)]
    hosts = ["<i>a</i>", "\"'<b>"]
    text = page_of(tmp_path, Sample(size=2, hosts=hosts, layers=layers, late={1: 9_000}))
    kinds = [tag for tag, _ in Elements(text).found]
    assert kinds.count("script") == 1
    assert "b" in kinds  # of the tiles
    assert "i" in kinds  # of the legends
    assert "<script>alert" not in text
    assert "&lt;/td&gt;&lt;script&gt;" in text
    assert "<i>a</i>" not in text


@pytest.mark.parametrize("size", [1, 2, 33, 256])
def test_the_page_of_any_number_of_ranks_is_well_formed_and_small(
    size: int, tmp_path: Path
) -> None:
    hosts = [f"node{rank // 8}" for rank in range(size)]
    text = page_of(tmp_path, Sample(size=size, steps=4, hosts=hosts, jitter=9_000))
    Elements(text)
    assert len(text) < 60_000 + 700 * size
    assert ('id="rank-columns"' in text) == (size > 32)
    assert len(re.findall('class="legend"', text)) <= 2


def test_a_single_file_says_what_cannot_be_known(tmp_path: Path) -> None:
    text = page_of(tmp_path, Sample(late={2: 20_000}), [0])
    assert "the other 3 ranks" in text
    assert "be known from it" in text


def test_pictures_are_valid_png() -> None:
    rows = [bytes([0, 255, 7]), bytes([1, 2, 3])]
    data = png(rows, (10, 20, 30))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    place, chunks = 8, {}
    while place < len(data):
        (length,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack_from(">I", data, place + 8 + length)[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + length
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (3, 2, 8, 6, 0, 0, 0)
    raw = zlib.decompress(chunks[b"IDAT"])
    assert [raw[1 + 13 * r + 4 * x + 3] for r in range(2) for x in range(3)] == [0, 255, 7, 1, 2, 3]
    assert base64.b64decode(base64.b64encode(data)) == data


def test_figures_are_written_as_people_read_them() -> None:
    assert [duration(t) for t in (0, 0.5, 999.4, 20_123, 1e6, 65e6, 300e6)] == [
        "0 us",
        "0.50 us",
        "999 us",
        "20.1 ms",
        "1 s",
        "65 s",
        "5 min",
    ]
    assert [size(n) for n in (0, 1023, 1024, 16 << 20, 3 << 30)] == [
        "0 B",
        "1,023 B",
        "1 KiB",
        "16 MiB",
        "3 GiB",
    ]
    assert [percent(s) for s in (0, 0.0004, 0.0123, 0.931, 1)] == [
        "0 %",
        "< 0.1 %",
        "1.2 %",
        "93 %",
        "100 %",
    ]
    assert rate(7.93e9) == "7.93 GB/s"
    assert shown("a" * 100, 20) == "aaaaa...aaaaaaaaaaaa"
