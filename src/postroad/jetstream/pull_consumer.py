"""A work queue on a durable pull consumer: one pull loop per queue and process, leases as delayed naks, settling from anywhere.

A lease has no owner and no timer here: at delivery the engine is told not to deliver the message again before the lease ends
(`-NAK` with a delay). An ack ends it, another delayed nak extends it, and both may come from any process, since the subject to
send them to follows from the delivery's numbers.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from nats.aio.msg import Msg

from postroad.jetstream import stream_reader
from postroad.jetstream.api_errors import NO_SUCH_MESSAGE, ApiFailure
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.management import ensure_consumer
from postroad.kernel.errors import EngineUnavailable, PostroadError
from postroad.kernel.ids import new_id

_ASK_MAX = 1000
_WAKE_SECONDS = 5.0
_WAKE_SECONDS_MIN = 0.001
_WAKE_LOST_SECONDS = 1.0
_WAKE_GRACE_SECONDS = 0.2
_IDLE_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_CONFIRM_SECONDS = 2.0
_LAST_WORD_SECONDS = 1.0
_ACK_WAIT_SECONDS = 10

ACK = b"+ACK"
_INVALID_PULL_REQUEST = b'{"batch": "none"}'  # not a number: refused by every version, and sent nothing for


@dataclass(frozen=True, slots=True)
class DeliveryRef:
    """The numbers of one delivery of one message: all that is needed to settle it."""

    stream_sequence: int
    consumer_sequence: int
    attempt: int
    stored_at_ns: int


@dataclass(frozen=True, slots=True)
class Delivery:
    delivery: DeliveryRef
    payload: bytes


def _delivery_of(ack_subject: str) -> DeliveryRef:
    """`$JS.ACK.<stream>.<consumer>.<attempt>.<stream seq>.<consumer seq>.<time>.<pending>`; newer servers may put two words
    before the stream and one at the end."""
    words = ack_subject.split(".")
    first = 4 if len(words) == 9 else 6
    attempt, stream_sequence, consumer_sequence, stored_at = words[first : first + 4]
    return DeliveryRef(int(stream_sequence), int(consumer_sequence), int(attempt), int(stored_at))


def nak(delay_ms: int) -> bytes:
    """Not before `delay_ms` have passed: a lease, its extension, or a retry."""
    return b'-NAK {"delay": %d}' % (delay_ms * 1_000_000) if delay_ms > 0 else b"-NAK"


async def ensure_work_consumer(connection: Connection, stream: str, name: str, subject: str) -> None:
    """`ack_wait` only matters between a delivery and its lease: it brings back what a dying process had in hand."""
    config = {
        "filter_subject": subject,
        "ack_wait": _ACK_WAIT_SECONDS * 1_000_000_000,
        "max_deliver": -1,
        "max_ack_pending": -1,
        "max_waiting": 10_000,
    }
    await ensure_consumer(connection, stream, name, config)


class _Puller:
    __slots__ = ("future", "give_up_at", "got", "has_been_asked_for", "want")

    def __init__(self, want: int, give_up_at: float) -> None:
        self.want = want
        self.give_up_at = give_up_at
        self.got: list[Delivery] = []
        self.has_been_asked_for = False
        self.future: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()

    @property
    def is_served(self) -> bool:
        return len(self.got) >= self.want


class PullConsumer:
    """Leases and settles the messages of one consumer."""

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        self._connection = connection
        self._stream = stream
        self.consumer = consumer
        self._ended_by: PostroadError | None = None
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._acks = f"$JS.ACK.{stream}.{consumer}."
        self._pullers: deque[_Puller] = deque()
        self._loop: asyncio.Task[None] | None = None
        self._inbox: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._inbox_name = ""
        self._is_wake_open = False
        self._wake_ends_at = 0.0
        self._has_lost_touch = False

    # Pulling

    async def pull(self, want: int, wait_seconds: float) -> list[Delivery]:
        """Up to `want` messages: those that are ready now, or the first to become so within `wait_seconds`.

        They must be leased or released by the caller at once. Raises EngineUnavailable.
        """
        puller = _Puller(want, asyncio.get_running_loop().time() + wait_seconds)
        self._pullers.append(puller)
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())
        else:
            self._inbox.put_nowait(None)  # a newcomer: look around
        try:
            return await puller.future
        except asyncio.CancelledError:
            # The caller hung up. What it had in hand goes back at once; what is not there yet goes to somebody else.
            if puller in self._pullers:
                self._pullers.remove(puller)
                self._inbox.put_nowait(None)  # if it was the last one, what the engine was asked for is to be taken back
            await self._give_back([found.delivery for found in puller.got])
            raise

    async def _run(self) -> None:
        try:
            self._inbox_name = f"_INBOX.{new_id()}"
            stop = await self._connection.subscribe(self._inbox_name, self._heard, barrier=self._barrier)
            forget = self._connection.on_reconnect(self._start_over)
            try:
                while await self._somebody_waits():
                    await self._ask()
                    self._answer()
                    if self._pullers and all(puller.has_been_asked_for for puller in self._pullers):
                        await self._wait_for_one()
            finally:
                forget()
                await stop()
                while not self._inbox.empty():
                    await self._take_in(self._inbox.get_nowait())
        except Exception as exc:
            if isinstance(exc, PostroadError):
                self._fail_all(exc)
            else:
                self._fail_all(EngineUnavailable("the queue cannot be pulled from just now", retry_after=1))
                raise
        finally:
            self._is_wake_open = False
            self._loop = asyncio.create_task(self._run()) if self._pullers else None  # somebody came as this was ending

    async def _barrier(self) -> None:
        """Return when no message can come any more of those that the engine was asked for.

        Whatever a consumer sends goes through one line, and what it refuses is said there, too: the refusal of a request that
        means nothing comes behind the last message that it had chosen us for.
        """
        with contextlib.suppress(ConnectionLost, TimeoutError):
            await self._connection.request(self._next, _INVALID_PULL_REQUEST, timeout=_LAST_WORD_SECONDS)

    async def _heard(self, message: Msg) -> None:
        self._inbox.put_nowait(message)

    def _start_over(self) -> None:
        """The connection was lost and is back: nothing that was asked for will come."""
        self._is_wake_open = False
        self._has_lost_touch = True
        for puller in self._pullers:
            puller.has_been_asked_for = False
        self._inbox.put_nowait(None)

    async def _somebody_waits(self) -> bool:
        """Stay for a while when nobody does: the next one will come soon, and the subscription can be kept.

        But not when the engine was asked to send the next message here: it would come for nobody, be given back, and count as
        an attempt. To end the subscription is to take that back.
        """
        if not self._pullers and not self._is_wake_open:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    while not self._pullers:
                        await self._take_in(await self._inbox.get())
        return bool(self._pullers)

    async def _ask(self) -> None:
        """Ask for what is ready now, for everyone who waits, and hand it out until the engine says that this was all."""
        demand = 0
        for puller in self._pullers:
            puller.has_been_asked_for = True
            demand += puller.want - len(puller.got)
        demand = min(demand, _ASK_MAX)
        self._has_lost_touch = False
        more = demand - self._is_wake_open  # one has been asked for already; what is asked for twice would come for nobody
        if more == 0 or not await self._request({"batch": more, "no_wait": True}):
            return
        received = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS) as bound:
                while received < demand:
                    message = await self._inbox.get()
                    status = await self._take_in(message)
                    if status == "message":
                        received += 1
                        if received == more:  # the one asked for earlier is here at once, or will not be
                            bound.reschedule(asyncio.get_running_loop().time() + _WAKE_GRACE_SECONDS)
                    elif status in ("404", "409", "503") or self._has_lost_touch or not self._connection.is_up:
                        if status == "503":
                            await self._no_responders()
                        return

    async def _no_responders(self) -> None:
        """No leader just now. Those who may wait will be asked for again; the others are told."""
        now = asyncio.get_running_loop().time()
        problem = EngineUnavailable("the queue's engine has no leader", retry_after=1)
        for puller in [puller for puller in self._pullers if puller.give_up_at <= now]:
            self._pullers.remove(puller)
            if not puller.future.done():
                puller.future.set_exception(problem)
        for puller in self._pullers:
            puller.has_been_asked_for = False
        await asyncio.sleep(0.1)

    async def _wait_for_one(self) -> None:
        """Nothing is ready: have the engine send the next message as soon as there is one.

        It is asked for no longer than somebody waits, and whoever waits longest is answered when the engine says that the time is
        over: so nothing has to be taken back, unless they all hang up.
        """
        loop = asyncio.get_running_loop()
        if not self._is_wake_open:
            now = loop.time()
            self._wake_ends_at = min(max(puller.give_up_at for puller in self._pullers), now + _WAKE_SECONDS)
            seconds = max(self._wake_ends_at - now, _WAKE_SECONDS_MIN)
            self._is_wake_open = await self._request({"batch": 1, "expires": int(seconds * 1e9)})
            if not self._is_wake_open:
                return
        lost_at = self._wake_ends_at + _WAKE_LOST_SECONDS
        until = min([lost_at, *(puller.give_up_at for puller in self._pullers if puller.give_up_at < self._wake_ends_at)])
        try:
            async with asyncio.timeout_at(max(until, loop.time() + 0.001)):
                while True:
                    status = await self._take_in(await self._inbox.get())
                    if not self._pullers:
                        return
                    if status == "message":
                        for puller in self._pullers:  # where one is, there may be more
                            puller.has_been_asked_for = False
                        return
                    if not self._is_wake_open or not all(puller.has_been_asked_for for puller in self._pullers):
                        break
        except TimeoutError:
            if loop.time() >= lost_at:  # neither a message nor word that it expired: its leader is gone
                self._is_wake_open = False
        self._answer()

    async def _request(self, body: dict[str, object]) -> bool:
        if not self._connection.is_up:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._connection.wait_up()
        if not self._connection.is_up:
            await self._no_responders()
            return False
        try:
            await self._connection.publish(self._next, msgspec.json.encode(body), self._inbox_name)
        except ConnectionLost:
            await self._no_responders()
            return False
        return True

    async def _take_in(self, message: Msg | None) -> str:
        """Hand a message to whoever waits longest. Returns what it was: `message`, a status, or nothing."""
        if message is None:
            return ""
        if not message.reply:
            status = (message.headers or {}).get("Status", "")
            if status in ("408", "409", "503"):
                self._is_wake_open = False
            return status
        delivered = Delivery(_delivery_of(message.reply), message.data)
        self._is_wake_open = False
        for puller in self._pullers:
            if not puller.is_served:
                puller.got.append(delivered)
                return "message"
        await self._give_back([delivered.delivery])
        return "message"

    async def _give_back(self, deliveries: Sequence[DeliveryRef]) -> None:
        """At once; or, if the connection is lost, the engine does so by itself a little later."""
        with contextlib.suppress(EngineUnavailable):
            await self.settle_without_answer([(delivery, nak(0)) for delivery in deliveries])

    def _answer(self) -> None:
        """Answer those who have something, or whose time is up."""
        now = asyncio.get_running_loop().time()
        staying: deque[_Puller] = deque()
        for puller in self._pullers:
            if puller.got or (puller.has_been_asked_for and puller.give_up_at <= now):
                if not puller.future.done():
                    puller.future.set_result(puller.got)
            else:
                staying.append(puller)
        self._pullers = staying

    def _fail_all(self, problem: Exception) -> None:
        while self._pullers:
            puller = self._pullers.popleft()
            if not puller.future.done():
                puller.future.set_exception(problem)

    def close(self, problem: PostroadError) -> None:
        """Tell everyone who waits, for a message or for a settlement, that this is over."""
        self._ended_by = problem
        self._fail_all(problem)
        if self._loop is not None:
            self._loop.cancel()

    # Settling

    def _ack_subject(self, delivery: DeliveryRef) -> str:
        numbers = f"{delivery.attempt}.{delivery.stream_sequence}.{delivery.consumer_sequence}.{delivery.stored_at_ns}"
        return f"{self._acks}{numbers}.0"

    async def settle_without_answer(self, settled: Sequence[tuple[DeliveryRef, bytes]]) -> None:
        """Send the verdicts in one piece. For leases: if one is lost, the message comes back earlier than it should.

        Raises EngineUnavailable when there is nobody to send them to.
        """
        commands = [b"PUB %b %d\r\n%b\r\n" % (self._ack_subject(one).encode(), len(verdict), verdict) for one, verdict in settled]
        if commands:
            try:
                self._connection.send(b"".join(commands))
            except ConnectionLost as exc:
                raise EngineUnavailable("the engine's connection was lost", retry_after=1) from exc

    async def settle(self, settled: Sequence[tuple[DeliveryRef, bytes]], *, deadline_seconds: float = 10.0) -> None:
        """Send the verdicts and return once the engine has stored them all; saying a thing twice is harmless.

        Raises EngineUnavailable: then each may or may not be settled.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + deadline_seconds
        pause = 0.05
        left = list(settled)
        while left:
            if self._ended_by is not None:
                raise self._ended_by
            try:
                async with asyncio.timeout_at(give_up):
                    await self._connection.wait_up()
                    left = [one for one in await self._settle_once(left) if not await self._is_removed(one)]
            except (ConnectionLost, TimeoutError):
                pass
            if left:
                if loop.time() + pause > give_up:
                    raise EngineUnavailable("the engine did not confirm in time", retry_after=1)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)

    async def _is_removed(self, settled: tuple[DeliveryRef, bytes]) -> bool:
        """An ack that is not confirmed is of a delivery that the engine forgot in a crash: the message would be delivered again,
        although its consumer is done with it. So it is taken out of the stream itself; nothing to find there is as good."""
        delivery, verdict = settled
        if verdict != ACK:
            return False
        try:
            entry = await stream_reader.at(self._connection, self._stream, delivery.stream_sequence)
            if entry is None or entry.at_ms != delivery.stored_at_ns // 1_000_000:  # gone, or of a stream made anew
                return True
            await self._connection.api(
                f"STREAM.MSG.DELETE.{self._stream}", {"seq": delivery.stream_sequence, "no_erase": True}, timeout=2
            )
        except ApiFailure as failure:
            return failure.error.err_code in NO_SUCH_MESSAGE
        except EngineUnavailable:
            return False
        return True

    async def _settle_once(self, settled: list[tuple[DeliveryRef, bytes]]) -> list[tuple[DeliveryRef, bytes]]:
        """One try. Returns those that were not confirmed."""
        commands: list[bytes] = []
        replies: list[str] = []
        answers = []
        try:
            for one, verdict in settled:
                reply, future = self._connection.expect()
                replies.append(reply)
                answers.append(future)
                commands.append(
                    b"PUB %b %b %d\r\n%b\r\n" % (self._ack_subject(one).encode(), reply.encode(), len(verdict), verdict)
                )
            self._connection.send(b"".join(commands))
            done, _ = await asyncio.wait(answers, timeout=_CONFIRM_SECONDS)
        finally:
            for reply in replies:
                self._connection.forget(reply)
        confirmed = {future for future in done if future.exception() is None and future.result().status != "503"}
        return [one for one, future in zip(settled, answers, strict=True) if future not in confirmed]
