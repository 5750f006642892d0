"""Idempotent producers: appends that are numbered, so that none is stored twice, whatever gets lost on the way."""

import asyncio
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from postroad.api.streams import Appended, ProducerFenced
from postroad.client.calls import Call, Content
from postroad.client.stream_protocol import append_call, content_of, content_of_messages
from postroad.kernel.errors import ConflictError, InvalidRequest, NotFound

if TYPE_CHECKING:
    from postroad.client.transport import AsyncTransport, CallSequence, SyncTransport

# These say that the append was not made, and would not be. Others may come after a try that was: who is refused, or told to come
# later, may have been heard before.
_REFUSED = (InvalidRequest, ConflictError, NotFound, ProducerFenced)


class Entry(msgspec.Struct, frozen=True):
    content: Content | None
    closes: bool


class Numbering:
    """Gives each append its number, and keeps it until what became of it is known.

    A number must never be used for something else: the server would take that for a repetition, and drop it. So an append of
    which nothing certain was heard stays in doubt. Trying the same again settles it; before anything else it is settled first.
    """

    def __init__(self, path: str, producer_id: str, epoch: int, next_seq: int) -> None:
        if not producer_id or epoch < 0 or next_seq < 0:
            raise ValueError("a producer has an id, and its epoch and next_seq are 0 or more")
        self._path, self.producer_id, self.epoch, self.next_seq = path, producer_id, epoch, next_seq
        self.in_doubt: Entry | None = None

    def appending(self, entry: Entry) -> "CallSequence[Appended]":
        if self.in_doubt is not None and self.in_doubt != entry:
            yield from self._sending(self.in_doubt)
        return (yield from self._sending(entry))

    def _sending(self, entry: Entry) -> "CallSequence[Appended]":
        self.in_doubt = entry
        try:
            appended: Appended = yield self._call(entry)
        except _REFUSED as problem:
            if not problem.retryable:
                self.in_doubt = None
            raise
        self.in_doubt = None
        self.next_seq += 1
        return appended

    def _call(self, entry: Entry) -> Call[Appended]:
        headers = {
            "Producer-Id": self.producer_id,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": str(self.next_seq),
        }
        return append_call(self._path, entry.content, headers, closes=entry.closes, is_repeatable=True)


class _Numbered:
    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering

    @property
    def epoch(self) -> int:
        return self._numbering.epoch

    @property
    def next_seq(self) -> int:
        """The number of the next append, or of the one in doubt."""
        return self._numbering.next_seq

    @property
    def is_in_doubt(self) -> bool:
        """Whether it is not known if the last append was stored."""
        return self._numbering.in_doubt is not None


class Producer(_Numbered):
    """Appends one after the other, each once. Threads may share it.

    What is not answered is sent again, with the same number. If the deadline passes without an answer the error is raised, and
    the append is in doubt: call `append` again with the same data and it is stored once. With other data, what is in doubt is
    sent first. After a restart, a producer with the same id either goes on from `next_seq` with the same epoch, or begins
    anew at 0 with a higher one; from then on whoever still has the lower one gets ProducerFenced (`.extra["epoch"]`).
    """

    def __init__(self, transport: "SyncTransport", numbering: Numbering) -> None:
        super().__init__(numbering)
        self._transport, self._lock = transport, threading.Lock()

    def append(self, data: Any, *, content_type: str | None = None) -> Appended:
        """As `streams.append`. Raises ProducerFenced, ProducerGap, StreamClosed and what that raises."""
        return self._play(Entry(content_of(data, content_type), closes=False))

    def append_many(self, messages: Sequence[Any]) -> Appended:
        """All or none, under one number."""
        return self._play(Entry(content_of_messages(messages), closes=False))

    def close(self, data: Any = None, *, content_type: str | None = None) -> Appended:
        """Append the last data, if there are any, and close the stream; both or neither."""
        return self._play(Entry(None if data is None else content_of(data, content_type), closes=True))

    def _play(self, entry: Entry) -> Appended:
        with self._lock:
            return self._transport.run_sequence(self._numbering.appending(entry))


class AsyncProducer(_Numbered):
    """As `Producer`; tasks may share it."""

    def __init__(self, transport: "AsyncTransport", numbering: Numbering) -> None:
        super().__init__(numbering)
        self._transport, self._lock = transport, asyncio.Lock()

    async def append(self, data: Any, *, content_type: str | None = None) -> Appended:
        """As `streams.append`. Raises ProducerFenced, ProducerGap, StreamClosed and what that raises."""
        return await self._play(Entry(content_of(data, content_type), closes=False))

    async def append_many(self, messages: Sequence[Any]) -> Appended:
        """All or none, under one number."""
        return await self._play(Entry(content_of_messages(messages), closes=False))

    async def close(self, data: Any = None, *, content_type: str | None = None) -> Appended:
        """Append the last data, if there are any, and close the stream; both or neither."""
        return await self._play(Entry(None if data is None else content_of(data, content_type), closes=True))

    async def _play(self, entry: Entry) -> Appended:
        async with self._lock:
            return await self._transport.run_sequence(self._numbering.appending(entry))
