"""The contracts of import-linter leave out no module of horovod.common."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LEAVES = {
    f"horovod.common.{name}"
    for name in ("exceptions", "knobs", "network", "rendezvous", "slurm_notation")
}


def test_the_contracts_name_every_module_of_common_but_the_leaves() -> None:
    names = {path.stem for path in (ROOT / "src/horovod/common").iterdir() if path.stem[0] != "_"}
    rest = {f"horovod.common.{name}" for name in names} - LEAVES
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = [
        c for c in settings["tool"]["importlinter"]["contracts"] if c["type"] == "forbidden"
    ]
    assert {tuple(c["source_modules"]) for c in contracts} == {
        tuple(sorted(LEAVES)),
        ("horovod.runner",),
    }
    for contract in contracts:
        assert rest <= set(contract["forbidden_modules"]), contract["name"]
