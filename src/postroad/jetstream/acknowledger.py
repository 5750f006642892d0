"""Acknowledgements of the deliveries of a consumer, from any process: their subjects follow from the deliveries' numbers."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.jetstream.deliveries import ACK, Acknowledgement, DeliveryRef
from postroad.jetstream.management import delete_message
from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import EngineUnavailable, PostroadError
from postroad.kernel.futures import resolve

_CONFIRM_SECONDS = 2.0
_DEADLINE_SECONDS = 10.0
_ACK_BACKOFF = Backoff(first_seconds=0.05, max_seconds=1.0)

OnAcknowledged = Callable[[Exception | None], None]
_Outcome = list[Acknowledgement] | ConnectionLost  # what is not confirmed; or nothing was sent


class Acknowledger:
    """Acknowledges deliveries of one consumer."""

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self._connection, self._stream, self.consumer = connection, stream, consumer
        self._closed_by: PostroadError | None = None
        self._ack_prefix = f"$JS.ACK.{stream}.{consumer}."
        self._unsent: list[_Attempt] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def _ack_subject(self, ref: DeliveryRef) -> str:
        return f"{self._ack_prefix}{ref.attempt}.{ref.stream_sequence}.{ref.consumer_sequence}.{ref.stored_at_ns}.0"

    def send_acknowledgements(self, acks: Sequence[Acknowledgement]) -> None:
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
        self, acks: Sequence[Acknowledgement], *, deadline_seconds: float = _DEADLINE_SECONDS, is_synced: bool = True
    ) -> None:
        """Send acknowledgements and return once all of them would survive a crash. Idempotent.

        Those of concurrent callers are sent together. With `is_synced` false the caller syncs the stream. Raises Maintenance, and
        EngineUnavailable: then each may or may not be stored.
        """
        with self._connection.writes.writing(self._stream):
            await self._acknowledge(acks, asyncio.get_running_loop().time() + deadline_seconds)
        if is_synced and any(ack == ACK for _, ack in acks):  # the record of a removed message; a lost nak redelivers
            await self._connection.store_sync.wait(self._stream)

    def acknowledge_callback(self, acks: Sequence[Acknowledgement], on_acknowledged: OnAcknowledged) -> None:
        """Like `acknowledge` without its sync: calls `on_acknowledged`, which must not raise, with the error or None.

        Raises Maintenance: then nothing is sent.
        """
        self._connection.writes.begin(self._stream)
        deadline = asyncio.get_running_loop().time() + _DEADLINE_SECONDS
        self._send(acks, partial(self._on_sent, acks, deadline, on_acknowledged))

    def _on_sent(
        self, acks: Sequence[Acknowledgement], deadline: float, on_acknowledged: OnAcknowledged, outcome: _Outcome
    ) -> None:
        if outcome:  # a task repeats what is not confirmed
            task = asyncio.get_running_loop().create_task(self._finish(acks, deadline, on_acknowledged, outcome))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._connection.writes.end()
        on_acknowledged(None)

    async def _finish(
        self, acks: Sequence[Acknowledgement], deadline: float, on_acknowledged: OnAcknowledged, outcome: _Outcome
    ) -> None:
        problem: Exception | None = None
        try:
            await self._acknowledge(acks, deadline, outcome)
        except Exception as error:  # bugs, too: the caller must not wait for ever
            problem = error
        finally:
            self._connection.writes.end()
        on_acknowledged(problem)

    async def _acknowledge(self, acks: Sequence[Acknowledgement], deadline: float, outcome: _Outcome | None = None) -> None:
        """`outcome`: of a first attempt, if there was one."""
        loop = asyncio.get_running_loop()
        delays = _ACK_BACKOFF.delays()
        unconfirmed = list(acks)
        while unconfirmed:
            if self._closed_by is not None:
                raise self._closed_by
            with contextlib.suppress(ConnectionLost, TimeoutError):
                unconfirmed = await self._acknowledge_once(unconfirmed, deadline, outcome)
            outcome = None
            if unconfirmed:
                delay = next(delays)
                if loop.time() + delay > deadline:
                    raise EngineUnavailable("the engine did not confirm in time", retry_after=1)
                await asyncio.sleep(delay)

    async def _acknowledge_once(
        self, acks: Sequence[Acknowledgement], deadline: float, outcome: _Outcome | None
    ) -> list[Acknowledgement]:
        """Returns the acknowledgements that were not confirmed, and whose message is still there. Raises ConnectionLost."""
        if outcome is None:
            if not self._connection.is_up:
                async with asyncio.timeout_at(deadline):
                    await self._connection.wait_up()
            future: asyncio.Future[list[Acknowledgement]] = asyncio.get_running_loop().create_future()
            self._send(acks, partial(resolve, future))
            outcome = await future
        if isinstance(outcome, ConnectionLost):
            raise outcome
        if outcome:
            async with asyncio.timeout_at(deadline):
                return [ack for ack in outcome if not await self._delete(ack)]
        return outcome

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

    def _send(self, acks: Sequence[Acknowledgement], on_outcome: Callable[[_Outcome], None]) -> None:
        """Send acknowledgements. `on_outcome` is called later, with those that are not confirmed in time."""
        self._unsent.append(_Attempt(self._connection, acks, on_outcome))
        if len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        attempts, self._unsent = self._unsent, []
        commands: list[bytes] = []
        try:
            for attempt in attempts:
                for index, (ref, ack) in enumerate(attempt.acks):
                    subject, reply_subject = self._ack_subject(ref), attempt.expect(index)
                    commands.append(f"PUB {subject} {reply_subject} {len(ack)}\r\n{ack.decode()}\r\n".encode())
            self._connection.send(b"".join(commands))
        except ConnectionLost as error:
            for attempt in attempts:
                attempt.end(error)
        else:
            asyncio.get_running_loop().call_later(_CONFIRM_SECONDS, self._end_all, attempts)

    def _end_all(self, attempts: "Sequence[_Attempt]") -> None:
        for attempt in attempts:
            attempt.end()


class _Attempt:
    """Acknowledgements of one caller that are sent once."""

    __slots__ = ("_connection", "_has_ended", "_on_outcome", "_unanswered", "_unconfirmed", "acks")

    def __init__(self, connection: Connection, acks: Sequence[Acknowledgement], on_outcome: Callable[[_Outcome], None]) -> None:
        self.acks, self._connection, self._on_outcome = acks, connection, on_outcome
        self._unconfirmed = dict(enumerate(acks))
        self._unanswered: dict[int, str] = {}  # reply subjects
        self._has_ended = False

    def expect(self, index: int) -> str:
        """The reply subject of an acknowledgement. Raises ConnectionLost."""
        subject = self._unanswered[index] = self._connection.expect_callback(partial(self._on_reply, index))
        return subject

    def _on_reply(self, index: int, reply: Reply | ConnectionLost) -> None:
        if isinstance(reply, Reply) and reply.status != "503":
            del self._unconfirmed[index]
        del self._unanswered[index]
        if not self._unanswered:
            self.end()

    def end(self, error: ConnectionLost | None = None) -> None:
        """Wait no longer for replies."""
        if self._has_ended:
            return
        self._has_ended = True
        for reply_subject in self._unanswered.values():
            self._connection.forget(reply_subject)
        self._on_outcome(error or list(self._unconfirmed.values()))
