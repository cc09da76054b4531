"""Make the package that is installed in this environment importable in another one.

    .venv/bin/python tools/share_package.py OTHER_ENVIRONMENT

Both need the same version of Python. Links are made, nothing is copied or built: the other environment uses
the very same compiled files.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def main() -> int:
    """Link the installed files of the package into the other environment."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    own = Path(sysconfig.get_path("purelib"))
    other = Path(sys.argv[1]).resolve() / own.relative_to(sys.prefix)
    if not other.is_dir():
        print(
            f"error: {other} does not exist; is it an environment of Python {sys.version_info[:2]}?"
        )
        return 1
    sources = [own / "horovod", *own.glob("_editable*horovod*"), *own.glob("horovod-*.dist-info")]
    if len(sources) < 3:
        print(f"error: {own} has no editable installation of the package; run `make build` first")
        return 1
    for source in sources:
        link = other / source.name
        link.unlink(missing_ok=True)
        link.symlink_to(source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
