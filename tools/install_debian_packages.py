"""Install what requirements/debian.txt lists, where that is possible: as root, with apt-get.

Elsewhere it says what is missing and succeeds: the tests that need it are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

LIST = Path(__file__).resolve().parent.parent / "requirements" / "debian.txt"


def wanted() -> list[str]:
    """Read the names of the packages."""
    lines = (line.partition("#")[0].strip() for line in LIST.read_text().splitlines())
    return [line for line in lines if line]


def installed(package: str) -> bool:
    """Tell whether dpkg has it."""
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}", package],
        capture_output=True,
        text=True,
        check=False,
    )
    return status.stdout == "installed"


def main() -> int:
    """Install what is missing."""
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        print(f"no apt-get here: tests that need {', '.join(wanted())} are skipped")
        return 0
    missing = [package for package in wanted() if not installed(package)]
    if not missing:
        return 0
    if os.geteuid() != 0:
        print(f"not root: tests that need {', '.join(missing)} are skipped")
        return 0
    print(f"installing {', '.join(missing)}", flush=True)
    # No service may start by itself: the tests start their own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (
        ["apt-get", "-q", "-q", "update"],
        ["apt-get", "-q", "-q", "install", "-y", "--no-install-recommends", *missing],
    ):
        done = subprocess.run(command, env=environment, check=False, stdout=subprocess.DEVNULL)
        if done.returncode:
            print(f"'{' '.join(command)}' failed: the tests that need {missing} are skipped")
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
