"""Server-sent events: framing, heartbeats, and an end that clients come back from."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from postroad.http.request import Request
from postroad.http.response import Response

HEARTBEAT_SECONDS = 15.0
_HEARTBEAT = b": beat\n\n"
_HEADERS = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


def frame(data: bytes, *, event: str | None = None, event_id: str | None = None) -> bytes:
    """One event. `data` may have several lines."""
    head = (f"event: {event}\n" if event else "") + (f"id: {event_id}\n" if event_id else "")
    return head.encode() + b"".join([b"data: " + line + b"\n" for line in data.split(b"\n")]) + b"\n"


def event_stream(request: Request, frames: AsyncIterator[bytes], *, heartbeat_seconds: float = HEARTBEAT_SECONDS) -> Response:
    """A reply that sends the frames, beats when there are none, and ends when the process is asked to stop."""
    return Response(
        _until_draining(request.draining, frames, heartbeat_seconds), media=b"text/event-stream", headers=list(_HEADERS)
    )


async def _until_draining(
    draining: asyncio.Event, frames: AsyncIterator[bytes], heartbeat_seconds: float
) -> AsyncIterator[bytes]:
    stopping: asyncio.Future[Any] = asyncio.ensure_future(draining.wait())
    coming: asyncio.Future[Any] | None = None
    try:
        yield b"retry: 1000\n\n"
        while not draining.is_set():
            coming = coming or asyncio.ensure_future(anext(frames))
            await asyncio.wait({coming, stopping}, timeout=heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                try:
                    yield coming.result()
                except StopAsyncIteration:
                    return
                coming = None
            elif not draining.is_set():
                yield _HEARTBEAT
    finally:
        stopping.cancel()
        if coming is not None:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await coming
        close = getattr(frames, "aclose", None)
        if close is not None:
            await close()
