"""Acknowledgements of the deliveries of a consumer, from any process: their subjects follow from the deliveries' numbers."""

import asyncio
from collections.abc import Sequence

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection, ConnectionLost
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

    def _ack_subject(self, ref: DeliveryRef) -> str:
        return f"{self._ack_prefix}{ref.attempt}.{ref.stream_sequence}.{ref.consumer_sequence}.{ref.stored_at_ns}.0"

    async def send_acknowledgements(self, acks: Sequence[Acknowledgement]) -> None:
        """Send acknowledgements at once, without confirmation. For leases: if one is lost, the message is redelivered too early.

        Raises EngineUnavailable if there is no connection.
        """
        commands = [b"PUB %b %d\r\n%b\r\n" % (self._ack_subject(ref).encode(), len(ack), ack) for ref, ack in acks]
        if commands:
            try:
                self._connection.send(b"".join(commands))
            except ConnectionLost as exc:
                raise EngineUnavailable("the engine's connection was lost", retry_after=1) from exc

    async def acknowledge(self, acks: Sequence[Acknowledgement], *, deadline_seconds: float = 10.0) -> None:
        """Send acknowledgements and return once all of them would survive a crash. Idempotent.

        Raises EngineUnavailable: then each may or may not be stored.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_seconds
        delays = _ACK_BACKOFF.delays()
        unconfirmed = list(acks)
        while unconfirmed:
            if self._closed_by is not None:
                raise self._closed_by
            try:
                async with asyncio.timeout_at(deadline):
                    await self._connection.wait_up()
                    unconfirmed = [ack for ack in await self._acknowledge_once(unconfirmed) if not await self._delete(ack)]
            except (ConnectionLost, TimeoutError):
                pass
            if unconfirmed:
                delay = next(delays)
                if loop.time() + delay > deadline:
                    raise EngineUnavailable("the engine did not confirm in time", retry_after=1)
                await asyncio.sleep(delay)
        if any(ack == ACK for _, ack in acks):  # the record of a removed message; a lost nak redelivers
            await self._connection.store_sync.wait(self._stream)

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

    async def _acknowledge_once(self, acks: list[Acknowledgement]) -> list[Acknowledgement]:
        """One attempt. Returns the acknowledgements that were not confirmed."""
        commands: list[bytes] = []
        reply_subjects: list[str] = []
        replies = []
        try:
            for ref, ack in acks:
                reply_subject, replied = self._connection.expect()
                reply_subjects.append(reply_subject)
                replies.append(replied)
                commands.append(
                    b"PUB %b %b %d\r\n%b\r\n" % (self._ack_subject(ref).encode(), reply_subject.encode(), len(ack), ack)
                )
            self._connection.send(b"".join(commands))
            done, _ = await asyncio.wait(replies, timeout=_CONFIRM_SECONDS)
        finally:
            for reply_subject in reply_subjects:
                self._connection.forget(reply_subject)
        confirmed = {replied for replied in done if replied.exception() is None and replied.result().status != "503"}
        return [ack for ack, replied in zip(acks, replies, strict=True) if replied not in confirmed]
