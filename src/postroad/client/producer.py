"""Idempotent producers: numbered appends, so that a repeated request is stored once."""

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

# After these errors the append is certainly not stored. Other errors may follow an attempt that was: a request that is
# unauthenticated or rate limited now may have been accepted before.
_NOT_STORED = (InvalidRequest, ConflictError, NotFound, ProducerFenced)


class Append(msgspec.Struct, frozen=True):
    content: Content | None
    closes: bool


class Numbering:
    """Assigns each append its number, and keeps the append until its outcome is known.

    A number must not be used for another append: the server would drop that as a repetition. So an append with an unknown outcome
    stays in doubt. Repeating it resolves the doubt; another append first repeats the one in doubt.
    """

    def __init__(self, path: str, producer_id: str, epoch: int, next_seq: int) -> None:
        if not producer_id or epoch < 0 or next_seq < 0:
            raise ValueError("a producer has an id, and its epoch and next_seq are 0 or more")
        self._path, self.producer_id, self.epoch, self.next_seq = path, producer_id, epoch, next_seq
        self.in_doubt: Append | None = None

    def append(self, append: Append) -> "CallSequence[Appended]":
        if self.in_doubt is not None and self.in_doubt != append:
            yield from self._send(self.in_doubt)
        return (yield from self._send(append))

    def _send(self, append: Append) -> "CallSequence[Appended]":
        self.in_doubt = append
        try:
            appended: Appended = yield self._call(append)
        except _NOT_STORED as problem:
            if not problem.retryable:
                self.in_doubt = None
            raise
        self.in_doubt = None
        self.next_seq += 1
        return appended

    def _call(self, append: Append) -> Call[Appended]:
        headers = {
            "Producer-Id": self.producer_id,
            "Producer-Epoch": str(self.epoch),
            "Producer-Seq": str(self.next_seq),
        }
        return append_call(self._path, append.content, headers, closes=append.closes, is_repeatable=True)


class _NumberedProducer:
    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering

    @property
    def epoch(self) -> int:
        return self._numbering.epoch

    @property
    def next_seq(self) -> int:
        """Number of the next append, or of the one in doubt."""
        return self._numbering.next_seq

    @property
    def is_in_doubt(self) -> bool:
        """True if it is unknown whether the last append was stored."""
        return self._numbering.in_doubt is not None


class Producer(_NumberedProducer):
    """Appends one after the other, each stored once. Threads may share it.

    A request without a response is repeated with the same number. If the deadline passes, the error is raised and the append is
    in doubt: call `append` again with the same data, and it is stored once. With other data, the append in doubt is repeated
    first. After a restart, a producer with the same id continues at `next_seq` with the same epoch, or starts at 0 with a
    higher epoch; then producers with a lower epoch get ProducerFenced (`.extra["epoch"]`).
    """

    def __init__(self, transport: "SyncTransport", numbering: Numbering) -> None:
        super().__init__(numbering)
        self._transport, self._lock = transport, threading.Lock()

    def append(self, data: Any, *, content_type: str | None = None) -> Appended:
        """Like `streams.append`. Raises ProducerFenced, ProducerGap, StreamClosed and the errors of `streams.append`."""
        return self._execute(Append(content_of(data, content_type), closes=False))

    def append_many(self, messages: Sequence[Any]) -> Appended:
        """Append several messages of a JSON stream under one number, all or none."""
        return self._execute(Append(content_of_messages(messages), closes=False))

    def close(self, data: Any = None, *, content_type: str | None = None) -> Appended:
        """Append the last data, if any, and close the stream, in one step."""
        return self._execute(Append(None if data is None else content_of(data, content_type), closes=True))

    def _execute(self, append: Append) -> Appended:
        with self._lock:
            return self._transport.run_sequence(self._numbering.append(append))


class AsyncProducer(_NumberedProducer):
    """Like `Producer`. Tasks may share it."""

    def __init__(self, transport: "AsyncTransport", numbering: Numbering) -> None:
        super().__init__(numbering)
        self._transport, self._lock = transport, asyncio.Lock()

    async def append(self, data: Any, *, content_type: str | None = None) -> Appended:
        """Like `streams.append`. Raises ProducerFenced, ProducerGap, StreamClosed and the errors of `streams.append`."""
        return await self._execute(Append(content_of(data, content_type), closes=False))

    async def append_many(self, messages: Sequence[Any]) -> Appended:
        """Append several messages of a JSON stream under one number, all or none."""
        return await self._execute(Append(content_of_messages(messages), closes=False))

    async def close(self, data: Any = None, *, content_type: str | None = None) -> Appended:
        """Append the last data, if any, and close the stream, in one step."""
        return await self._execute(Append(None if data is None else content_of(data, content_type), closes=True))

    async def _execute(self, append: Append) -> Appended:
        async with self._lock:
            return await self._transport.run_sequence(self._numbering.append(append))
