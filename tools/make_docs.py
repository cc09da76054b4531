"""Write docs/knobs.md and docs/dtypes.md from the tables in horovod.common, or --check them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from horovod.common.dtypes import SUPPORTED, DataType, ReduceOp, dtype_name
from horovod.common.knobs import KNOBS, LATER, WITHOUT_EFFECT, Knob

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTICE = "<!-- Written by tools/make_docs.py; change {source} and run `make documents-write`. -->\n"

KNOBS_HEAD = """# Knobs

Everything that can be set, in one table (`src/horovod/common/knobs.py`). What is given on the command
line of `horovodrun` wins over its config file, that over the environment, and that over the default.
A flag that is not given exports nothing, so a variable of the environment stays in force. An unknown
`HOROVOD_*` variable is warned about once, with the nearest known name; a wrong value is an error that
says what was expected.

A config file (`--config-file`) is YAML; the key `params.cycle_time_ms` stands for

```yaml
params:
  cycle_time_ms: 2.5
```
"""

WITHOUT_EFFECT_HEAD = """Variables that Horovod 0.28 needed at build time or for choosing a network
interface by name, besides `HOROVOD_WITH_*` and `HOROVOD_WITHOUT_*`: they are accepted in silence.
"""

SCOPES = {
    "engine": "The engine, in every process",
    "start": "Starting a job",
    "log": "Messages",
    "launcher": "The launcher",
    "identity": "Set by the launcher for its workers",
}

DTYPES_HEAD = """# Data types

Collectives that only move data (allgather, broadcast, alltoall) take every type below. Those that
compute (allreduce, reducescatter) take the combinations marked with x; any other raises `ValueError`,
which names the tensor, its type and the operator. Reducescatter knows `Average` and `Sum` only.
"""

DTYPES_TAIL = """
What the operators mean:

- `Average` is `Sum` with the result divided by the size of the process set.
- bool: `Sum` and `Max` are logical or, `Product` and `Min` logical and.
- Integers are scaled (`Average`, `prescale_factor`, `postscale_factor`) in double precision and the
  result is truncated toward zero. Sums and products that overflow wrap around, as in NumPy.
- float16 and bfloat16 are added in float32, in rank order, and rounded once at the end.
- float32, float64 and complex numbers are added and scaled in their own type, in rank order.
- Complex numbers have no order, so there is no `Min` and `Max`, and no `Product` of them.
- A NaN of any rank makes `Min` and `Max` NaN.
- `Adasum` is not there yet: it raises `NotImplementedError`.

NumPy itself has no bfloat16: `horovod.numpy` takes that of the package `ml_dtypes`.

Lengths are legal where a meaning exists: empty tensors everywhere, scalars everywhere except in
allgather, alltoall and reducescatter, which need a first dimension.
"""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Format a Markdown table."""
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def codes(words: Iterable[str | None]) -> str:
    return ", ".join(f"`{word}`" for word in words if word)


def default_of(knob: Knob) -> str:
    if knob.default is None or knob.default == ():
        return ""
    if knob.type == "bool":
        return "1" if knob.default else "0"
    return str(knob.default)


def kind_of(knob: Knob) -> str:
    kind = codes(knob.choices) if knob.choices else knob.type.replace("_", " ")
    return kind + knob.bounds_text()


def knob_row(knob: Knob) -> list[str]:
    """All names of a knob in one cell: side by side they would be too wide for a page."""
    meaning = knob.help
    if knob.scale != 1:
        meaning += f" The flag and the key count in units of {knob.scale}."
    if knob.inverted and knob.yaml_key:
        meaning += " The key says the opposite."
    names = [knob.variable, *knob.flags, knob.negative_flag, knob.yaml_key]
    return [
        "<br>".join(f"`{name}`" for name in names if name),
        kind_of(knob),
        default_of(knob),
        meaning,
    ]


def knobs_text() -> str:
    """Return the text of docs/knobs.md."""
    parts = [NOTICE.format(source="src/horovod/common/knobs.py"), KNOBS_HEAD]
    for scope, title in SCOPES.items():
        rows = [knob_row(knob) for knob in KNOBS if knob.scope == scope]
        if rows:
            head = ("variable, flags, config key", "type", "default", "meaning")
            parts += [f"\n## {title}\n", table(head, rows)]
    later = [[f"`{name}`", what] for name, what in sorted(LATER.items())]
    parts += [
        "\n## Known, without effect yet\n",
        "Variables of Horovod 0.28 whose feature is still to come. Setting one is noted at info level.\n",
        table(("variable", "belongs to"), later),
        "\n## Known, without effect\n",
        WITHOUT_EFFECT_HEAD,
        codes(sorted(WITHOUT_EFFECT)) + "\n",
    ]
    return "\n".join(parts)


def dtypes_text() -> str:
    """Return the text of docs/dtypes.md."""
    rows = [
        [f"`{dtype_name(dtype)}`", *("x" if SUPPORTED[op][dtype] else "" for op in ReduceOp)]
        for dtype in DataType
    ]
    return "\n".join(
        [
            NOTICE.format(source="src/horovod/common/dtypes.py"),
            DTYPES_HEAD,
            table(("dtype", *(f"`{op.name}`" for op in ReduceOp)), rows) + DTYPES_TAIL,
        ]
    )


def main() -> int:
    """Write the documents; with --check, say which of them are out of date instead."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    stale = 0
    for name, text in {"knobs.md": knobs_text(), "dtypes.md": dtypes_text()}.items():
        path = DOCS / name
        if path.exists() and path.read_text() == text:
            continue
        if check:
            print(f"docs/{name} is out of date: run `make documents-write`")
            stale += 1
        else:
            path.write_text(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
