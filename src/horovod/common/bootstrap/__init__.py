"""How a process learns who it is in the job. The first kind of the list that applies is taken."""

from __future__ import annotations

from typing import NamedTuple

from horovod.common.bootstrap import launcher, single, torchrun
from horovod.common.bootstrap.kind import Environment, Identity, Kind, Session

__all__ = ["KINDS", "Choice", "Environment", "Identity", "Kind", "Session", "choose", "identity"]

# In order of preference: what the user started explicitly comes before what merely surrounds it.
KINDS: tuple[Kind, ...] = (launcher, torchrun, single)


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
