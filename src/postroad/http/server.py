"""uvicorn, with what it lacks: limits on a request's head and time, one write per answer, word to the app before it stops."""

import asyncio
import socket
from typing import Any

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroad.http.app import App
from postroad.http.problems import PROBLEM_MEDIA, problem_of
from postroad.kernel.errors import BodyTooSlow, HeadersTooLarge, HeadTooSlow, MalformedRequest, PostroadError
from postroad.kernel.json import encode


class _JoinedWrites:
    """A transport that sends what is written in one turn of the loop in one piece.

    uvicorn writes an answer's head and its body separately, and each write was a system call: a tenth of all processor time.
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


def limited_protocol(limits: RequestLimits) -> type[HttpToolsProtocol]:
    """The protocol of one connection, which ends it when a head is too large, a head or body too slow, or it is not HTTP.

    A request that comes in one piece, as nearly all do, starts no clock.
    """
    too_large = HeadersTooLarge(f"the request's head is over {limits.head_bytes_max} bytes")

    class Limited(HttpToolsProtocol):
        _chunk_bytes = 0
        _head_bytes = 0
        _is_head_open = True
        _is_body_open = False
        _clock: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(_JoinedWrites(transport, self.loop))  # type: ignore[arg-type]
            self._clock = self.loop.call_later(limits.head_seconds_max, self._refuse, HeadTooSlow())

        def data_received(self, data: bytes) -> None:
            self._chunk_bytes = len(data)
            super().data_received(data)
            if not (self._is_head_open or self._is_body_open) or self.transport.is_closing():
                return
            if self._is_head_open:
                self._head_bytes += len(data)
                if self._head_bytes > limits.head_bytes_max:
                    self._refuse(too_large)
                    return
            if self._clock is None:
                seconds, problem = (
                    (limits.head_seconds_max, HeadTooSlow()) if self._is_head_open else (limits.body_seconds_max, BodyTooSlow())
                )
                self._clock = self.loop.call_later(seconds, self._refuse, problem)

        def on_message_begin(self) -> None:
            self._is_head_open, self._head_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._is_head_open = False
            self._stop_clock()
            if self._head_bytes + self._chunk_bytes > limits.head_bytes_max and self._headers_bytes() > limits.head_bytes_max:
                self._refuse(too_large)
                return
            self._is_body_open = True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._is_body_open = False
            self._stop_clock()
            super().on_message_complete()

        def _headers_bytes(self) -> int:
            return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_clock()
            super().connection_lost(exc)

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
            timeout_keep_alive=75,
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
