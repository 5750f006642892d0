"""Writes of one iteration of the event loop, sent together."""

import asyncio
from typing import Any


class CoalescingTransport:
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

    def write_now(self, data: bytes) -> None:
        """Send at once: for data that was already put together for many connections."""
        if self._buffer:
            self._flush()
        self._transport.write(data)

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
