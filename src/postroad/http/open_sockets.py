"""The WebSocket connections of a worker: opened, pinged, and closed when the process drains."""

from postroad.http import metrics
from postroad.http.request import Request, Scope
from postroad.http.response import Response
from postroad.http.security_headers import API
from postroad.http.websocket import CloseCode, PingSchedule, WebSocket

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


def _head(response: Response, request_id: str) -> bytes:
    headers = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"x-request-id", request_id.encode()), *API]
    if response.subprotocol:
        headers.append((b"sec-websocket-protocol", response.subprotocol.encode()))
    lines = [b"%b: %b\r\n" % header for header in (*headers, *response.headers)]
    return b"HTTP/1.1 101 Switching Protocols\r\n" + b"".join(lines) + b"\r\n"
