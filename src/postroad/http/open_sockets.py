"""The WebSocket connections of a worker: opened, pinged, and closed when the process drains."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from postroad.http import metrics
from postroad.http.request import Request, Scope, no_body
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.security_headers import API
from postroad.http.websocket import CloseCode, PingSchedule, WebSocket
from postroad.kernel.errors import Unauthenticated
from postroad.kernel.identity import Caller

_DRAINING = "the server is shutting down"


class OpenSockets:
    def __init__(self) -> None:
        self._pings = PingSchedule()
        self._is_draining = False

    def open(self, response: Response, request_id: str, request: Request, scope: Scope) -> None:
        """Switch the connection of a request to WebSocket. It keeps the request's slot until it ends."""
        handler, slot = response.socket, request.slot
        if handler is None:
            raise TypeError("not a WebSocket")

        def ended(socket: WebSocket) -> None:
            self._pings.remove(socket)
            metrics.live_readers.dec()
            if slot is not None:
                slot.close()

        socket: WebSocket | None = scope["switch"](_head(response, request_id), handler, ended)
        if socket is None:  # the client has disconnected
            handler.closed()
            return
        request.slot = None
        metrics.live_readers.inc()
        self._pings.add(socket)
        if self._is_draining:
            socket.close(CloseCode.GOING_AWAY, _DRAINING)

    def drain(self) -> None:
        self._is_draining = True
        self._pings.close_all(CloseCode.GOING_AWAY, _DRAINING)


def renewal(
    authenticate: Callable[[Request, Route], Awaitable[Caller]], request: Request, route: Route
) -> Callable[[str], Awaitable[Caller]] | None:
    """The caller of another credential for the same route and tenant. Keeps little of the request, which ends before."""
    if request._caller is None:
        return None
    tenant = request._caller.tenant
    kept = Request("GET", request.path, request.request_id, {}, request.parameters, no_body, request.draining)
    kept.client = request.client

    async def renew(credential: str) -> Caller:
        headers = {b"authorization": b"Bearer " + credential.encode(), b"x-postroad-tenant": tenant.encode()}
        caller = await authenticate(replace(kept, headers=headers), route)
        if caller.tenant != tenant:
            raise Unauthenticated("the credential is of another tenant")
        return caller

    return renew


def _head(response: Response, request_id: str) -> bytes:
    headers = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"x-request-id", request_id.encode()), *API]
    if response.subprotocol:
        headers.append((b"sec-websocket-protocol", response.subprotocol.encode()))
    lines = [b"%b: %b\r\n" % header for header in (*headers, *response.headers)]
    return b"HTTP/1.1 101 Switching Protocols\r\n" + b"".join(lines) + b"\r\n"
