"""Makes the example's and the benchmarks' modules importable, as they are when run as scripts."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "examples" / "pytorch"), str(ROOT / "benchmarks")]
