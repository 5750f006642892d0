"""uvicorn, with what it lacks: limits on a request's head, errors as problem+json, and word to the app before it stops."""

import asyncio
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from postroad.http.app import App
from postroad.http.problems import PROBLEM_MEDIA, problem_of
from postroad.kernel.errors import HeadersTooLarge, HeadTooSlow, MalformedRequest, PostroadError
from postroad.kernel.json import encode


def limited_protocol(head_bytes_max: int, head_seconds_max: float) -> type[HttpToolsProtocol]:
    """The protocol of one connection, which ends it when a head is too large, too slow or not HTTP."""

    class Limited(HttpToolsProtocol):
        _chunk_bytes = 0
        _head_bytes = 0
        _is_head_open = True
        _too_slow: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._too_slow = self.loop.call_later(head_seconds_max, self._refuse, HeadTooSlow())

        def data_received(self, data: bytes) -> None:
            self._chunk_bytes = len(data)
            super().data_received(data)
            if not self._is_head_open or self.transport.is_closing():
                return
            self._head_bytes += len(data)
            if self._head_bytes > head_bytes_max:
                self._refuse(HeadersTooLarge(f"the request's head is over {head_bytes_max} bytes"))
            elif self._too_slow is None:
                self._too_slow = self.loop.call_later(head_seconds_max, self._refuse, HeadTooSlow())

        def on_message_begin(self) -> None:
            self._is_head_open, self._head_bytes = True, 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._is_head_open = False
            self._stop_clock()
            if self._head_bytes + self._chunk_bytes > head_bytes_max and self._headers_bytes() > head_bytes_max:
                self._refuse(HeadersTooLarge(f"the request's head is over {head_bytes_max} bytes"))
                return
            super().on_headers_complete()

        def _headers_bytes(self) -> int:
            return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_clock()
            super().connection_lost(exc)

        def _stop_clock(self) -> None:
            if self._too_slow is not None:
                self._too_slow.cancel()
                self._too_slow = None

        def send_400_response(self, _message: str) -> None:
            self._refuse(MalformedRequest())

        def _refuse(self, problem: PostroadError) -> None:
            """Nobody is waiting for this request's answer inside, so it is written here and the connection closed."""
            if self.transport.is_closing():
                return
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

    def __init__(self, app: App, *, stop_seconds: float, head_bytes_max: int, head_seconds_max: float) -> None:
        config = uvicorn.Config(
            _as_asgi(app),
            http=limited_protocol(head_bytes_max, head_seconds_max),
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
