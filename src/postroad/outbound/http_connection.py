"""A client connection that speaks HTTP/1.1: one request at a time, a bounded response, kept alive if the server permits it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import httptools

from postroad.outbound.rules import OutboundFailed

BODY_BYTES_MAX = 64 * 1024
HEADER_BYTES_MAX = 32 * 1024
_BYTES_MAX = HEADER_BYTES_MAX + 8 * BODY_BYTES_MAX  # chunk framing included, which may be larger than the body


@dataclass(frozen=True, slots=True)
class HttpResult:
    """Status, headers with lower-case names, and body; `is_truncated` if the body was longer than `BODY_BYTES_MAX`."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_truncated: bool = False

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class HttpConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._result: asyncio.Future[HttpResult] | None = None
        self._can_be_kept = False
        self._reset()

    def _reset(self) -> None:
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._received_bytes = self._header_bytes = 0
        self._has_headers = self._has_length = False

    @property
    def is_idle(self) -> bool:
        """True if the next request can be sent on this connection."""
        return self._result is None and self._can_be_kept

    async def exchange(self, request: bytes, deadline: float) -> HttpResult:
        """Send a request and return its response. Raises OutboundFailed, at the latest at the deadline (loop time).

        A response over the limits ends the connection at once: nothing more is read from it.
        """
        loop = asyncio.get_running_loop()
        self._reset()
        result: asyncio.Future[HttpResult] = loop.create_future()
        self._result = result
        timer = loop.call_at(deadline, self._fail, "timeout")
        try:
            if self._transport is None or self._transport.is_closing():
                self._fail("broken")
            else:
                self._transport.write(request)
            return await result
        finally:
            timer.cancel()
            if not result.done() or result.cancelled():
                self.close()

    def close(self) -> None:
        """End the connection without waiting for unsent or unread bytes."""
        self._can_be_kept, self._result = False, None
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._result is None:  # nothing was requested
            self.close()
            return
        self._received_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("broken")
        if self._result is not None and self._received_bytes > (_BYTES_MAX if self._has_headers else HEADER_BYTES_MAX):
            self._fail("broken")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._can_be_kept = None, False
        if self._result is not None and exc is None and self._has_headers and not self._has_length:
            self._succeed()  # the end of the connection is the end of the body
        self._fail("broken")

    # httptools

    def on_message_begin(self) -> None:
        if self._result is None:  # a second response to one request
            self._can_be_kept = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_headers or self._result is None:  # trailers
            return
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES_MAX:
            self._fail("broken")

    def on_headers_complete(self) -> None:
        self._has_headers = self._parser.get_status_code() >= 200
        self._has_length = "content-length" in self._headers or "transfer-encoding" in self._headers

    def on_body(self, part: bytes) -> None:
        if self._result is None:
            return
        self._body += part
        if len(self._body) > BODY_BYTES_MAX:
            self._succeed(is_truncated=True)
            self.close()

    def on_message_complete(self) -> None:
        if not self._has_headers:  # an interim response, such as 103
            self._headers = {}
        elif self._result is not None:
            is_sent = self._transport is not None and not self._transport.get_write_buffer_size()
            self._can_be_kept = is_sent and self._parser.should_keep_alive()
            self._succeed()

    def _succeed(self, *, is_truncated: bool = False) -> None:
        result, self._result = self._result, None
        if result is not None and not result.done():
            body = bytes(self._body[:BODY_BYTES_MAX])
            result.set_result(HttpResult(self._parser.get_status_code(), self._headers, body, is_truncated))

    def _fail(self, reason: str) -> None:
        result, self._result = self._result, None
        if result is not None and not result.done():
            result.set_exception(OutboundFailed(reason))
        self.close()
