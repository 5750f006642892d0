"""Acknowledgements of the deliveries of a consumer, from any process: their subjects follow from the deliveries' numbers."""

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.jetstream.deliveries import ACK, Acknowledgement, DeliveryRef
from postroad.jetstream.management import delete_message
from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import EngineUnavailable, PostroadError

_CONFIRM_SECONDS = 2.0
_ACK_BACKOFF = Backoff(first_seconds=0.05, max_seconds=1.0)


class Acknowledger:
    """Acknowledges deliveries of one consumer."""

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self._connection, self._stream, self.consumer = connection, stream, consumer
        self._closed_by: PostroadError | None = None
        self._ack_prefix = f"$JS.ACK.{stream}.{consumer}."
        self._unsent: list[_Attempt] = []

    def _ack_subject(self, ref: DeliveryRef) -> str:
        return f"{self._ack_prefix}{ref.attempt}.{ref.stream_sequence}.{ref.consumer_sequence}.{ref.stored_at_ns}.0"

    async def send_acknowledgements(self, acks: Sequence[Acknowledgement]) -> None:
        """Send acknowledgements at once, without confirmation. For leases: if one is lost, the message is redelivered too early.

        Raises EngineUnavailable if there is no connection, and Maintenance.
        """
        self._connection.writes.admit(self._stream)
        commands = [b"PUB %b %d\r\n%b\r\n" % (self._ack_subject(ref).encode(), len(ack), ack) for ref, ack in acks]
        if commands:
            try:
                self._connection.send(b"".join(commands))
            except ConnectionLost as exc:
                raise EngineUnavailable("the engine's connection was lost", retry_after=1) from exc

    async def acknowledge(
        self, acks: Sequence[Acknowledgement], *, deadline_seconds: float = 10.0, is_synced: bool = True
    ) -> None:
        """Send acknowledgements and return once all of them would survive a crash. Idempotent.

        Those of concurrent callers are sent together. With `is_synced` false the caller syncs the stream. Raises Maintenance, and
        EngineUnavailable: then each may or may not be stored.
        """
        with self._connection.writes.writing(self._stream):
            await self._acknowledge(acks, deadline_seconds)
        if is_synced and any(ack == ACK for _, ack in acks):  # the record of a removed message; a lost nak redelivers
            await self._connection.store_sync.wait(self._stream)

    async def _acknowledge(self, acks: Sequence[Acknowledgement], deadline_seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_seconds
        delays = _ACK_BACKOFF.delays()
        unconfirmed = list(acks)
        while unconfirmed:
            if self._closed_by is not None:
                raise self._closed_by
            with contextlib.suppress(ConnectionLost, TimeoutError):
                unconfirmed = await self._acknowledge_once(unconfirmed, deadline)
            if unconfirmed:
                delay = next(delays)
                if loop.time() + delay > deadline:
                    raise EngineUnavailable("the engine did not confirm in time", retry_after=1)
                await asyncio.sleep(delay)

    async def _acknowledge_once(self, acks: Sequence[Acknowledgement], deadline: float) -> list[Acknowledgement]:
        """Returns the acknowledgements that were not confirmed, and whose message is still there. Raises ConnectionLost."""
        if not self._connection.is_up:
            async with asyncio.timeout_at(deadline):
                await self._connection.wait_up()
        unconfirmed = await self._send(acks)
        if unconfirmed:
            async with asyncio.timeout_at(deadline):
                return [ack for ack in unconfirmed if not await self._delete(ack)]
        return unconfirmed

    async def _delete(self, unconfirmed: Acknowledgement) -> bool:
        """Delete the message of an unconfirmed ack from the stream; True if it is gone.

        Such an ack belongs to a delivery that the server forgot in a crash. It would deliver the message again although its
        consumer has finished with it.
        """
        ref, ack = unconfirmed
        if ack != ACK:
            return False
        try:
            entry = await stream_reader.at(self._connection, self._stream, ref.stream_sequence)
            if entry is None or entry.at_ms != ref.stored_at_ns // 1_000_000:  # deleted, or of a recreated stream
                return True
            await delete_message(self._connection, self._stream, ref.stream_sequence, timeout=2)
        except PostroadError:
            return False
        return True

    # Sending: one write and one timer for all callers that are there now

    def _send(self, acks: Sequence[Acknowledgement]) -> "asyncio.Future[list[Acknowledgement]]":
        """Send acknowledgements. The future has those that are not confirmed in time, or ConnectionLost if none was sent."""
        attempt = _Attempt(acks)
        self._unsent.append(attempt)
        if len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._send_all)
        return attempt.future

    def _send_all(self) -> None:
        attempts, self._unsent = self._unsent, []
        commands: list[bytes] = []
        try:
            for attempt in attempts:
                for index, (ref, ack) in enumerate(attempt.acks):
                    reply_subject, replied = self._connection.expect()
                    attempt.expect(index, reply_subject, replied)
                    subject = self._ack_subject(ref)
                    commands.append(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply_subject.encode(), len(ack), ack))
            self._connection.send(b"".join(commands))
        except ConnectionLost as error:
            for attempt in attempts:
                attempt.end(self._connection, error)
        else:
            asyncio.get_running_loop().call_later(_CONFIRM_SECONDS, self._end_all, attempts)

    def _end_all(self, attempts: "Sequence[_Attempt]") -> None:
        for attempt in attempts:
            attempt.end(self._connection)


class _Attempt:
    """Acknowledgements of one caller that are sent once."""

    __slots__ = ("_unanswered", "_unconfirmed", "acks", "future")

    def __init__(self, acks: Sequence[Acknowledgement]) -> None:
        self.acks = acks
        self._unconfirmed = dict(enumerate(acks))
        self._unanswered: dict[int, str] = {}  # reply subjects
        self.future: asyncio.Future[list[Acknowledgement]] = asyncio.get_running_loop().create_future()

    def expect(self, index: int, reply_subject: str, replied: "asyncio.Future[Reply]") -> None:
        self._unanswered[index] = reply_subject
        replied.add_done_callback(partial(self._on_reply, index))

    def _on_reply(self, index: int, replied: "asyncio.Future[Reply]") -> None:
        if replied.exception() is None and replied.result().status != "503":
            del self._unconfirmed[index]
        del self._unanswered[index]
        if not self._unanswered and not self.future.done():
            self.future.set_result(list(self._unconfirmed.values()))

    def end(self, connection: Connection, error: Exception | None = None) -> None:
        """Wait no longer for replies."""
        for reply_subject in self._unanswered.values():
            connection.forget(reply_subject)
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(list(self._unconfirmed.values()))
