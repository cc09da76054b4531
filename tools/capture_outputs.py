"""Write what commands print into the documents, between marks that name the command.

    python tools/capture_outputs.py [PAGE ...]

In a page of docs/ the text between `<!-- capture: COMMAND -->` and `<!-- end of capture -->` is replaced by
what COMMAND prints, run with this environment's programs in an empty folder. `<!-- capture on three hosts:
COMMAND -->` runs it on the first of three network namespaces (tests/integration/hosts_rig.py), of which the
second has too many threads and the third no sshd; that needs root.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MARK = re.compile(
    r"(?P<begin><!-- capture(?P<rig> on three hosts)?: (?P<command>.*?) -->\n).*?"
    r"(?P<end><!-- end of capture -->)",
    re.DOTALL,
)
COLUMNS = "80"
# What is where on this machine is not what a reader has.
SHOWN = {sys.prefix: "/opt/horovod", str(ROOT): "/opt/horovod/source"}


def run_here(command: str) -> str:
    """What a shell prints, both streams as they come."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": "/home/me",
        "COLUMNS": COLUMNS,
    }
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout.replace(folder, "/home/me/project")


def run_on_three_hosts(command: str) -> str:
    """The same on the first of three hosts; ssh's flags are added to the command."""
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    hosts_rig = importlib.import_module("hosts_rig")
    reason = hosts_rig.why_not()
    if reason:
        raise SystemExit(f"this can't be captured here: {reason}")
    with hosts_rig.Rig(3) as rig:
        rig.restart_sshd(rig.hosts[1], "SetEnv OMP_NUM_THREADS=64")
        rig.kill_sshd(rig.hosts[2])
        flags = " ".join(rig.ssh_flags())
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            rig.argv(rig.hosts[0], ["sh", "-c", command.replace("-p 2222 -i key", flags, 1)]),
            env={**os.environ, "PATH": path, "COLUMNS": COLUMNS},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout.replace(str(rig.identity), "key")


def captured(found: re.Match[str]) -> str:
    """The block with what its command prints now."""
    command = found["command"]
    print(f"$ {command}", flush=True)
    output = run_on_three_hosts(command) if found["rig"] else run_here(command)
    for path, shown in SHOWN.items():
        output = output.replace(path, shown)
    lines = "\n".join(line.rstrip() for line in output.strip("\n").splitlines())
    return f"{found['begin']}```text\n$ {command}\n{lines}\n```\n{found['end']}"


def main() -> int:
    """Rewrites the pages that are named, or all."""
    pages = [Path(name) for name in sys.argv[1:]] or sorted(DOCS.glob("*.md"))
    for page in pages:
        before = page.read_text()
        after = MARK.sub(captured, before)
        if after != before:
            page.write_text(after)
            print(f"{page} is new")
    return 0


if __name__ == "__main__":
    sys.exit(main())
