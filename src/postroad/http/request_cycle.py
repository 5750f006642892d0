"""One request and its answer, between a connection of uvicorn's and the app.

It takes the place of uvicorn's own, at half the cost: an answer that is whole goes out in one piece, its head is looked over once
and not header by header, and what only long bodies and long answers need is made when they need it.
"""

import asyncio
import re
from collections.abc import Callable

import structlog
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from postroad.http.request import Asgi, Scope

_NO_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"

log = structlog.get_logger("postroad.http")


class RequestCycle:
    __slots__ = (
        "_chunks",
        "_done",
        "_flow",
        "_head",
        "_is_body_whole",
        "_is_chunked",
        "_is_new",
        "_left",
        "_must_go_on",
        "_news",
        "_scope",
        "_transport",
        "disconnected",
        "keep_alive",
        "response_complete",
        "response_started",
        "waiting_bytes",
    )

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        done: Callable[[], None],
        *,
        keep_alive: bool,
        must_go_on: bool,
    ) -> None:
        self._scope, self._transport, self._flow, self._done = scope, transport, flow, done
        self._must_go_on = must_go_on  # the client waits for our word before it sends the body
        self._chunks: list[bytes] = []
        self.waiting_bytes = 0  # of the body, that the app has not taken yet
        self._is_body_whole = False
        self._is_new = False  # something that the app has not been told yet
        self._news: asyncio.Event | None = None
        self._head = b""  # held back until the body is there
        self._is_chunked = False
        self._left = 0  # of an answer whose length was told
        self.keep_alive = keep_alive
        self.disconnected = self.response_started = self.response_complete = False

    async def run(self, app: Asgi) -> None:
        try:
            await app(self._scope, self.receive, self.send)
        except BaseException as problem:  # it was cancelled, or has said itself what is wrong
            log.debug("exchange_broken_off", problem=repr(problem))
        if not self.response_complete and not self.disconnected:
            self._transport.close()

    # The request

    def take(self, chunk: bytes) -> None:
        if not self.response_complete:
            self._chunks.append(chunk)
            self.waiting_bytes += len(chunk)
            self._tell()

    def end_body(self) -> None:
        self._is_body_whole = True
        self._tell()

    def leave(self) -> None:
        """The client is gone."""
        if not self.response_complete:
            self.disconnected = True
        self._tell()

    def _tell(self) -> None:
        self._is_new = True
        if self._news is not None:
            self._news.set()

    async def receive(self) -> Scope:
        if self._must_go_on and not self._transport.is_closing():
            self._must_go_on = False
            self._transport.write(_GO_ON)
        self._flow.resume_reading()
        while not (self._is_new or self.disconnected or self.response_complete):
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        self._is_new = False
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self.waiting_bytes = [], 0
        return {"type": "http.request", "body": body, "more_body": not self._is_body_whole}

    # The answer

    async def send(self, message: Scope) -> None:
        if self._flow.write_paused and not self.disconnected:
            await self._flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError("the answer is complete already")
        if self.response_started:
            self._go_on(message.get("body", b""), more=message.get("more_body", False))
        else:
            self._begin(message["status"], message["headers"])

    def _begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started, self._must_go_on = True, False
        lines = [STATUS_LINE[status]]
        is_chunked = self._scope["method"] != "HEAD" and status not in (204, 304)
        for name, value in headers:
            if name == b"content-length":
                self._left, is_chunked = int(value), False
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or _NO_TEXT.search(head):
            raise RuntimeError("a header has a character that no header has")
        self._is_chunked = is_chunked
        if is_chunked:
            self._transport.write(head)
        else:
            self._head = head

    def _go_on(self, body: bytes, *, more: bool) -> None:
        if self._scope["method"] == "HEAD":
            piece, self._left = b"", 0
        elif self._is_chunked:
            piece = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        else:
            piece = body
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("the answer's length is not the one that was told")
        if self._head or piece:
            self._transport.write(self._head + piece)
            self._head = b""
        if not more:
            self.response_complete = True
            self._tell()
            if not self.keep_alive:
                self._transport.close()
            self._done()
