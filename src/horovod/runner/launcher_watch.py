"""An agent's view of the launcher: at which address it can be reached, and whether it still can.

An agent behind ssh learns of the launcher's end by the end of its input, unless the network or the launcher's
machine has gone: then nobody tells. So it knocks at the rendezvous store now and then. The kernel there
answers even when the launcher is stopped with Ctrl-Z.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Sequence

from horovod.common.network import is_loopback
from horovod.common.rendezvous import RendezvousClient

REACH_SECONDS = 5.0  # for each address
KNOCK_SECONDS = 10.0  # between two knocks, and for an answer
LOST_AFTER = 3  # knocks without an answer


def reachable_address(addresses: Sequence[str], port: int, key: bytes) -> str:
    """Returns the first of the store's addresses that answers here with the job's key.

    Raises:
        ConnectionError: none does; says what was tried.
    """
    if len(addresses) == 1 and is_loopback(addresses[0]):
        return addresses[0]  # all of the job is on this machine
    refusals = []
    for address in addresses:
        try:
            RendezvousClient(address, port, key, REACH_SECONDS).close()
        except OSError as error:
            refusals.append(f"{address}: {error}")
        else:
            return address
    raise ConnectionError(
        f"no address of the launcher can be reached from here, port {port} ({'; '.join(refusals)}). Open the "
        "ports between the hosts in the firewall, or choose the network with --network-interfaces"
    )


class LauncherWatch:
    """Knocks at the store; call `is_lost` whenever the time is `next_at` or the selector has woken."""

    def __init__(
        self,
        address: str,
        port: int,
        selector: selectors.BaseSelector,
        every: float = KNOCK_SECONDS,
    ) -> None:
        self._where = (address, port)
        self._selector = selector
        self._every = every
        self._unanswered = 0
        self._socket: socket.socket | None = None
        self.next_at = time.monotonic() + every

    def is_lost(self) -> bool:
        """True when the launcher's machine has not answered for a while."""
        if time.monotonic() < self.next_at:
            return False
        if self._socket is not None:  # the last knock was not answered
            self._hang_up()
            self._unanswered += 1
        if self._unanswered >= LOST_AFTER:
            return True
        self._knock()
        self.next_at = time.monotonic() + self._every
        return False

    def _knock(self) -> None:
        family = socket.AF_INET6 if ":" in self._where[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        error = self._socket.connect_ex(self._where)
        if error not in (0, errno.EINPROGRESS):
            return  # no route: as good as no answer
        self._selector.register(self._socket, selectors.EVENT_WRITE, self._answered)

    def _answered(self) -> None:
        """The connection was made, or refused: then somebody is there, though not our launcher."""
        assert self._socket is not None
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error in (0, errno.ECONNREFUSED):
            self._unanswered = 0 if error == 0 else self._unanswered + 1
            self._hang_up()
        else:
            self._selector.unregister(self._socket)  # left as unanswered

    def _hang_up(self) -> None:
        assert self._socket is not None
        if self._socket.fileno() in self._selector.get_map():
            self._selector.unregister(self._socket)
        self._socket.close()
        self._socket = None
