"""Live readers over server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from postroad.http import sse
from postroad.http.response import Response
from postroad.http.sse import HEARTBEAT, RETRY, event_response
from postroad.topics.live import LivePlan, LiveTopics
from postroad.topics.live_message import EventForm
from postroad.topics.live_reader import LiveReader, ReaderEnd

_FORM = EventForm()
_BUFFER_BYTES = 256 * 1024  # of frames that wait for the client


def live_events(live: LiveTopics, plan: LivePlan, ends: Sequence[asyncio.Event]) -> Response:
    """The events of a planned reader, until one of the `ends`."""
    return event_response(EventSink().chunks(lambda sink: live.start(plan, _FORM, sink), ends))


class EventSink:
    """The frames of one reader, as chunks of a response. Its reader is closed when the response ends.

    Frames that arrive together are one chunk. Unlike `http.sse.event_stream` it needs no task per chunk.
    """

    def __init__(self) -> None:
        self._frames: list[bytes] = [RETRY]
        self._size = 0
        self._is_ended = False
        self._waiting: asyncio.Future[None] | None = None
        self._sent_at = 0.0

    @property
    def is_paused(self) -> bool:
        return self._size >= _BUFFER_BYTES

    def send(self, frames: bytes) -> None:
        self._frames.append(frames)
        self._size += len(frames)
        self._wake()

    def end(self, reader: LiveReader, reason: ReaderEnd) -> None:
        self._stop()

    def _stop(self, *_ended: object) -> None:
        self._is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def chunks(self, start: Callable[["EventSink"], LiveReader], ends: Sequence[asyncio.Event]) -> AsyncIterator[bytes]:
        """The frames of the reader that is started when the response begins."""
        loop = asyncio.get_running_loop()
        stopping = [asyncio.ensure_future(one.wait()) for one in ends]
        for one in stopping:
            one.add_done_callback(self._stop)
        beating = asyncio.ensure_future(self._beat())
        reader = start(self)
        try:
            while not any(one.is_set() for one in ends):
                if self._frames:
                    chunk, self._frames, self._size = b"".join(self._frames), [], 0
                    self._sent_at = loop.time()
                    yield chunk
                    reader.writable()
                elif self._is_ended:
                    return
                else:
                    self._waiting = loop.create_future()
                    await self._waiting
        finally:
            reader.close()
            for waiting in (beating, *stopping):
                waiting.cancel()

    async def _beat(self) -> None:
        """Send a heartbeat when nothing else was sent for a while."""
        loop = asyncio.get_running_loop()
        while True:
            left = self._sent_at + sse.HEARTBEAT_SECONDS - loop.time()
            if self._sent_at and left <= 0:
                self.send(HEARTBEAT)
                left = sse.HEARTBEAT_SECONDS
            await asyncio.sleep(max(0.01, min(left, sse.HEARTBEAT_SECONDS)))
