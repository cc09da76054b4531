"""Creates the environments of the MPI libraries that `allreduce.py` compares with.

    python benchmarks/mpi_environments.py [openmpi] [mpich] [impi-rt]

Each gets a folder of its own under `.venv-bench/`, filled from `requirements/bench-NAME.txt`.
One that cannot be installed here is named, and the others go on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

from groups import MPI_KINDS
from harness import FOLDER

ROOT = FOLDER.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Environments with an MPI, mpi4py and NumPy")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MPI_KINDS)}")
    parser.add_argument("--mpi-root", type=Path, default=ROOT / ".venv-bench")
    args = parser.parse_args()
    unknown = set(args.names) - set(MPI_KINDS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: choose from {', '.join(MPI_KINDS)}")
    for name in args.names or MPI_KINDS:
        create(args.mpi_root / name, ROOT / "requirements" / f"bench-{name}.txt")


def create(folder: Path, requirements: Path) -> None:
    """Creates one environment; does nothing when it is there and as the file wants it."""
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return
    print(f"creating {folder}", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    result = subprocess.run([*install, "--requirement", str(requirements)], check=False)
    if result.returncode:
        print(f"{MPI_KINDS[folder.name]} will be left out: see pip's words above", file=sys.stderr)
        return
    stamp.write_text(requirements.read_text())


if __name__ == "__main__":
    main()
