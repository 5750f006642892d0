"""Streamed responses: chunks that are sent as they come."""

import asyncio
from collections.abc import AsyncIterator

from postroad.http import metrics
from postroad.http.request import Receive, Request, Send
from postroad.http.response import Response
from postroad.kernel.usage_counters import TenantCounters


async def send_stream(
    response: Response,
    headers: list[tuple[bytes, bytes]],
    request: Request,
    counters: TenantCounters,
    receive: Receive,
    send: Send,
) -> None:
    """Send chunks until the source ends, the client disconnects, or the caller's credential is revoked."""
    chunks = response.body
    if not isinstance(chunks, AsyncIterator):
        raise TypeError("not a stream")
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    metrics.live_readers.inc()
    write = getattr(getattr(send, "__self__", None), "write_chunk", None)  # of a request cycle

    def write_counted(chunk: bytes) -> bool:
        if write is None or not write(chunk):
            return False
        counters.bytes_out += len(chunk)
        return True

    if response.attach is not None:
        response.attach(write_counted)

    async def send_chunks() -> None:
        if request.method != "HEAD":
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                counters.bytes_out += len(chunk)
        await send({"type": "http.response.body", "body": b""})

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    sending, disconnected = asyncio.ensure_future(send_chunks()), asyncio.ensure_future(wait_for_disconnect())
    try:
        with request.watch_revocation() as revoked:
            await asyncio.wait({sending, disconnected, revoked}, return_when=asyncio.FIRST_COMPLETED)
            is_revoked = revoked.done()
        if sending.done():
            sending.result()
        elif is_revoked:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await send({"type": "http.response.body", "body": b""})
    finally:
        metrics.live_readers.dec()
        disconnected.cancel()
        sending.cancel()
        await asyncio.gather(sending, disconnected, return_exceptions=True)
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
