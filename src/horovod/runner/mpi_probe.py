"""Finds mpirun and tells whose it is.

There is no call that says so. Each thing that speaks for an MPI library is a hint with a sentence, and
the hints are kept for the message of a failure. In this order they decide between the two families,
that of Open MPI (with Spectrum MPI) and that of Hydra (MPICH, Intel MPI):

1. the name of the program that mpirun is after all links (`orterun`, `prterun`, `mpiexec.hydra`, ...);
2. the libraries of I_MPI_ROOT or MPI_ROOT, if mpirun lies in it;
3. what `mpirun --version` says;
4. programs that lie beside it (`ompi_info`, `mpiexec.hydra`); /usr/bin may hold those of both families;
5. libraries in the `lib` beside its `bin`.

Within the family any hint of the more special library (Spectrum MPI, Intel MPI) decides.
"""

from __future__ import annotations

import enum
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from typing import NamedTuple

LAUNCHERS = ("mpirun", "mpiexec")
VERSION_SECONDS = 20.0


class Flavour(enum.Enum):
    """Whose mpirun it is; the value is its name in messages."""

    OPEN_MPI = "Open MPI"
    SPECTRUM_MPI = "IBM Spectrum MPI"
    MPICH = "MPICH"
    INTEL_MPI = "Intel MPI"
    UNKNOWN = "an unknown MPI"
    MISSING = "no MPI"

    @property
    def is_hydra(self) -> bool:
        """Whether its mpirun takes the options of MPICH's Hydra."""
        return self in (Flavour.MPICH, Flavour.INTEL_MPI)


class Mpirun(NamedTuple):
    """What was found: `path` is empty when there is none; `seen` are sentences."""

    path: str
    flavour: Flavour
    seen: list[str]


class _Hint(NamedTuple):
    flavour: Flavour
    sentence: str


_PROGRAMS = (
    (re.compile(r"orterun|prterun|mpi(run|exec)\.openmpi"), Flavour.OPEN_MPI),
    (re.compile(r"mpiexec\.hydra|mpi(run|exec)\.(mpich|hydra)"), Flavour.MPICH),
)
# The special ones first: their texts may name what they come from.
_VERSION_TEXTS = (
    (re.compile(r"IBM Spectrum MPI"), Flavour.SPECTRUM_MPI),
    (re.compile(r"Open MPI|OpenRTE"), Flavour.OPEN_MPI),
    (re.compile(r"Intel\(R\) MPI"), Flavour.INTEL_MPI),
    (re.compile(r"HYDRA|MPICH"), Flavour.MPICH),
)
_SIBLINGS = {
    "impi_info": Flavour.INTEL_MPI,
    "hydra_bstrap_proxy": Flavour.INTEL_MPI,
    "ompi_info": Flavour.OPEN_MPI,
    "prterun": Flavour.OPEN_MPI,
    "orterun": Flavour.OPEN_MPI,
    "mpiexec.hydra": Flavour.MPICH,
    "hydra_pmi_proxy": Flavour.MPICH,
}
_LIBRARIES = {
    "libmpi_ibm.so*": Flavour.SPECTRUM_MPI,
    "libmpi_shm_heap_proxy.so": Flavour.INTEL_MPI,
    "libopen-pal.so*": Flavour.OPEN_MPI,
    "libmpich.so*": Flavour.MPICH,
}
_ROOTS = {"I_MPI_ROOT": Flavour.INTEL_MPI, "MPI_ROOT": None}
_OPEN_MPI_FAMILY = (Flavour.OPEN_MPI, Flavour.SPECTRUM_MPI)


def find_mpirun(env: Mapping[str, str]) -> Mpirun:
    """The mpirun, else mpiexec, in the PATH of `env`. Runs `mpirun --version` once."""
    paths = (shutil.which(name, path=env.get("PATH", os.defpath)) for name in LAUNCHERS)
    path = next((path for path in paths if path), None)
    if path is None:
        text = f"neither {' nor '.join(LAUNCHERS)} in PATH={env.get('PATH', '')}"
        return Mpirun("", Flavour.MISSING, [text])
    version = _version(path, env)
    hints = [
        *_program(path),
        *_roots(path, env),
        *_version_hints(path, version),
        *_siblings(path),
        *_libraries(path),
    ]
    seen = [f"found {path}", *(hint.sentence for hint in hints)]
    if version is None:
        seen.append(f"'{path} --version' did not work")
    if hints:
        return Mpirun(path, _decide(hints), seen)
    if version is None:
        return Mpirun(path, Flavour.MISSING, seen)
    seen.append(f"'{path} --version' says '{' '.join(version.split())[:200]}'")
    return Mpirun(path, Flavour.UNKNOWN, seen)


def _decide(hints: list[_Hint]) -> Flavour:
    """The first hint gives the family, any hint of the family the special one."""
    of_open_mpi = hints[0].flavour in _OPEN_MPI_FAMILY
    flavours = {hint.flavour for hint in hints}
    special, general = (
        (Flavour.SPECTRUM_MPI, Flavour.OPEN_MPI)
        if of_open_mpi
        else (Flavour.INTEL_MPI, Flavour.MPICH)
    )
    return special if special in flavours else general


def _version(path: str, env: Mapping[str, str]) -> str | None:
    """What --version says; None if it could not be run or failed."""
    try:
        done = subprocess.run(
            [path, "--version"],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VERSION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.decode(errors="replace")


def _program(path: str) -> Iterator[_Hint]:
    real = os.path.realpath(path)
    for pattern, flavour in _PROGRAMS:
        if pattern.fullmatch(os.path.basename(real)):
            yield _Hint(flavour, f"it is {real}")


def _roots(path: str, env: Mapping[str, str]) -> Iterator[_Hint]:
    for name, flavour in _ROOTS.items():
        root = env.get(name)
        if not root or not os.path.realpath(path).startswith(os.path.realpath(root) + os.sep):
            continue  # left over from another MPI
        if flavour is not None:
            yield _Hint(flavour, f"it lies in {name}={root}")
        elif glob.glob(os.path.join(glob.escape(root), "lib", "libmpi_ibm.so*")):
            yield _Hint(Flavour.SPECTRUM_MPI, f"it lies in {name}={root} with libmpi_ibm.so")


def _version_hints(path: str, version: str | None) -> Iterator[_Hint]:
    for pattern, flavour in _VERSION_TEXTS:
        found = pattern.search(version or "")
        if found:
            yield _Hint(flavour, f"'{path} --version' says '{found[0]}'")
            return


def _folders(path: str) -> list[str]:
    """The folder where it was found, and that where the links end."""
    return list(dict.fromkeys([os.path.dirname(path), os.path.dirname(os.path.realpath(path))]))


def _siblings(path: str) -> Iterator[_Hint]:
    for folder in _folders(path):
        for name, flavour in _SIBLINGS.items():
            if os.path.exists(os.path.join(folder, name)):
                yield _Hint(flavour, f"{name} lies beside it in {folder}")


def _libraries(path: str) -> Iterator[_Hint]:
    for folder in _folders(path):
        library_folder = os.path.join(os.path.dirname(folder), "lib")
        for pattern, flavour in _LIBRARIES.items():
            if glob.glob(os.path.join(glob.escape(library_folder), pattern)):
                yield _Hint(flavour, f"{pattern.rstrip('*')} lies in {library_folder}")
