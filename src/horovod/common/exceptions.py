"""Exceptions that users may catch; imports nothing, so that the launcher can use it too."""

from __future__ import annotations

NOT_INITIALIZED_TEXT = "Horovod has not been initialized; use hvd.init()."
SHUT_DOWN_TEXT = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt "
    "to allreduce, allgather or broadcast a tensor after one of the ranks finished execution. If "
    "the shutdown was caused by an exception, you should see the exception in the log before the "
    "first shutdown message."
)


class HorovodInternalError(RuntimeError):
    """A collective failed for a reason outside the caller: a peer died, ranks disagreed, shutdown."""


class HorovodConsistencyError(RuntimeError):
    """Ranks do not have the same parameters; see HOROVOD_CHECK_CONSISTENCY_STEPS."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts of an elastic job changed.

    Args:
        skip_sync: True when state need not be synchronised after the change.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """Returns the sentence that says which version was expected and which was found."""
    return (
        f"{name} {version} was found, but Horovod was set up for {name} {installed_version}. "
        f"Install {name} {installed_version} or reinstall Horovod."
    )


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than the one Horovod was set up for."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
