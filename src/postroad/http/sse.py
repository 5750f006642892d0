"""Server-sent events: framing, heartbeats, and an end after which clients reconnect."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from postroad.http.request import Request
from postroad.http.response import Response, WriteChunk

HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": beat\n\n"
RETRY = b"retry: 1000\n\n"
_HEADERS = [(b"cache-control", b"no-store, no-transform"), (b"x-accel-buffering", b"no")]


def frame(data: bytes, *, event: str | None = None, event_id: str | None = None) -> bytes:
    """Encode one event. `data` may have several lines."""
    fields = (f"event: {event}\n" if event else "") + (f"id: {event_id}\n" if event_id else "")
    return fields.encode() + b"".join([b"data: " + line + b"\n" for line in data.split(b"\n")]) + b"\n"


def id_frame(event_id: str) -> bytes:
    """An id without data: clients remember it, and no event is dispatched."""
    return f"id: {event_id}\n\n".encode()


def event_stream(
    request: Request,
    frames: AsyncIterator[bytes],
    *,
    ended: asyncio.Event | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
) -> Response:
    """A response that sends the frames, and heartbeats between them, until the process drains or `ended` is set."""
    ends = [request.draining] if ended is None else [request.draining, ended]
    return event_response(_until_ended(ends, frames, heartbeat_seconds))


def event_response(chunks: AsyncIterator[bytes], attach: Callable[[WriteChunk], None] | None = None) -> Response:
    """A response of chunks that include `RETRY` and heartbeats, and end when the process drains."""
    return Response(chunks, media=b"text/event-stream", headers=list(_HEADERS), attach=attach)


async def _until_ended(
    ends: Sequence[asyncio.Event], frames: AsyncIterator[bytes], heartbeat_seconds: float
) -> AsyncIterator[bytes]:
    stopping = [asyncio.ensure_future(end.wait()) for end in ends]
    pending: asyncio.Future[Any] | None = None
    try:
        yield RETRY
        while not any(end.is_set() for end in ends):
            pending = pending or asyncio.ensure_future(anext(frames))
            await asyncio.wait({pending, *stopping}, timeout=heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED)
            if pending.done():
                try:
                    yield pending.result()
                except StopAsyncIteration:
                    return
                pending = None
            elif not any(end.is_set() for end in ends):
                yield HEARTBEAT
    finally:
        for waiting in stopping:
            waiting.cancel()
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await pending
        close = getattr(frames, "aclose", None)
        if close is not None:
            await close()
