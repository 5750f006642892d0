"""Live readers over server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Callable

from postroad.topics.live import LivePlan, LiveTopics
from postroad.topics.live_message import EventForm
from postroad.topics.live_reader import LiveReader, ReaderEnd

_FORM = EventForm()
_BUFFER_BYTES = 256 * 1024  # of frames that wait for the client


def live_events(live: LiveTopics, plan: LivePlan) -> AsyncIterator[bytes]:
    """The events of a planned reader."""
    return EventSink().chunks(lambda sink: live.start(plan, _FORM, sink))


class EventSink:
    """The frames of one reader, as chunks of a response. Its readers are closed when the response ends."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._size = 0
        self._is_ended = False
        self._waiting: asyncio.Future[None] | None = None

    @property
    def is_paused(self) -> bool:
        return self._size >= _BUFFER_BYTES

    def send(self, frames: bytes) -> None:
        self._frames.append(frames)
        self._size += len(frames)
        self._wake()

    def end(self, reader: LiveReader, reason: ReaderEnd) -> None:
        self._is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def chunks(self, start: Callable[["EventSink"], LiveReader]) -> AsyncIterator[bytes]:
        """The frames of the reader that is started when the response begins."""
        reader = start(self)
        try:
            while True:
                if self._frames:
                    chunk, self._frames, self._size = b"".join(self._frames), [], 0
                    yield chunk
                    reader.writable()
                elif self._is_ended:
                    return
                else:
                    self._waiting = asyncio.get_running_loop().create_future()
                    await self._waiting
        finally:
            reader.close()
