"""Serves a rank's metrics in Prometheus' text format: HOROVOD_METRICS_PORT + local rank.

One thread, and one more for each request. They neither keep the process alive nor survive `stop`; a forked
child closes its copy of the listening socket and serves nothing.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from horovod.common.bootstrap.kind import Identity
from horovod.common.log import logger

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

LAST_PORT = 65535
REQUEST_SECONDS = 10.0  # for a client that says nothing
JOIN_SECONDS = 2.0

Read = Callable[[], Mapping[str, Any]]


class _Server:
    """A listening HTTP server and its thread."""

    def __init__(self, address: str, port: int, identity: Identity, read: Read) -> None:
        self._http = _listen(address, port, identity, read)
        self._end, self._ended = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="horovod-metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._http, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while all(key.fileobj is not self._ended for key, _ in selector.select()):
                self._http.handle_request()

    def stop(self) -> None:
        """Ends the thread and closes the port; requests under way are finished by their own threads."""
        self._end.close()
        self._thread.join(JOIN_SECONDS)
        self._http.server_close()
        self._ended.close()

    def close_copies(self) -> None:
        """In a forked child."""
        for inherited in (self._http.socket, self._end, self._ended):
            inherited.close()


def _listen(address: str, port: int, identity: Identity, read: Read) -> WSGIServer:
    # Only here: a job that serves no metrics does not pay for the imports.
    import socketserver
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    from prometheus_client import CollectorRegistry, ProcessCollector, make_wsgi_app

    from horovod.common.metrics_families import EngineCollector

    class Handler(WSGIRequestHandler):
        timeout = REQUEST_SECONDS

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Says nothing: the program's standard error is not ours."""

        def address_string(self) -> str:
            return str(self.client_address[0])

    class Server(socketserver.ThreadingMixIn, WSGIServer):
        daemon_threads = True
        allow_reuse_port = False
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET

        def server_bind(self) -> None:
            """Binds without the look-up of this host's name that HTTPServer does, which may take long."""
            socketserver.TCPServer.server_bind(self)
            self.server_name, self.server_port = address, port
            self.setup_environ()

        def handle_error(self, _request: Any, client_address: Any) -> None:
            """A client that hung up is nobody's business."""
            logger.debug("A request for metrics from %s failed.", client_address, exc_info=True)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(read, identity.rank, identity.host))
    ProcessCollector(registry=registry)
    server = Server((address, port), Handler)
    server.set_app(make_wsgi_app(registry))
    return server


_server: _Server | None = None


def start(port: int | None, address: str, identity: Identity, read: Read) -> None:
    """Serves the metrics of this rank, if `port` is given; an error is said, and training goes on.

    Args:
        port: of local rank 0; the others take the following ones. None: serve nothing.
        address: of the interface, as in HOROVOD_METRICS_ADDRESS.
        identity: of this rank.
        read: returns the engine's metrics; ValueError when the engine has stopped.
    """
    global _server
    if port is None:
        return
    stop()
    own = port + identity.local_rank
    where = f"rank {identity.rank} on host {identity.host}"
    place = (
        f"{address}, port {own} (HOROVOD_METRICS_PORT={port} + local rank {identity.local_rank})"
    )
    if not 0 < own <= LAST_PORT:
        logger.error(
            "The metrics of %s are not served: there is no port %d, ports go from 1 to %d. Choose a "
            "smaller --metrics-port (HOROVOD_METRICS_PORT=%d now); training goes on.",
            *(where, own, LAST_PORT, port),
        )
        return
    try:
        _server = _Server(address, own, identity, read)
    except OSError as error:
        logger.error(
            "The metrics of %s are not served at %s: %s. Choose another --metrics-port or "
            "--metrics-address, or see who has the port with: ss -ltnp 'sport = :%d'. Training goes on.",
            *(where, place, error.strerror or error, own),
        )
    except ImportError as error:
        logger.error(
            "The metrics of %s are not served: %s. Install it with: pip install prometheus-client. "
            "Training goes on.",
            *(where, error),
        )
    else:
        logger.info("The metrics of %s are served at %s.", where, place)


def stop() -> None:
    """Ends the service; does nothing where there is none."""
    global _server
    server, _server = _server, None
    if server is not None:
        server.stop()


def _after_fork_in_child() -> None:
    global _server
    server, _server = _server, None
    if server is not None:
        with contextlib.suppress(OSError):
            server.close_copies()


os.register_at_fork(after_in_child=_after_fork_in_child)
