"""Python, this package and what it needs, and the frameworks."""

from __future__ import annotations

import sys

import horovod
from horovod.runner.doctor_checks.finding import FAILED, OK, SKIPPED, WARNING, Finding
from horovod.runner.doctor_checks.here import Here

LEAST_PYTHON = (3, 11)
# The module that is imported, the package that has it.
DEPENDENCIES = {
    "cloudpickle": "cloudpickle",
    "msgpack": "msgpack",
    "packaging": "packaging",
    "yaml": "pyyaml",
}
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "mxnet")
# Other distributions of the same framework.
ALIASES = {"tensorflow": ("tensorflow-cpu", "tensorflow-intel", "tf-nightly")}


def python(here: Here) -> Finding:
    """Whether Python is new enough."""
    version = ".".join(map(str, here.python))
    if here.python[:2] < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        return Finding("python", here.host, FAILED, version, f"install Python {least} or newer")
    return Finding("python", here.host, OK, f"{version} ({sys.executable})")


def package(here: Here) -> Finding:
    """The version of this package, and whether its compiled part is there."""
    version = horovod.__version__
    if not here.importable("horovod._core"):
        return Finding(
            "horovod",
            here.host,
            FAILED,
            f"{version} without its compiled core (horovod._core)",
            "install a wheel for this Python and processor, or build it: pip install .",
        )
    return Finding("horovod", here.host, OK, f"{version} with its compiled core")


def dependencies(here: Here) -> Finding:
    """Whether the packages are there that this one needs."""
    missing = [name for module, name in DEPENDENCIES.items() if not here.importable(module)]
    if missing:
        return Finding(
            "packages",
            here.host,
            FAILED,
            f"missing: {', '.join(missing)}",
            f"python -m pip install {' '.join(missing)}",
        )
    return Finding("packages", here.host, OK, ", ".join(DEPENDENCIES.values()))


def framework_versions(here: Here) -> dict[str, str]:
    """The frameworks that are installed, by their metadata."""
    found = {}
    for name in FRAMEWORKS:
        for package_name in (name, *ALIASES.get(name, ())):
            version = here.version(package_name)
            if version is not None:
                found[name] = version
                break
    return found


def frameworks(here: Here) -> Finding:
    """Which frameworks are installed; none is needed for NumPy."""
    found = framework_versions(here)
    if not found:
        return Finding("frameworks", here.host, SKIPPED, "none installed; NumPy works without one")
    return Finding(
        "frameworks", here.host, OK, ", ".join(f"{name} {found[name]}" for name in found)
    )


def threads(here: Here) -> Finding:
    """Whether the thread settings ask for more than there are cores."""
    given = {
        name: here.environment[name] for name in THREAD_VARIABLES if here.environment.get(name)
    }
    if not given:
        return Finding(
            "threads",
            here.host,
            OK,
            "OMP_NUM_THREADS is not set: horovodrun sets it to cores / local ranks",
        )
    shown = ", ".join(f"{name}={value}" for name, value in given.items())
    fix = f"unset {' '.join(given)}, or set cores / local ranks (cores here: {here.affinity})"
    numbers = [_first_number(value) for value in given.values()]
    if any(number is None for number in numbers):
        return Finding("threads", here.host, WARNING, f"{shown} is not a number", fix)
    if any(number is not None and number > here.affinity for number in numbers):
        return Finding("threads", here.host, WARNING, f"{shown} exceeds the cores", fix)
    return Finding("threads", here.host, OK, shown)


def _first_number(value: str) -> int | None:
    """OMP_NUM_THREADS may be a list, one number for each level of nesting."""
    first = value.split(",")[0].strip()
    return int(first) if first.isascii() and first.isdigit() else None
