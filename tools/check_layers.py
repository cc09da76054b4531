"""Check the arrows between the layers of the core, and who may touch the compiled module.

Import-linter keeps the arrows between Python modules (pyproject.toml); this script keeps those it
cannot see: `#include` lines in C++, and imports of the compiled module.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Layer -> what its files may include, besides themselves.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "wire": {"base"},
    "trace": {"base", "wire"},
    "transport": {"base"},
    "collectives": {"base", "transport"},
    "backends": {"base", "transport", "collectives"},
    "engine": {"base", "wire", "trace", "transport", "collectives", "backends"},
    "c_api": {"base", "wire", "trace", "transport", "collectives", "backends", "engine"},
    "bindings": {
        "base",
        "wire",
        "trace",
        "transport",
        "collectives",
        "backends",
        "engine",
        "c_api",
    },
    "tensorflow": {"base", "c_api"},
}
PROJECT_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
PYTHON_INCLUDE = re.compile(r"^\s*#\s*include\s+<(Python\.h|nanobind/[^>]+)>")


def include_faults(root: Path) -> Iterator[str]:
    """Yield one sentence for every `#include` that points against the arrows."""
    for path in sorted(root.glob("*/*.[hc]*")):
        layer = path.parent.name
        if layer not in ALLOWED:
            yield f"{path}: the layer '{layer}' is not in tools/check_layers.py"
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if PYTHON_INCLUDE.match(line) and layer != "bindings":
                yield f"{path}:{number}: only core/bindings may include Python"
            found = PROJECT_INCLUDE.match(line)
            if not found:
                continue
            target = found.group(1)
            if "/" not in target:
                yield f'{path}:{number}: include by layer: "{layer}/{target}"'
            elif (other := target.split("/")[0]) != layer and other not in ALLOWED[layer]:
                yield f"{path}:{number}: '{layer}' must not include '{other}'"


def core_import_faults(root: Path) -> Iterator[str]:
    """Yield one sentence for every import of the compiled module outside horovod.common."""
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] == "common":
            continue
        for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            if any(name.startswith("horovod._core") for name in names):
                yield f"{path}:{node.lineno}: only horovod.common may import horovod._core"


def main() -> int:
    """Print every fault; the exit status is 1 if there is one."""
    faults = [*include_faults(ROOT / "core"), *core_import_faults(ROOT / "src" / "horovod")]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
