"""uvicorn, with what it lacks: limits on a request's head and time, one write per answer, word to the app before it stops."""

import asyncio
import socket
import sys
from collections import deque
from typing import Any
from urllib.parse import unquote

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroad.http.app import App
from postroad.http.problems import PROBLEM_MEDIA, problem_of
from postroad.http.request import Scope
from postroad.http.request_cycle import RequestCycle
from postroad.kernel.errors import BodyTooSlow, HeadersTooLarge, HeaderTimeout, MalformedRequest, PostroadError
from postroad.kernel.json import encode


class _JoinedWrites:
    """A transport that sends what is written in one turn of the loop in one piece.

    A live answer's chunks of one turn go together. Whole answers gain too: at the end of the turn they cost a tenth less than at
    once (decision 0022).
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._send_held)
        self._held.append(data)

    def _send_held(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(b"".join(held))

    def close(self) -> None:
        self._send_held()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class RequestLimits(msgspec.Struct, frozen=True):
    head_bytes_max: int
    head_seconds_max: float
    body_seconds_max: float
    unread_seconds_max: float
    rest_seconds_max: int


def limited_protocol(limits: RequestLimits) -> type[HttpToolsProtocol]:
    """The protocol of one connection, which ends it when a head is too large, a head or body too slow, an answer is not read, or
    it is not HTTP.

    A request that comes in one piece, as nearly all do, starts no clock.
    """
    too_large = HeadersTooLarge(f"the request's head is over {limits.head_bytes_max} bytes")

    class Limited(HttpToolsProtocol):
        _chunk = b""
        _reworded: bytes | None = None
        _head_bytes = 0
        _is_head_open = True
        _is_body_open = False
        _loose_bytes = 0  # that an open body has had since its last data: trailers, or what stands beside a chunk's length
        _clock: asyncio.TimerHandle | None = None
        _unread_bytes = 0
        _reader_clock: asyncio.TimerHandle | None = None

        _rest_clock: asyncio.TimerHandle | None = None
        _rests_since = 0.0
        _current: RequestCycle | None = None  # that the app is at; `cycle` is the one that came last, which may have to wait
        cycle: RequestCycle | None  # type: ignore[assignment]
        pipeline: deque[RequestCycle]  # type: ignore[assignment]

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(_JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
            self._clock = self.loop.call_later(limits.head_seconds_max, self._refuse, HeaderTimeout())

        def data_received(self, data: bytes) -> None:
            self._chunk = data
            self._loose_bytes += len(data)
            super().data_received(data)
            self._chunk = b""
            if self.transport.is_closing():
                return
            if not (self._is_head_open or self._is_body_open):
                return
            if self._is_body_open and self._loose_bytes > limits.head_bytes_max:
                self._refuse(too_large)
                return
            if self._is_head_open:
                self._head_bytes += len(data)
                if self._head_bytes > limits.head_bytes_max:
                    self._refuse(too_large)
                    return
            if self._clock is None:
                seconds, problem = (
                    (limits.head_seconds_max, HeaderTimeout()) if self._is_head_open else (limits.body_seconds_max, BodyTooSlow())
                )
                self._clock = self.loop.call_later(seconds, self._refuse, problem)

        def on_message_begin(self) -> None:
            self._is_head_open, self._head_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            if self.parser.should_upgrade():
                self._reworded = self._without_upgrade()
                if self._reworded is not None:
                    return
            self._is_head_open = False
            self._stop_clock()
            if self._head_bytes + len(self._chunk) > limits.head_bytes_max and self._headers_bytes() > limits.head_bytes_max:
                self._refuse(too_large)
                return
            self._is_body_open, self._loose_bytes = True, 0
            self._begin_exchange()
            self.headers = []  # trailers go here, and nowhere: they are no part of the head, which the app may not have read yet

        def _begin_exchange(self) -> None:
            url = httptools.parse_url(self.url)
            path = url.path.decode("ascii")
            version = self.parser.get_http_version()
            scope: Scope = self.scope  # type: ignore[assignment]
            scope["method"] = self.parser.get_method().decode("ascii")
            scope["path"] = unquote(path) if "%" in path else path
            scope["raw_path"], scope["query_string"], scope["http_version"] = url.path, url.query or b"", version
            before, self.cycle = (
                self.cycle,
                RequestCycle(
                    scope,
                    self.transport,
                    self.flow,
                    self.on_response_complete,
                    keep_alive=version != "1.0" and self.parser.should_keep_alive(),
                    must_go_on=self.expect_100_continue,
                ),
            )
            if before is None or before.response_complete:
                self._start(self.cycle)
            else:
                self.flow.pause_reading()
                self.pipeline.appendleft(self.cycle)

        def _start(self, exchange: RequestCycle) -> None:
            self._current = exchange
            task = self.loop.create_task(exchange.run(self.app))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

        def on_body(self, body: bytes) -> None:
            self._loose_bytes = 0
            if self.cycle is not None:
                self.cycle.take(body)
                if self.cycle.waiting_bytes > HIGH_WATER_LIMIT:
                    self.flow.pause_reading()

        def on_message_complete(self) -> None:
            if self._reworded is not None:
                return
            self._is_body_open = False
            self._stop_clock()
            if self.cycle is not None:
                self.cycle.end_body()

        def on_response_complete(self) -> None:
            self.server_state.total_requests += 1
            if self.transport.is_closing():
                return
            self.flow.resume_reading()
            if self.pipeline:
                self._start(self.pipeline.pop())
                return
            self._rests_since = self.loop.time()
            if self._rest_clock is None:
                self._rest_clock = self.loop.call_later(limits.rest_seconds_max, self._look_at_rest)

        def _look_at_rest(self) -> None:
            """One clock for a connection's whole life: to start one after each answer, and stop it before each request, costs
            more than it is worth."""
            is_at_work = self._is_head_open or self._is_body_open or self.cycle is None or not self.cycle.response_complete
            left = self._rests_since - self.loop.time() + limits.rest_seconds_max
            if is_at_work or left > 0:
                self._rest_clock = self.loop.call_later(limits.rest_seconds_max if is_at_work else left, self._look_at_rest)
            else:
                self.transport.close()

        def _without_upgrade(self) -> bytes | None:
            """The head without its wish for another protocol, None if it has none (and is a CONNECT).

            Clients that would rather speak HTTP/2 begin so. httptools takes what follows for that protocol: the request's body
            would be lost, or be taken for the next request.
            """
            if all(name != b"upgrade" for name, _ in self.headers):
                return None
            kept = [(name, value) for name, value in self.headers if name not in (b"upgrade", b"connection", b"http2-settings")]
            if not self.parser.should_keep_alive():
                kept.append((b"connection", b"close"))
            first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
            return first + b"".join([b"%b: %b\r\n" % header for header in kept]) + b"\r\n"

        def _unsupported_upgrade_warning(self) -> None:
            """Called where the parser has stopped at the end of such a head: a new one begins with the other."""
            stopped, reworded = sys.exc_info()[1], self._reworded
            if reworded is not None and isinstance(stopped, httptools.HttpParserUpgrade):
                self._reworded, self._head_bytes = None, 0
                self.parser = httptools.HttpRequestParser(self)
                self.data_received(reworded + self._chunk[stopped.args[0] :])

        def _headers_bytes(self) -> int:
            return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._await_reader()

        def resume_writing(self) -> None:
            self._stop_reader_clock()
            super().resume_writing()

        def _await_reader(self) -> None:
            self._unread_bytes = self.transport.get_write_buffer_size()
            self._reader_clock = self.loop.call_later(limits.unread_seconds_max, self._look_at_reader)

        def _look_at_reader(self) -> None:
            """Who reads slowly is waited for; who reads nothing would keep what it was sent in memory for ever."""
            if self.transport.get_write_buffer_size() < self._unread_bytes:
                self._await_reader()
            else:
                self.transport.abort()

        def _stop_reader_clock(self) -> None:
            if self._reader_clock is not None:
                self._reader_clock.cancel()
                self._reader_clock = None

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_clock()
            self._stop_reader_clock()
            if self._rest_clock is not None:
                self._rest_clock.cancel()
            self.connections.discard(self)
            for exchange in (self._current, *self.pipeline):
                if exchange is not None:
                    exchange.leave()
            self.flow.resume_writing()
            self.transport.close()
            self.pipeline.clear()
            self.cycle = self._current = None  # nothing is to wait for the collector of cycles, which comes seldom
            self.parser = None  # type: ignore[assignment]

        def _stop_clock(self) -> None:
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

        def send_400_response(self, _message: str) -> None:
            self._refuse(MalformedRequest())

        def _refuse(self, problem: PostroadError) -> None:
            """End the connection and say why, unless an answer is on its way already. The app, if it waits for a body, sees the
            client leave."""
            if self.transport.is_closing():
                return
            answered = self.cycle  # of this request while its body is open, of the one before while its head is
            if answered is None or not answered.response_started or (answered.response_complete and not self._is_body_open):
                body = encode(problem_of(problem))
                head = (
                    f"HTTP/1.1 {problem.status} {problem.title}\r\ncontent-type: {PROBLEM_MEDIA.decode()}\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                )
                self.transport.write(head.encode() + body)
            self.transport.close()

    return Limited


class Server(uvicorn.Server):
    """Tells the app before it waits for open connections: long polls and live readers end then, and not at the time-out."""

    def __init__(self, app: App, limits: RequestLimits, *, stop_seconds: float) -> None:
        config = uvicorn.Config(
            _as_asgi(app),
            http=limited_protocol(limits),
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
        self._app.drain()
        await super().shutdown(sockets)


def _as_asgi(app: App) -> Any:
    """uvicorn's ASGI types are closed dictionaries; ours are the open ones that the specification describes."""
    return app
