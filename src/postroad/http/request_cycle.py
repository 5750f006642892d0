"""One request and its response, between a uvicorn connection and the app.

It replaces uvicorn's RequestResponseCycle at half the cost: a complete response is sent in one piece, its head is validated as a
whole and not header by header, and objects that only long requests and responses need are created on demand.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from postroad.http.app import App
from postroad.http.request import Asgi, Scope

_CONTROL_CHARACTER = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

log = structlog.get_logger("postroad.http")


class RequestCycle:
    __slots__ = (
        "_app",
        "_body_bytes_left",
        "_chunks",
        "_event",
        "_expects_continue",
        "_flow",
        "_has_changed",
        "_head",
        "_is_body_complete",
        "_is_chunked",
        "_on_complete",
        "_start_task",
        "_transport",
        "buffered_bytes",
        "disconnected",
        "keep_alive",
        "response_complete",
        "response_started",
        "scope",
    )

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        on_complete: Callable[[], None],
        start_task: Callable[[Coroutine[Any, Any, None]], None],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.scope, self._transport, self._flow, self._on_complete = scope, transport, flow, on_complete
        self._start_task = start_task
        self._app: App | None = None  # while the request waits for its body
        self._expects_continue = expects_continue  # the client sends the body after an interim response
        self._chunks: list[bytes] = []
        self.buffered_bytes = 0  # of the request's body
        self._is_body_complete = False
        self._has_changed = False  # since the app's last `receive`
        self._event: asyncio.Event | None = None  # created when the app waits
        self._head = b""  # of the response, sent with the first part of its body
        self._is_chunked = False
        self._body_bytes_left = 0  # of a response with a content length
        self.keep_alive = keep_alive
        self.disconnected = self.response_started = self.response_complete = False

    async def run(self, app: Asgi) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:  # cancelled, or already logged by the app
            log.debug("request_aborted", error=repr(error))
        self.abort()

    def start(self, app: Asgi) -> None:
        """Serve the request: with callbacks if its route can, otherwise in a task.

        Callbacks need the whole body. Many clients send it after the headers, in a second write: the request waits for a small
        one until the connection calls `start` again, or `stop_waiting`. Then a task serves it as if it had not waited.
        """
        self._app = None
        if not self._expects_continue and isinstance(app, App):
            if self._is_body_complete:
                if app.start_callback(self.scope, b"".join(self._chunks), self):
                    self._chunks, self.buffered_bytes = [], 0
                    self._flow.resume_reading()
                    return
            elif self.buffered_bytes <= HIGH_WATER_LIMIT and app.has_callback(self.scope, HIGH_WATER_LIMIT):
                self._app = app
                return
        self.start_task(self.run(app))

    @property
    def is_waiting(self) -> bool:
        """True if `start` was called, and has to be called again when the body is complete."""
        return self._app is not None

    def stop_waiting(self) -> None:
        """Serve the request in a task, if it waits for its body."""
        app, self._app = self._app, None
        if app is not None:
            self.start_task(self.run(app))

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._start_task(work)

    # The request

    def add_body(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.buffered_bytes += len(chunk)
        self._notify()

    def end_body(self) -> None:
        self._is_body_complete = True
        self._notify()

    def disconnect(self) -> None:
        """The client has closed the connection."""
        if not self.response_complete:
            self.disconnected = True
        self.stop_waiting()
        self._notify()

    def _notify(self) -> None:
        self._has_changed = True
        if self._event is not None:
            self._event.set()

    async def receive(self) -> Scope:
        if self._expects_continue and not self._transport.is_closing():
            self._expects_continue = False
            self._transport.write(_CONTINUE)
        self._flow.resume_reading()
        while not (self._has_changed or self.disconnected or self.response_complete):
            if self._event is None:
                self._event = asyncio.Event()
            self._event.clear()
            await self._event.wait()
        self._has_changed = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self.buffered_bytes = [], 0
        return {"type": "http.request", "body": body, "more_body": not self._is_body_complete}

    # The response

    @property
    def is_writable(self) -> bool:
        return self.disconnected or not self._flow.write_paused

    def send_whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a response at once. The client may have closed the connection."""
        if not self.disconnected:
            self._start_response(status, headers)
            self._send_body(body, more=False)

    def write_chunk(self, chunk: bytes) -> bool:
        """Send a part of a streamed response at once. False if it must be sent with `send`, which waits for slow clients."""
        if not self._is_chunked or self._flow.write_paused or self.disconnected or self.response_complete:
            return False
        transport: Any = self._transport
        transport.write_now(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        return True

    def abort(self) -> None:
        """Close the connection, since there is no response."""
        if not self.response_complete and not self.disconnected:
            self._transport.close()

    async def send(self, message: Scope) -> None:
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError("the response is already complete")
        if self.response_started:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            self._start_response(message["status"], message["headers"])

    def _start_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self._expects_continue and not self._is_body_complete:
            self.keep_alive = False  # the client may send the body, or another request instead
        self.response_started, self._expects_continue = True, False
        lines = [STATUS_LINE[status]]
        is_chunked = self.scope["method"] != "HEAD" and status not in (204, 304)
        for name, value in headers:
            if name == b"content-length":
                self._body_bytes_left, is_chunked = int(value), False
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or _CONTROL_CHARACTER.search(head):
            raise RuntimeError("a response header contains a control character")
        self._is_chunked = is_chunked
        if is_chunked:
            self._transport.write(head)
        else:
            self._head = head

    def _send_body(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            data, self._body_bytes_left = b"", 0
        elif self._is_chunked:
            data = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        else:
            data = body
            self._body_bytes_left -= len(body)
            if self._body_bytes_left < 0 or (self._body_bytes_left and not more):
                raise RuntimeError("the response's body does not have the declared content length")
        if self._head or data:
            self._transport.write(self._head + data)
            self._head = b""
        if not more:
            self.response_complete = True
            self._notify()
            if not self.keep_alive:
                self._transport.close()
            self._on_complete()
