"""Take pictures of the page that `horovodrun timeline report` writes, with headless Chromium.

    python tools/capture_report.py                      # docs/images/timeline-report-2.png and -256.png
    python tools/capture_report.py -o PICTURE FILE...   # of the timelines given

The first form simulates two jobs, of 2 and of 256 ranks, in which one rank or one host is late
(tests/unit/runner/timeline_samples.py).
"""

from __future__ import annotations

import argparse
import importlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from horovod.runner.timeline.analysis import analyse
from horovod.runner.timeline.job import open_job
from horovod.runner.timeline.page import page

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH = 1280
SECONDS = 90
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)


def find_browser() -> str | None:
    """Where Chromium is, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def browse(path: Path, *flags: str, size: tuple[int, int] = (WIDTH, 900)) -> tuple[str, str]:
    """Open a page with Chromium and `flags`; return what it prints, and the messages of its console.

    RuntimeError where there is no browser or it fails.
    """
    browser = find_browser()
    if browser is None:
        raise RuntimeError("no Chromium here; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [
                browser,
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={size[0]},{size[1]}",
                *flags,
                path.resolve().as_uri(),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{browser} failed:\n{done.stderr[-2000:]}")
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return done.stdout, "\n".join(console)


def with_script(path: Path, script: str, output: Path) -> Path:
    """Write a copy of a page that runs `script` at its end."""
    text = path.read_text(encoding="utf-8")
    output.write_text(
        text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8"
    )
    return output


def height_of(path: Path, folder: Path) -> int:
    """How tall the page is at the usual width, in pixels."""
    script = "document.title = 'height ' + document.documentElement.scrollHeight"
    dom, _ = browse(with_script(path, script, folder / "measured.html"), "--dump-dom")
    found = re.search(r"<title>height (\d+)", dom)
    if found is None:
        raise RuntimeError(f"the browser did not tell how tall {path} is")
    return int(found[1])


def capture(files: list[Path], picture: Path) -> None:
    """Write the report of `files` and take the picture of the whole page."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = folder / "report.html"
        report.write_text(page(analyse(open_job(files))), encoding="utf-8")
        height = height_of(report, folder)
        picture.parent.mkdir(parents=True, exist_ok=True)
        browse(report, f"--screenshot={picture.resolve()}", size=(WIDTH, height))
    print(f"{picture}: {WIDTH} x {height}")


def simulated(ranks: int, folder: Path) -> list[Path]:
    """Timelines of a job of 2 ranks, one of them late, or of many, one host of which is late."""
    sys.path.insert(0, str(ROOT / "tests" / "unit" / "runner"))
    samples = importlib.import_module("timeline_samples")
    return samples.write_job(folder / "timeline.json", samples.showcase(ranks))


def main() -> int:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path, help="timelines of one job")
    parser.add_argument("-o", "--output", metavar="PICTURE", type=Path)
    options = parser.parse_args()
    if bool(options.files) != (options.output is not None):
        parser.error("give files together with -o, or neither")
    if options.files:
        capture(options.files, options.output)
        return 0
    for ranks in (2, 256):
        with tempfile.TemporaryDirectory() as folder:
            capture(simulated(ranks, Path(folder)), IMAGES / f"timeline-report-{ranks}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
