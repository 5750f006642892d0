"""One HTTP connection: limits on the size and time of requests, coalesced writes, and the switch to WebSocket."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import httptools
import msgspec
import structlog
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from postroad.http import metrics
from postroad.http.body_discarder import BodyDiscarder
from postroad.http.body_waits import BodyWaits
from postroad.http.coalescing_transport import CoalescingTransport
from postroad.http.header_rules import check_headers
from postroad.http.request import Scope
from postroad.http.request_cycle import RequestCycle
from postroad.http.websocket import CloseCode, SocketFlow, SocketHandler, WebSocket
from postroad.http.websocket_frames import asks_for_websocket
from postroad.kernel.errors import BodyTooSlow, HeadersTooLarge, HeaderTimeout, MalformedRequest, Overloaded, PostroadError
from postroad.kernel.log_limit import LogLimit

_PIPELINED_MAX = 100  # requests that wait on a connection for the response to an earlier one

# What a connection needs after the switch to WebSocket. The rest belongs to HTTP and takes 3 kB.
_OF_SOCKETS = ("loop", "transport", "connections", "_limits", "is_write_paused", "_write_timer")
_NO_CYCLES: "deque[RequestCycle]" = deque()

log = structlog.get_logger("postroad.http")
_log_limit = LogLimit()


class RequestLimits(msgspec.Struct, frozen=True):
    header_bytes_max: int
    header_seconds_max: float
    body_seconds_max: float
    write_timeout_seconds: float
    keepalive_seconds: int
    connections_max: int | None = None


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection. It is closed when the headers are too large, the headers or the body too slow, the client stops
    reading, or the bytes are not HTTP.

    A request that arrives in one piece, as nearly all do, starts no timer.
    """

    _chunk = b""
    _head_without_upgrade: bytes | None = None
    _header_bytes = 0  # of the unfinished headers, received in earlier chunks
    _has_ended_message = False  # in this chunk: what precedes the headers in it is not known
    _is_reading_headers = True
    _is_reading_body = False
    _overhead_bytes = 0  # received in an unfinished body since its last data: trailers, or chunk extensions
    _read_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    _write_timer: asyncio.TimerHandle | None = None
    _keepalive_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _is_discarding = False  # it waits for its turn to read more of a body that is not wanted
    _running_cycle: RequestCycle | None = None  # `cycle` is the newest one, which waits while an earlier one runs
    _is_handshake = False  # the newest request is one of WebSocket, the last of the connection
    _socket: WebSocket | None = None  # after the switch of protocols
    _socket_ended: Callable[[WebSocket], None] | None = None
    _socket_bytes: bytes | None = None  # received after the head of a WebSocket handshake; None without one
    is_write_paused = False
    _due_cycle: RequestCycle | None = None  # to be run once the chunk is parsed
    _rejection: PostroadError | None = None  # sent after the responses to earlier requests; then the connection is closed
    _rejected: RequestCycle | None = None  # the request whose body is the cause; it decides the form of the error
    cycle: RequestCycle | None  # type: ignore[assignment]
    pipeline: deque[RequestCycle]  # type: ignore[assignment]

    def __init__(self, limits: RequestLimits, discarder: BodyDiscarder, waits: BodyWaits, **arguments: Any) -> None:
        """`arguments`: those that uvicorn passes to its protocol class."""
        super().__init__(**arguments)
        self._limits, self._discarder, self._waits = limits, discarder, waits

    # Receiving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]
        self._read_timer = self.loop.call_later(self._limits.header_seconds_max, self._reject, HeaderTimeout())
        if self._limits.connections_max is not None and len(self.connections) > self._limits.connections_max:
            self._reject(Overloaded(f"{self._limits.connections_max} connections are open", retry_after=1))

    def data_received(self, data: bytes) -> None:
        if self._socket is not None:
            self._socket.receive(data)
            return
        if self._socket_bytes is not None:
            self._socket_bytes += data
            self.flow.pause_reading()
            return
        if self._rejection is not None:
            return
        self._chunk, self._has_ended_message = data, False
        self._overhead_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            self._restart_without_upgrade(stopped.args[0])
        except httptools.HttpParserError as error:
            cause = error.__context__  # a callback stops the parser with its error
            self._reject(cause if isinstance(cause, PostroadError) else MalformedRequest())
        self._chunk = b""
        if self._due_cycle is not None:  # not before the whole chunk is parsed: nearly always it contains the body
            due, self._due_cycle = self._due_cycle, None
            self._run(due)
        if self._rejection is not None or not (self._is_reading_headers or self._is_reading_body) or self.transport.is_closing():
            return
        if self._is_reading_headers:
            self._header_bytes += self._parsed_header_bytes() if self._has_ended_message else len(data)
        unfinished_bytes = self._overhead_bytes if self._is_reading_body else self._header_bytes
        if unfinished_bytes > self._limits.header_bytes_max:
            self._reject(self._headers_too_large())
        elif self._read_timer is None and self._is_reading_headers:
            self._read_timer = self.loop.call_later(self._limits.header_seconds_max, self._reject, HeaderTimeout())
        elif self._read_timer is None and not (self.cycle is not None and self.cycle.is_waiting):
            self._read_timer = self.loop.call_later(self._limits.body_seconds_max, self._reject, BodyTooSlow())
        if self._is_reading_body and self.cycle is not None and self.cycle.response_complete:
            self._discard_later()

    def _discard_later(self) -> None:
        """Pause; the discarder resumes reading for one chunk when it is this connection's turn."""
        self.flow.pause_reading()
        if not self._is_discarding:
            self._is_discarding = True
            self._discarder.schedule(self._discard_chunk)

    def _discard_chunk(self) -> None:
        self._is_discarding = False
        if not self.transport.is_closing():
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        self._is_reading_headers, self._header_bytes = True, 0
        self.url, self.headers, self.expect_100_continue = b"", [], False

    def on_headers_complete(self) -> None:
        """Raises HeadersTooLarge, MalformedRequest and Overloaded, which stop the parser."""
        if self.parser.should_upgrade():
            self._is_handshake = self._is_websocket()
        if self.parser.should_upgrade() and not self._is_handshake:
            self._head_without_upgrade = self._remove_upgrade()
            if self._head_without_upgrade is not None:
                return
        bytes_max = self._limits.header_bytes_max
        if self._header_bytes + len(self._chunk) > bytes_max and self._header_bytes_min() > bytes_max:
            raise self._headers_too_large()
        version = self.parser.get_http_version()
        headers = dict(self.headers)
        check_headers(self.headers, headers, version)
        if len(self.pipeline) >= _PIPELINED_MAX:
            raise Overloaded(f"more than {_PIPELINED_MAX} requests wait on this connection", retry_after=1)
        self._is_reading_headers = False
        self._stop_read_timer()
        self._is_reading_body, self._overhead_bytes = True, 0
        self._begin_cycle(headers, version)
        self.headers = []  # collects trailers, which are ignored

    def _begin_cycle(self, headers: dict[bytes, bytes], version: str) -> None:
        url = httptools.parse_url(self.url)
        scope: Scope = {  # what the app reads of ASGI's scope; headers are a mapping, and the path is percent-encoded
            "type": "http",
            "method": self.parser.get_method().decode("ascii"),
            "path": url.path.decode("ascii"),
            "query_string": url.query or b"",
            "headers": headers,
            "client": self.client,
            "server": self.server,
            "scheme": self.scheme,
            "switch": self._switch if self._is_handshake else None,
        }
        previous = self.cycle
        self.cycle = RequestCycle(
            scope,
            self.transport,
            self.flow,
            self.on_response_complete,
            self._start_task,
            keep_alive=version != "1.0" and not self._is_handshake and self.parser.should_keep_alive(),
            expects_continue=self.expect_100_continue,
        )
        if previous is None or previous.response_complete:
            self._due_cycle = self.cycle
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft(self.cycle)

    def _run(self, cycle: RequestCycle) -> None:
        self._running_cycle = cycle
        app: Any = self.app
        cycle.start(app)
        if cycle.is_waiting:
            self._waits.add(self)

    def end_body_wait(self) -> None:
        """The rest of a body was not there in time: a task serves the request, and waits for it."""
        self._waits.remove(self)
        if self._running_cycle is not None and self._running_cycle.is_waiting:
            self._running_cycle.stop_waiting()
            if self._read_timer is None:
                self._read_timer = self.loop.call_later(self._limits.body_seconds_max, self._reject, BodyTooSlow())

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_body(self, body: bytes) -> None:
        self._overhead_bytes = 0
        if self.cycle is not None and not self.cycle.response_complete:  # otherwise the rest of the body is discarded
            self.cycle.add_body(body)
            if self.cycle.buffered_bytes > HIGH_WATER_LIMIT:
                self.end_body_wait()
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        """Raises HeadersTooLarge, which stops the parser."""
        if self._head_without_upgrade is not None:
            return
        if self.headers and self._parsed_header_bytes() > self._limits.header_bytes_max:
            raise self._headers_too_large()
        self._is_reading_body, self._has_ended_message = False, True
        self._stop_read_timer()
        if self.cycle is not None:
            self.cycle.end_body()
            if self.cycle.is_waiting:
                self._waits.remove(self)
                self._due_cycle = self.cycle

    def _header_bytes_min(self) -> int:
        """Bytes of the complete headers. The parser does not report where they end in a chunk, nor the blanks around a value."""
        return max(self._header_bytes, self._parsed_header_bytes())

    def _parsed_header_bytes(self) -> int:
        """Bytes of the headers or trailers that the parser has reported, with their separators and line ends."""
        first_line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n") if self._is_reading_headers else 0
        return first_line + sum([len(name) + len(value) + len(": \r\n") for name, value in self.headers]) + len("\r\n")

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    # Upgrade requests are served as HTTP/1.1

    def _remove_upgrade(self) -> bytes | None:
        """The request's head without the headers that ask for another protocol; None if it has none (and is a CONNECT).

        Clients that prefer HTTP/2 send such headers. httptools treats everything after the head as that protocol: the body
        would be lost, or be parsed as the next request.
        """
        if all(name != b"upgrade" for name, _ in self.headers):
            return None
        remaining = [header for header in self.headers if header[0] not in (b"upgrade", b"connection", b"http2-settings")]
        if not self.parser.should_keep_alive():
            remaining.append((b"connection", b"close"))
        first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        return first + b"".join([b"%b: %b\r\n" % header for header in remaining]) + b"\r\n"

    def _restart_without_upgrade(self, consumed: int) -> None:
        """Start a new parser with the changed head; the old one has stopped at the end of the original head."""
        head, self._head_without_upgrade = self._head_without_upgrade, None
        if self._is_handshake:
            self._socket_bytes = self._chunk[consumed:]
        elif head is not None:
            self._header_bytes = 0
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(head + self._chunk[consumed:])

    # WebSocket

    def _is_websocket(self) -> bool:
        """True for a request to switch to WebSocket on a path that is one. Other requests are served as plain HTTP."""
        app: Any = self.app
        return (
            self.parser.get_method() == b"GET"
            and self.parser.get_http_version() == "1.1"
            and asks_for_websocket(dict(self.headers))
            and app.is_websocket(self.url.partition(b"?")[0].decode("latin-1"))
        )

    def _switch(self, head: bytes, handler: SocketHandler, ended: Callable[[WebSocket], None]) -> WebSocket | None:
        """Send the head of the response, and pass everything that follows to the handler. None if the client has disconnected."""
        received, cycle = self._socket_bytes, self._running_cycle
        if received is None or cycle is None or self.transport.is_closing():
            return None
        self.transport.write(head)
        cycle.response_complete = True
        self.server_state.total_requests += 1
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        flow: Any = SocketFlow(self.transport, is_paused=self.flow.read_paused)
        self.__dict__ = {name: value for name, value in vars(self).items() if name in _OF_SOCKETS}
        self.flow, self.pipeline, self.cycle = flow, _NO_CYCLES, None
        self._socket, self._socket_ended = WebSocket(self, handler, self.loop), ended
        handler.opened(self._socket)
        self.flow.resume_reading()
        if received:
            self._socket.receive(received)
        return self._socket

    def write_frame(self, data: bytes) -> None:
        transport: Any = self.transport
        transport.write_now(data)

    def end_writing(self) -> None:
        """A half-closed connection discards what the client still sends: closing at once could lose the close frame."""
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        if self._socket is None:
            super().shutdown()
        else:
            self._socket.close(CloseCode.GOING_AWAY, "the server is shutting down")

    # Between requests

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self._is_reading_body and self._running_cycle is self.cycle:
            self._discard_later()
        else:
            self.flow.resume_reading()
        if self.pipeline:
            self._run(self.pipeline.pop())
            return
        if self._rejection is not None:
            self._send_rejection(self._rejection)
            return
        self._idle_since = self.loop.time()
        if self._keepalive_timer is None:
            self._keepalive_timer = self.loop.call_later(self._limits.keepalive_seconds, self._close_if_idle)

    def _close_if_idle(self) -> None:
        """One timer serves the whole life of a connection: starting and stopping one for each request costs more."""
        is_reading = self._is_reading_headers or self._is_reading_body
        is_busy = is_reading or self.cycle is None or not self.cycle.response_complete
        limit = self._limits.keepalive_seconds
        remaining = limit if is_busy else self._idle_since - self.loop.time() + limit
        if remaining > 0:
            self._keepalive_timer = self.loop.call_later(remaining, self._close_if_idle)
        else:
            self.transport.close()

    # Sending

    def pause_writing(self) -> None:
        super().pause_writing()
        self.is_write_paused = True
        self._start_write_timer()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        self.is_write_paused = False
        super().resume_writing()
        if self._socket is not None:
            self._socket.writable()

    def _start_write_timer(self) -> None:
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_seconds, self._abort_if_unread)

    def _abort_if_unread(self) -> None:
        """Wait for a client that reads slowly. A client that reads nothing would hold the response in memory forever."""
        if self.transport.get_write_buffer_size() < self._unread_bytes:
            self._start_write_timer()
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # Ending

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_read_timer()
        self._stop_write_timer()
        if self._socket is None:
            self._waits.remove(self)
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        self.connections.discard(self)
        for cycle in (self._running_cycle, *self.pipeline):
            if cycle is not None:
                cycle.disconnect()
        self.flow.resume_writing()
        self.transport.close()
        self.pipeline.clear()
        if self._socket is not None and self._socket_ended is not None:
            socket, self._socket = self._socket, None
            self._socket_ended(socket)
            socket.lost()
        self.cycle = self._running_cycle = self._rejected = None  # no reference cycles: the garbage collector runs rarely
        self.parser = None  # type: ignore[assignment]

    def _headers_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the request's headers exceed {self._limits.header_bytes_max} bytes")

    def _reject(self, error: PostroadError) -> None:
        """Send an error after the responses to earlier requests, and close the connection. Discards what is received until then.

        The app, if it is waiting for the body, gets a disconnect.
        """
        if self._rejection is not None or self.transport.is_closing():
            return
        self._rejection = error
        self._stop_read_timer()
        metrics.protocol_errors.labels(error.code).inc()
        suppressed = _log_limit.admit()
        if suppressed is not None:
            log.info("request_rejected", code=error.code, client=self.client[0] if self.client else "", suppressed=suppressed)
        cycle = self.cycle
        if cycle is not None and self._is_reading_body:  # the error is in the body of this request
            self._rejected = cycle
            if self.pipeline and self.pipeline[0] is cycle:
                self.pipeline.popleft()
            elif cycle.response_started:
                self.transport.close()
            else:
                self._send_rejection(error)
        elif cycle is None or cycle.response_complete:
            self._send_rejection(error)

    def _send_rejection(self, error: PostroadError) -> None:
        app: Any = self.app
        headers, body = app.rejection(error, None if self._rejected is None else self._rejected.scope)
        lines = [b"%b: %b\r\n" % header for header in (*headers, (b"connection", b"close"))]
        self.transport.write(STATUS_LINE[error.status] + b"".join(lines) + b"\r\n" + body)
        self.transport.close()
