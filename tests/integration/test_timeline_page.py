"""The report of timelines in a real browser: what it shows, in all widths, and that it loads nothing."""

from __future__ import annotations

import json
import re
import struct
import sys
import zlib
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from horovod.runner.timeline.analysis import analyse
from horovod.runner.timeline.job import open_job
from horovod.runner.timeline.page import page

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "unit" / "runner"), str(ROOT / "tools")]

from timeline_samples import Sample, showcase, write_job  # noqa: E402

from capture_report import browse, find_browser, with_script  # noqa: E402

pytestmark = pytest.mark.skipif(find_browser() is None, reason="no Chromium is installed")

DARK = "--blink-settings=preferredColorScheme=0"
# Looks at the page as a reader would, and leaves what it found in the title.
PROBE = """
const box = (e) => e.getBoundingClientRect();
const all = (s) => [...document.querySelectorAll(s)];
const hover = (e, x, y) => {
  const b = box(e);
  e.dispatchEvent(new PointerEvent("pointermove", {
    bubbles: true, clientX: b.left + x * b.width, clientY: b.top + y * b.height }));
  return getComputedStyle(tip).display === "block" ? tip.textContent : null;
};
addEventListener("load", () => {
  const map = document.querySelector("img[data-rows]");
  const found = {
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    background: getComputedStyle(document.body).backgroundColor,
    bars: all("#rank-bars .stack").map((s) => [...s.children].map((c) => box(c).width / box(s).width)),
    columns: all("#rank-columns svg > g").length,
    columnTip: all("#rank-columns svg > g").slice(140, 141).map((g) => hover(g.firstChild, 0.5, 0.5))[0],
    legends: all("#time .legend span").map((s) => s.textContent),
    clipped: all("p, h2, li, .tile").filter((e) => e.scrollWidth > e.clientWidth + 1).length,
    map: map && [map.naturalWidth, map.naturalHeight, box(map).height],
    mapTip: map && hover(map, MAPX, MAPY),
    away: hover(document.querySelector("h1"), 0.5, 0.5),
    resources: performance.getEntriesByType("resource").map((r) => r.name.slice(0, 30)),
  };
  document.title = "probe " + JSON.stringify(found);
});
"""


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The pages of a small and of a large job."""
    folder = tmp_path_factory.mktemp("reports")
    pages = {}
    for size in (2, 256):
        (folder / str(size)).mkdir()
        sample = showcase(size)
        sample.steps = 7
        files = write_job(folder / str(size) / "t.json", sample)
        pages[size] = folder / f"{size}.html"
        pages[size].write_text(page(analyse(open_job(files))), encoding="utf-8")
    return pages


def probe(
    path: Path, folder: Path, width: int = 1280, at: tuple[float, float] = (0.5, 0.5), *flags: str
) -> dict[str, Any]:
    script = PROBE.replace("MAPX", str(at[0])).replace("MAPY", str(at[1]))
    copy = with_script(path, script, folder / "probed.html")
    dom, console = browse(copy, "--dump-dom", *flags, size=(width, 900))
    assert console == ""
    found = re.search(r"<title>probe (.*?)</title>", dom, re.DOTALL)
    assert found, dom[:2000]
    return json.loads(unescape(found[1]))


def test_the_bars_of_two_ranks_have_the_widths_of_their_shares(
    reports: dict[int, Path], tmp_path: Path
) -> None:
    found = probe(reports[2], tmp_path, 1280, (0.5, 0.75))
    (compute, _, waiting), (late_compute, _, late_waiting) = found["bars"]
    assert waiting > 0.1 > late_waiting
    assert late_compute > compute
    for parts in found["bars"]:
        assert sum(parts) == pytest.approx(1, abs=0.02)
    assert len(found["legends"]) == 3
    assert re.fullmatch(r"rank 1 on node01\nstep \d+: about .* ms behind", found["mapTip"])
    assert found["away"] is None


def test_256_ranks_are_columns_and_a_map_and_not_256_names(
    reports: dict[int, Path], tmp_path: Path
) -> None:
    found = probe(reports[256], tmp_path, 1280, (0.5, 140.5 / 256))
    assert found["bars"] == []
    assert found["columns"] == 256
    assert found["columnTip"].startswith("rank 140 on node17\n")
    assert len(found["legends"]) == 3
    assert found["map"][1] == 256
    assert found["map"][2] >= 400
    assert re.fullmatch(r"rank 140 on node17\nstep \d+: about .* ms behind", found["mapTip"])
    calm = probe(reports[256], tmp_path, 1280, (0.5, 137.0 / 2560))
    assert calm["mapTip"].startswith("rank 13 on node01")


@pytest.mark.parametrize("size", [2, 256])
@pytest.mark.parametrize("width", [500, 800, 1280, 2000])
def test_nothing_overflows_at_any_width_and_nothing_is_loaded(
    size: int, width: int, reports: dict[int, Path], tmp_path: Path
) -> None:
    found = probe(reports[size], tmp_path, width)
    assert found["overflow"] <= 0
    assert found["clipped"] == 0
    assert all(name.startswith("data:") for name in found["resources"])


def test_the_page_follows_the_readers_choice_of_light_or_dark(
    reports: dict[int, Path], tmp_path: Path
) -> None:
    light = probe(reports[2], tmp_path)["background"]
    dark = probe(reports[2], tmp_path, 1280, (0.5, 0.5), DARK)["background"]
    assert min(map(int, re.findall(r"\d+", light))) > 200
    assert max(map(int, re.findall(r"\d+", dark))) < 60


def test_names_of_tensors_run_no_script(tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='probe {}'\"><script>document.title='x'</script>"
    sample = Sample(size=2, hosts=[evil, evil], layers=[(evil, 4_000_000, 900.0)], late={1: 9_000})
    report = tmp_path / "r.html"
    report.write_text(page(analyse(open_job(write_job(tmp_path / "t.json", sample)))))
    dom, console = browse(report, "--dump-dom")
    assert "<title>Timeline report" in dom
    assert console == ""


def test_the_page_prints(reports: dict[int, Path], tmp_path: Path) -> None:
    output = tmp_path / "report.pdf"
    browse(reports[256], f"--print-to-pdf={output}", "--no-pdf-header-footer")
    assert output.read_bytes().startswith(b"%PDF-")


def test_a_picture_of_the_page_shows_all_three_colours(
    reports: dict[int, Path], tmp_path: Path
) -> None:
    picture = tmp_path / "page.png"
    browse(reports[2], f"--screenshot={picture}", size=(800, 520))
    data = picture.read_bytes()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert (width, height, depth) == (800, 520, 8)
    colours = colours_of(data, width, height, {2: 3, 6: 4}[kind])
    for colour in ((0xA9, 0xB8, 0xC8), (0x2A, 0x6F, 0xDB), (0xE8, 0x74, 0x3B)):
        assert colours.get(colour, 0) > 50


def colours_of(data: bytes, width: int, height: int, channels: int) -> dict[tuple[int, ...], int]:
    """How many pixels of a PNG have each colour."""
    place, packed = 8, b""
    while place < len(data):
        (length,) = struct.unpack_from(">I", data, place)
        if data[place + 4 : place + 8] == b"IDAT":
            packed += data[place + 8 : place + 8 + length]
        place += 12 + length
    raw = zlib.decompress(packed)
    stride = width * channels
    above = bytearray(stride)
    counts: dict[tuple[int, ...], int] = {}
    for y in range(height):
        begin = y * (stride + 1)
        row = bytearray(raw[begin + 1 : begin + 1 + stride])
        unfilter(raw[begin], row, above, channels)
        for x in range(0, stride, channels):
            colour = tuple(row[x : x + 3])
            counts[colour] = counts.get(colour, 0) + 1
        above = row
    return counts


def unfilter(kind: int, row: bytearray, above: bytearray, channels: int) -> None:
    """Undoes a filter of PNG in place."""
    for i in range(len(row)):
        left = row[i - channels] if i >= channels else 0
        corner = above[i - channels] if i >= channels else 0
        guess = left + above[i] - corner
        nearest = min((left, above[i], corner), key=lambda v: abs(guess - v))
        row[i] = (row[i] + (0, left, above[i], (left + above[i]) // 2, nearest)[kind]) & 255
