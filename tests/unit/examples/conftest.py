"""Makes the example's and the benchmarks' modules importable, as they are when run as scripts."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ["examples", "examples/pytorch", "examples/tensorflow", "benchmarks"]
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
