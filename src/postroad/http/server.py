"""uvicorn with limits on the size and time of requests, coalesced writes, and a drain of the app before shutdown."""

import asyncio
import functools
import socket
import sys
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools
import msgspec
import structlog
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroad.http.app import App
from postroad.http.problems import PROBLEM_MEDIA, problem_of
from postroad.http.request import Scope
from postroad.http.request_cycle import RequestCycle
from postroad.kernel.errors import BodyTooSlow, HeadersTooLarge, HeaderTimeout, MalformedRequest, PostroadError
from postroad.kernel.json import encode

_STOP_POLL_SECONDS = 0.01

log = structlog.get_logger("postroad.http")


class _CoalescingTransport:
    """A transport that sends everything written in one iteration of the event loop with one system call.

    This serves the chunks of a live response. Complete responses gain too: sent at the end of the iteration they cost a tenth
    less than sent at once (decision 0022).
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._buffer: list[bytes] = []
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._buffer:
            self._loop.call_soon(self._flush)
        self._buffer.append(data)

    def _flush(self) -> None:
        buffer, self._buffer = self._buffer, []
        if buffer:
            self._transport.write(b"".join(buffer))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class RequestLimits(msgspec.Struct, frozen=True):
    header_bytes_max: int
    header_seconds_max: float
    body_seconds_max: float
    write_timeout_seconds: float
    keepalive_seconds: int


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection. It is closed when the headers are too large, the headers or the body too slow, the client stops
    reading, or the bytes are not HTTP.

    A request that arrives in one piece, as nearly all do, starts no timer.
    """

    _chunk = b""
    _head_without_upgrade: bytes | None = None
    _header_bytes = 0
    _is_reading_headers = True
    _is_reading_body = False
    _overhead_bytes = 0  # received in an unfinished body since its last data: trailers, or chunk extensions
    _read_timer: asyncio.TimerHandle | None = None
    _unread_bytes = 0
    _write_timer: asyncio.TimerHandle | None = None
    _keepalive_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _running_cycle: RequestCycle | None = None  # `cycle` is the newest one, which waits while an earlier one runs
    cycle: RequestCycle | None  # type: ignore[assignment]
    pipeline: deque[RequestCycle]  # type: ignore[assignment]

    def __init__(self, limits: RequestLimits, **arguments: Any) -> None:
        """`arguments`: those that uvicorn passes to its protocol class."""
        super().__init__(**arguments)
        self._limits = limits

    # Receiving

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_CoalescingTransport(transport, self.loop))  # type: ignore[arg-type]
        self._read_timer = self.loop.call_later(self._limits.header_seconds_max, self._reject, HeaderTimeout())

    def data_received(self, data: bytes) -> None:
        self._chunk = data
        self._overhead_bytes += len(data)
        super().data_received(data)
        self._chunk = b""
        if self.transport.is_closing() or not (self._is_reading_headers or self._is_reading_body):
            return
        if self._is_reading_headers:
            self._header_bytes += len(data)
        unfinished_bytes = self._overhead_bytes if self._is_reading_body else self._header_bytes
        if unfinished_bytes > self._limits.header_bytes_max:
            self._reject(self._headers_too_large())
        elif self._read_timer is None and self._is_reading_headers:
            self._read_timer = self.loop.call_later(self._limits.header_seconds_max, self._reject, HeaderTimeout())
        elif self._read_timer is None:
            self._read_timer = self.loop.call_later(self._limits.body_seconds_max, self._reject, BodyTooSlow())

    def on_message_begin(self) -> None:
        self._is_reading_headers, self._header_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            self._head_without_upgrade = self._remove_upgrade()
            if self._head_without_upgrade is not None:
                return
        self._is_reading_headers = False
        self._stop_read_timer()
        bytes_max = self._limits.header_bytes_max
        if self._header_bytes + len(self._chunk) > bytes_max and self._parsed_header_bytes() > bytes_max:
            self._reject(self._headers_too_large())
            return
        self._is_reading_body, self._overhead_bytes = True, 0
        self._begin_cycle()
        self.headers = []  # collects trailers, which are ignored: the app may not have read the request's headers yet

    def _begin_cycle(self) -> None:
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        version = self.parser.get_http_version()
        scope: Scope = self.scope  # type: ignore[assignment]
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["path"] = unquote(path) if "%" in path else path
        scope["raw_path"], scope["query_string"], scope["http_version"] = url.path, url.query or b"", version
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
        if self._head_without_upgrade is not None:
            return
        self._is_reading_body = False
        self._stop_read_timer()
        if self.cycle is not None:
            self.cycle.end_body()

    def _parsed_header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

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

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn calls this after the parser has stopped at the end of such a head: start a new parser with the changed head."""
        stopped, head = sys.exc_info()[1], self._head_without_upgrade
        if head is not None and isinstance(stopped, httptools.HttpParserUpgrade):
            self._head_without_upgrade, self._header_bytes = None, 0
            self.parser = httptools.HttpRequestParser(self)
            self.data_received(head + self._chunk[stopped.args[0] :])

    # Between requests

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._run(self.pipeline.pop())
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

    def send_400_response(self, _message: str) -> None:
        self._reject(MalformedRequest())

    def _headers_too_large(self) -> HeadersTooLarge:
        return HeadersTooLarge(f"the request's headers exceed {self._limits.header_bytes_max} bytes")

    def _reject(self, error: PostroadError) -> None:
        """Close the connection, with an error response unless another response has been started. The app, if it is waiting for
        the body, gets a disconnect."""
        if self.transport.is_closing():
            return
        cycle = self.cycle  # of this request if its body is being read, of the previous one if its headers are
        if cycle is None or not cycle.response_started or (cycle.response_complete and not self._is_reading_body):
            body = encode(problem_of(error))
            head = (
                f"HTTP/1.1 {error.status} {error.title}\r\ncontent-type: {PROBLEM_MEDIA.decode()}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Drains the app before waiting for open connections, so that long polls and live readers end then, not at the timeout."""

    def __init__(self, app: App, limits: RequestLimits, *, stop_seconds: float) -> None:
        connection_factory: Any = functools.partial(HttpConnection, limits)  # uvicorn only calls it
        config = uvicorn.Config(
            _as_asgi(app),
            http=connection_factory,
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, then wait for open connections and requests; cancel those that outlast the timeout."""
        self._app.drain()
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while (self.server_state.connections or self.server_state.tasks) and not self.force_exit:  # noqa: ASYNC110  # uvicorn has no event
                    await asyncio.sleep(_STOP_POLL_SECONDS)
        except TimeoutError:
            log.warning("requests_cancelled", open=len(self.server_state.tasks), reason="the server stops")
            for task in self.server_state.tasks:
                task.cancel("the server stops")


def _as_asgi(app: App) -> Any:
    """uvicorn's ASGI types are closed dictionaries; ours are open ones, as in the specification."""
    return app
