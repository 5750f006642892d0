"""uvicorn with a deadline for TLS handshakes, and a drain of the app before shutdown."""

import asyncio
import functools
import socket
from typing import Any

import structlog
import uvicorn

from postroad.http.app import App
from postroad.http.body_discarder import BodyDiscarder
from postroad.http.body_waits import BodyWaits
from postroad.http.connection import HttpConnection, RequestLimits
from postroad.http.tls import TlsCertificate

_STOP_POLL_SECONDS = 0.01
_TLS_SHUTDOWN_SECONDS = 1.0  # for the client's part of closing a connection

log = structlog.get_logger("postroad.http")


class Server(uvicorn.Server):
    """Drains the app before waiting for open connections, so that long polls and live readers end then, not at the timeout."""

    def __init__(
        self, app: App, limits: RequestLimits, *, stop_seconds: float, certificate: TlsCertificate | None = None
    ) -> None:
        self._limits, self._certificate = limits, certificate
        config = uvicorn.Config(
            _as_asgi(app),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, round(stop_seconds)),
            backlog=4096,
        )
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the sockets. uvicorn's own version has no deadline for TLS handshakes."""
        make_connection = functools.partial(
            HttpConnection,
            self._limits,
            BodyDiscarder(),
            BodyWaits(),
            config=self.config,
            server_state=self.server_state,
            app_state={},
        )
        tls: dict[str, Any] = {}
        if self._certificate is not None:
            self._certificate.context.is_full = self._is_full
            tls = {
                "ssl": self._certificate.context,
                "ssl_handshake_timeout": self._limits.header_seconds_max,
                "ssl_shutdown_timeout": _TLS_SHUTDOWN_SECONDS,
            }
        loop = asyncio.get_running_loop()
        self.servers = [
            await loop.create_server(make_connection, sock=listener, backlog=self.config.backlog, **tls)
            for listener in sockets or ()
        ]
        self.started = True

    def _is_full(self, unfinished: int) -> bool:
        limit = self._limits.connections_max
        return limit is not None and len(self.server_state.connections) + unfinished >= limit

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, then wait for open connections and requests; cancel those that outlast the timeout."""
        self._app.drain()
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while (self.server_state.connections or self.server_state.tasks) and not self.force_exit:  # noqa: ASYNC110
                    await asyncio.sleep(_STOP_POLL_SECONDS)
        except TimeoutError:
            log.warning("requests_cancelled", open=len(self.server_state.tasks), reason="the server stops")
            for task in self.server_state.tasks:
                task.cancel("the server stops")


def _as_asgi(app: App) -> Any:
    """uvicorn's ASGI types are closed dictionaries; ours are open ones, as in the specification."""
    return app
