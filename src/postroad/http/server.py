"""uvicorn with limits on the size and time of requests, coalesced writes, and a drain of the app before shutdown."""

import asyncio
import functools
import socket
from collections import deque
from typing import Any

import httptools
import msgspec
import structlog
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from postroad.http import metrics
from postroad.http.app import App
from postroad.http.body_discarder import BodyDiscarder
from postroad.http.coalescing_transport import CoalescingTransport
from postroad.http.request import Scope
from postroad.http.request_cycle import RequestCycle
from postroad.http.tls import TlsCertificate
from postroad.kernel.errors import BodyTooSlow, HeadersTooLarge, HeaderTimeout, MalformedRequest, Overloaded, PostroadError
from postroad.kernel.log_limit import LogLimit

_PIPELINED_MAX = 100  # requests that wait on a connection for the response to an earlier one
# Two values would let a proxy and Postroad read one request in two ways.
_SINGLE_HEADERS = (b"host", b"authorization", b"x-postroad-tenant", b"content-length", b"transfer-encoding", b"content-type")

_STOP_POLL_SECONDS = 0.01
_TLS_SHUTDOWN_SECONDS = 1.0  # for the client's part of closing a connection

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
    _rejection: PostroadError | None = None  # sent after the responses to earlier requests; then the connection is closed
    cycle: RequestCycle | None  # type: ignore[assignment]
    pipeline: deque[RequestCycle]  # type: ignore[assignment]

    def __init__(self, limits: RequestLimits, discarder: BodyDiscarder, **arguments: Any) -> None:
        """`arguments`: those that uvicorn passes to its protocol class."""
        super().__init__(**arguments)
        self._limits, self._discarder = limits, discarder

    # Receiving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]
        self._read_timer = self.loop.call_later(self._limits.header_seconds_max, self._reject, HeaderTimeout())
        if self._limits.connections_max is not None and len(self.connections) > self._limits.connections_max:
            self._reject(Overloaded(f"{self._limits.connections_max} connections are open", retry_after=1))

    def data_received(self, data: bytes) -> None:
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
        if self._rejection is not None or not (self._is_reading_headers or self._is_reading_body) or self.transport.is_closing():
            return
        if self._is_reading_headers:
            self._header_bytes += self._parsed_header_bytes() if self._has_ended_message else len(data)
        unfinished_bytes = self._overhead_bytes if self._is_reading_body else self._header_bytes
        if unfinished_bytes > self._limits.header_bytes_max:
            self._reject(self._headers_too_large())
        elif self._read_timer is None and self._is_reading_headers:
            self._read_timer = self.loop.call_later(self._limits.header_seconds_max, self._reject, HeaderTimeout())
        elif self._read_timer is None:
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
            self._head_without_upgrade = self._remove_upgrade()
            if self._head_without_upgrade is not None:
                return
        bytes_max = self._limits.header_bytes_max
        if self._header_bytes + len(self._chunk) > bytes_max and self._header_bytes_min() > bytes_max:
            raise self._headers_too_large()
        version = self.parser.get_http_version()
        headers = dict(self.headers)
        self._check_headers(headers, version)
        if len(self.pipeline) >= _PIPELINED_MAX:
            raise Overloaded(f"more than {_PIPELINED_MAX} requests wait on this connection", retry_after=1)
        self._is_reading_headers = False
        self._stop_read_timer()
        self._is_reading_body, self._overhead_bytes = True, 0
        self._begin_cycle(headers, version)
        self.headers = []  # collects trailers, which are ignored

    def _check_headers(self, headers: dict[bytes, bytes], version: str) -> None:
        """Raises MalformedRequest if a proxy could see another request than Postroad does."""
        if len(headers) != len(self.headers):
            names = [name for name, _ in self.headers]
            repeated = next((name for name in _SINGLE_HEADERS if names.count(name) > 1), None)
            if repeated is not None:
                raise MalformedRequest(f"the header {repeated.decode()} is repeated")
        if b"host" not in headers and version != "1.0":
            raise MalformedRequest("the header host is missing")
        if b"transfer-encoding" in headers:
            if headers[b"transfer-encoding"].lower() != b"chunked":
                raise MalformedRequest("the only supported transfer-encoding is chunked")
            if b"content-length" in headers:
                raise MalformedRequest("the request has both content-length and transfer-encoding")

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
        }
        previous, self.cycle = (
            self.cycle,
            RequestCycle(
                scope,
                self.transport,
                self.flow,
                self.on_response_complete,
                keep_alive=version != "1.0" and self.parser.should_keep_alive(),
                expects_continue=self.expect_100_continue,
            ),
        )
        if previous is None or previous.response_complete:
            self._run(self.cycle)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft(self.cycle)

    def _run(self, cycle: RequestCycle) -> None:
        self._running_cycle = cycle
        task = self.loop.create_task(cycle.run(self.app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def on_body(self, body: bytes) -> None:
        self._overhead_bytes = 0
        if self.cycle is not None and not self.cycle.response_complete:  # otherwise the rest of the body is discarded
            self.cycle.add_body(body)
            if self.cycle.buffered_bytes > HIGH_WATER_LIMIT:
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
        if head is not None:
            self._header_bytes = 0
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(head + self._chunk[consumed:])

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
        self._start_write_timer()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

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
        if self._keepalive_timer is not None:
            self._keepalive_timer.cancel()
        self.connections.discard(self)
        for cycle in (self._running_cycle, *self.pipeline):
            if cycle is not None:
                cycle.disconnect()
        self.flow.resume_writing()
        self.transport.close()
        self.pipeline.clear()
        self.cycle = self._running_cycle = None  # no reference cycles: the garbage collector runs rarely
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
        headers, body = app.rejection(error)
        lines = [b"%b: %b\r\n" % header for header in (*headers, (b"connection", b"close"))]
        self.transport.write(STATUS_LINE[error.status] + b"".join(lines) + b"\r\n" + body)
        self.transport.close()


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
            HttpConnection, self._limits, BodyDiscarder(), config=self.config, server_state=self.server_state, app_state={}
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
