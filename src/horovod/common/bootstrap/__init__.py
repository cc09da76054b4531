"""How a process learns who it is in the job. The first kind of the list that applies is taken."""

from __future__ import annotations

from typing import NamedTuple

from horovod.common.bootstrap import launcher, mpi, single, slurm, torchrun
from horovod.common.bootstrap.kind import Environment, Identity, Kind, Session

__all__ = ["KINDS", "Choice", "Environment", "Identity", "Kind", "Session", "choose", "identity"]

# In order of preference: the innermost launcher knows best, and the variables of the outer ones are
# inherited. horovodrun and mpirun run inside of a SLURM job, whose srun may even have started their
# agents, so both come before slurm. torchrun inside of one srun task per node does, too. Around an
# mpirun torch's variables may be left over from a container; torchrun inside of mpirun is told by a
# variable that only torchrun sets, see `mpi.why_not`.
KINDS: tuple[Kind, ...] = (launcher, mpi, torchrun, slurm, single)


class Choice(NamedTuple):
    """The kind that applies, and how that was decided, as a sentence."""

    kind: Kind
    reason: str


def identity(env: Environment) -> Identity:
    """Returns who this process is, in the kind of environment that applies."""
    return choose(env).kind.identity(env)


def choose(env: Environment) -> Choice:
    """Returns the first kind that applies to this environment.

    Raises:
        ValueError: none applies; the text says for each kind why not.
    """
    refusals: list[str] = []
    for kind in KINDS:
        refusal = kind.why_not(env)
        if refusal is None:
            passed_over = f" ({'; '.join(refusals)})" if refusals else ""
            return Choice(kind, f"started by {kind.NAME}{passed_over}")
        refusals.append(f"not by {kind.NAME}: {refusal}")
    raise ValueError(
        "Horovod cannot tell how this process was started: " + "; ".join(refusals) + "."
    )
