"""Write the example of docs/doctor.md: runs `horovodrun doctor` over network namespaces. Needs root."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "doctor.md"
BEGIN, END = "<!-- capture: tools/capture_doctor.py -->\n", "<!-- end of capture -->"
HOSTS = ["-H", "node0:2,node1:2,node2:2"]


def capture() -> str:
    """Three hosts, of which the second has too many threads and the third no sshd."""
    sys.path.insert(0, str(ROOT / "tests" / "integration"))
    hosts_rig = importlib.import_module("hosts_rig")
    reason = hosts_rig.why_not()
    if reason:
        raise SystemExit(f"the example can't be made here: {reason}")
    with hosts_rig.Rig(3) as rig:
        rig.restart_sshd(rig.hosts[1], "SetEnv OMP_NUM_THREADS=64")
        rig.kill_sshd(rig.hosts[2])
        words = [*hosts_rig.LAUNCHER, "doctor", *rig.ssh_flags(), *HOSTS]
        done = subprocess.run(
            rig.argv(rig.hosts[0], words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        shown = " ".join(["horovodrun doctor", *rig.ssh_flags(), *HOSTS])
        shown = shown.replace(str(rig.identity), "key")
    return f"```text\n$ {shown}\n{done.stdout}$ echo $?\n{done.returncode}\n```\n"


def main() -> int:
    """Replaces what stands between the marks."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no marks for the example: {BEGIN.strip()} ... {END}")
    PAGE.write_text(f"{before}{begin}{capture()}{end}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
