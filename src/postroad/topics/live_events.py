"""Live readers over server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from postroad.http import sse
from postroad.http.response import Response, WriteChunk
from postroad.http.sse import HEARTBEAT, RETRY, event_response
from postroad.topics.live import LivePlan, LiveTopics
from postroad.topics.live_message import EventForm
from postroad.topics.live_reader import LiveReader, ReaderEnd

_FORM = EventForm()
_BUFFER_BYTES = 256 * 1024  # of frames that wait for the client


def live_events(live: LiveTopics, plan: LivePlan, ends: Sequence[asyncio.Event]) -> Response:
    """The events of a planned reader, until one of the `ends`."""
    sink = EventSink()
    return event_response(sink.chunks(lambda sink: live.start(plan, _FORM, sink), ends), sink.attach)


class EventSink:
    """The frames of one reader, as chunks of a response. Its reader is closed when the response ends.

    While nothing waits to be sent, frames are written to the connection at once: to wake the task of the response for them costs
    as much as everything else. Frames that arrive while the client does not read are one chunk.
    """

    def __init__(self) -> None:
        self._frames: list[bytes] = [RETRY]
        self._size = 0
        self._is_ended = False
        self._waiting: asyncio.Future[None] | None = None
        self._sent_at = 0.0
        self._write: WriteChunk | None = None
        self._time = asyncio.get_running_loop().time

    def attach(self, write: WriteChunk) -> None:
        self._write = write

    @property
    def is_paused(self) -> bool:
        return self._size >= _BUFFER_BYTES

    def send(self, frames: bytes) -> None:
        if self._is_idle and self._write is not None and self._write(frames):
            self._sent_at = self._time()
            return
        self._frames.append(frames)
        self._size += len(frames)
        self._wake()

    @property
    def _is_idle(self) -> bool:
        """True while the response waits for the next frames."""
        return not self._frames and self._waiting is not None and not self._waiting.done()

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
        stopping = [asyncio.ensure_future(one.wait()) for one in ends]
        for one in stopping:
            one.add_done_callback(self._stop)
        beating = asyncio.ensure_future(self._beat())
        reader = start(self)
        try:
            while not any(one.is_set() for one in ends):
                if self._frames:
                    chunk, self._frames, self._size = b"".join(self._frames), [], 0
                    self._sent_at = self._time()
                    yield chunk
                    reader.writable()
                elif self._is_ended:
                    return
                else:
                    self._waiting = asyncio.get_running_loop().create_future()
                    await self._waiting
        finally:
            self._write = None
            reader.close()
            for waiting in (beating, *stopping):
                waiting.cancel()

    async def _beat(self) -> None:
        """Send a heartbeat when nothing else was sent for a while."""
        while True:
            left = self._sent_at + sse.HEARTBEAT_SECONDS - self._time()
            if self._sent_at and left <= 0:
                self.send(HEARTBEAT)
                left = sse.HEARTBEAT_SECONDS
            await asyncio.sleep(max(0.01, min(left, sse.HEARTBEAT_SECONDS)))
