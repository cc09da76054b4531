"""Write docs/images/monitor.png: the screen of a real job under `horovodrun --monitor`.

    python tools/capture_monitor.py [--seconds S]

Runs a small job of four ranks on two declared hosts, one of them slow, on a pseudo-terminal; interprets what
is written there; makes an HTML page of the screen, and a picture of the page with headless Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import html
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "monitor.png"
COLUMNS, LINES = 100, 22
FONT_PIXELS, LINE_PIXELS, PADDING = 15, 20, 16
CHROMIUM_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--force-device-scale-factor=2"),
)
COMMAND = "horovodrun -np 4 -H node1:2,node2:2 --monitor python train.py"

# Rank 2 has more to do in each step.
JOB = """
import time
import numpy as np
import horovod.numpy as hvd

hvd.init()
gradients = [np.ones(n, np.float32) for n in (2_000_000, 500_000, 100_000, 1000)]
begin, step = time.monotonic(), 0
while True:
    time.sleep(0.13 if hvd.rank() == 2 else 0.1)
    hvd.grouped_allreduce(gradients, name="gradients")
    step += 1
    if step % 20 == 0 and hvd.rank() == 0:
        print(f"step {step}: loss {2.3 * 0.98 ** (step / 20):.4f}", flush=True)
    if step == 1:
        print(f"training on batches {hvd.rank() * 256} to {hvd.rank() * 256 + 255}", flush=True)
"""
# What the terminal's eight colours look like.
COLOURS = {
    "default": "#d8dee9",
    "red": "#ff6b6b",
    "brown": "#ffd166",
    "green": "#7bd88f",
    "blue": "#6cb6ff",
}


def run_on_terminal(seconds: float) -> pyte.Screen:
    """Run the job for some time; what is on the screen then."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[1m$\x1b[0m {COMMAND}\r\n".encode())
    leader, follower = pty.openpty()
    fcntl.ioctl(leader, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    arguments = [
        "-np",
        "4",
        "-H",
        "localhost:2,127.0.0.1:2",
        "--monitor",
        sys.executable,
        "-c",
        JOB,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "horovod.runner", *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    os.close(follower)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 or screen.cursor.x:
        if select.select([leader], [], [], max(0.0, left))[0]:
            stream.feed(os.read(leader, 65536))
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # the end of a pseudo-terminal
        while os.read(leader, 65536):
            pass
    process.wait()
    os.close(leader)
    return screen


def page(screen: pyte.Screen) -> str:
    """Make a page of the screen. Names of hosts that this machine gave itself are replaced."""
    lines = []
    for number in range(LINES):
        row = screen.buffer[number]
        spans = []
        text, style = "", ""
        for column in range(COLUMNS):
            cell = row[column]
            own = f"color:{COLOURS.get(cell.fg, COLOURS['default'])};"
            own += "font-weight:bold;" * cell.bold
            own += "text-decoration:underline;text-underline-offset:4px;" * cell.underscore
            if own != style and text:
                spans.append(f'<span style="{style}">{html.escape(text)}</span>')
                text = ""
            style = own
            text += cell.data
        spans.append(f'<span style="{style}">{html.escape(text)}</span>')
        lines.append("".join(spans))
    body = "\n".join(lines)
    for real, shown in (("localhost", "node1"), ("127.0.0.1", "node2")):
        # In a column of the table the width stays.
        body = body.replace(f"{real}  ", f"{shown:{len(real)}}  ").replace(real, shown)
    return (
        "<!doctype html><meta charset=utf-8><style>html{background:#161b22}"
        f"pre{{margin:{PADDING}px;font:{FONT_PIXELS}px/{LINE_PIXELS}px 'DejaVu Sans Mono',monospace}}"
        f"</style><pre>{body}</pre>"
    )


def photograph(text: str, picture: Path) -> None:
    """Take a picture of a page with headless Chromium."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is missing; on Debian: apt-get install chromium")
    width = round(COLUMNS * FONT_PIXELS * 0.602) + 2 * PADDING
    height = LINES * LINE_PIXELS + 2 * PADDING
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "screen.html"
        source.write_text(text)
        subprocess.run(
            [
                chromium,
                *CHROMIUM_FLAGS,
                f"--user-data-dir={folder}/profile",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                source.as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )


def main() -> int:
    """Run, draw, photograph."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=25.0, help="how long the job runs")
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    photograph(page(run_on_terminal(args.seconds)), args.output.resolve())
    print(f"{args.output}: {args.output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
