"""What `launch.py` starts: `init_only.py torch|numpy imports|init` imports a door and, if told, inits."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    door, extent = sys.argv[1:]
    hvd = importlib.import_module(f"horovod.{door}")
    if extent == "init":
        hvd.init()


if __name__ == "__main__":
    main()
