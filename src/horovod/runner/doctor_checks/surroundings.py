"""What this host runs in: its own name, containers, schedulers, MPI, GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from horovod.runner.check_gpu import check_gpu
from horovod.runner.doctor_checks.finding import OK, SKIPPED, WARNING, Finding
from horovod.runner.doctor_checks.here import Here

_CONTAINER = re.compile(r"docker|kubepods|containerd|libpod|lxc|crio")
MPI_LIBRARIES = ("libmpi.so.40", "libmpi.so.12", "libmpi.so")


def own_name(here: Here) -> Finding:
    """Whether a host knows its own name, which slow resolvers and MPI trip over."""
    name = here.own_name()
    try:
        found = here.resolve(name, None)
    except (OSError, UnicodeError) as error:
        fix = f"add {name} to /etc/hosts there, or to the DNS; Horovod itself does not need it"
        text = f"{name} does not resolve ({getattr(error, 'strerror', None) or error})"
        return Finding("own name", here.host, WARNING, text, fix)
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return Finding("own name", here.host, OK, f"{name} is {', '.join(addresses)}")


def container(here: Here) -> Finding:
    """Whether this is a container, for information: its limits are those of `cores` and `memory`."""
    hints = [f"/{path}" for path in (".dockerenv", "run/.containerenv") if _is_there(here, path)]
    if here.environment.get("KUBERNETES_SERVICE_HOST"):
        hints.append("KUBERNETES_SERVICE_HOST")
    for process in ("1", "self"):
        match = _CONTAINER.search(here.read(f"proc/{process}/cgroup") or "")
        if match:
            hints.append(f"/proc/{process}/cgroup names {match[0]}")
            break
    if not hints:
        return Finding("container", here.host, OK, "no sign of one")
    return Finding("container", here.host, OK, f"yes: {', '.join(hints)}")


def _is_there(here: Here, path: str) -> bool:
    return (here.root / path).exists()


def scheduler(here: Here) -> Finding:
    """Which schedulers are here, and whether this is inside a job of theirs."""
    kinds = (
        ("SLURM", ("srun", "sinfo"), "SLURM_JOB_ID"),
        ("LSF", ("jsrun", "bsub"), "LSB_JOBID"),
        ("Kubernetes", ("kubectl",), "KUBERNETES_SERVICE_HOST"),
    )
    seen = []
    for name, programs, variable in kinds:
        job = here.environment.get(variable)
        found = [program for program in programs if here.which(program)]
        signs = [*found, *([f"{variable}={job}"] if job else [])]
        if signs:
            seen.append(f"{name} ({', '.join(signs)})")
    if not seen:
        return Finding("scheduler", here.host, SKIPPED, "none found; hosts come from -H or a file")
    return Finding("scheduler", here.host, OK, ", ".join(seen))


def mpi(here: Here) -> Finding:
    """The mpirun in the PATH with what it says about itself, and the library."""
    program = here.which("mpirun") or here.which("mpiexec")
    library = _first_loadable(here, MPI_LIBRARIES)
    if program is None and library is None:
        return Finding("MPI", here.host, SKIPPED, "no mpirun and no libmpi; only mpirun needs them")
    if program is None:
        return Finding("MPI", here.host, OK, f"{library}, no mpirun in the PATH")
    try:
        said = here.command([program, "--version"]).strip().splitlines()[:1]
    except OSError as error:
        fix = f"look what is wrong with {program}, or take it out of the PATH"
        return Finding("MPI", here.host, WARNING, f"{program} does not work: {error}", fix)
    version = said[0] if said else "says no version"
    return Finding(
        "MPI", here.host, OK, f"{program}: {version}; {library or 'libmpi is not found'}"
    )


def _first_loadable(here: Here, names: Iterable[str]) -> str | None:
    for name in names:
        try:
            here.load(name)
        except OSError:
            continue
        return name
    return None


def gpu(here: Here) -> Finding:
    """One line of what --check-gpu prints."""
    report = check_gpu(environment=here.environment)
    fields = dict(line.partition(": ")[::2] for line in report.lines)
    library = fields.get("NVIDIA driver library", "unknown")
    amd = fields.get("AMD devices", "none")
    if report.usable:
        found = library if amd.startswith("none") else f"AMD: {amd}"
        return Finding("GPU", here.host, OK, found)
    kernel = fields.get("NVIDIA devices of the kernel", "none")
    if kernel.startswith("none") and amd.startswith("none"):
        return Finding("GPU", here.host, SKIPPED, "none")
    fix = "horovodrun --check-gpu on that host says what is missing"
    found = f"not usable: {amd if kernel.startswith('none') else library}"
    return Finding("GPU", here.host, WARNING, found, fix)
