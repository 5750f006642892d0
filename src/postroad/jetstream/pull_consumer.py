"""A work queue on a durable pull consumer: one pull loop per queue and process, leases as delayed naks.

A lease has no owner and no timer here: at delivery the server is asked not to deliver the message again before the lease ends
(`-NAK` with a delay), unless the consumer has the same lease of its own. An ack ends the lease, another delayed nak extends it,
and both may come from any process, since the subject to send them to follows from the delivery's numbers.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from postroad.jetstream.acknowledger import Acknowledger
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.deliveries import ACK_WAIT_MARGIN_MS, Delivery, DeliveryRef, nak, parse_ack_subject
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.jetstream.management import ensure_consumer
from postroad.jetstream.pull_caller import PullCaller
from postroad.kernel.errors import EngineNoResponders, EngineUnavailable, PostroadError
from postroad.kernel.futures import resolve
from postroad.kernel.ids import new_id

_PULL_MESSAGES_MAX = 1000
PULL_BYTES_MAX = 8 * 1024 * 1024
_FIRST_PULL_BYTES_MAX = 256 * 1024  # sufficient for most pulls; those that need more take turns
# Replies to other requests wait behind the messages that the server has sent before them on the same connection.
_SLICE_BYTES_MAX = 512 * 1024
_BYTES_EXCEEDED = "Message Size Exceeds MaxBytes"
_NO_MORE = "no more"  # the end of a request that could not be filled: 408, as for a waiting pull that expires
_REQUESTS_PENDING = "Requests Pending"  # 408 too: all messages that are ready belong to requests of other processes
_BATCH_COMPLETED = "Batch Completed"  # follows the last message of a request that has a limit in bytes
_WAITING_PULL_SECONDS = 5.0
_WAITING_PULL_SECONDS_MIN = 0.001
_WAITING_PULL_LOST_SECONDS = 1.0  # without an answer for this long after its end, its leader is gone
_WAITING_PULL_GRACE_SECONDS = 0.2
_IDLE_SECONDS = 5.0
_PULL_ANSWER_SECONDS = 5.0
_LIMITED_PULL_SECONDS = 0.02
_REPLICATED_PULL_ANSWER_SECONDS = 3.0  # another server may lead by then
_BARRIER_SECONDS = 1.0
_ACK_WAIT_MS = 10_000
_DOUBT_SECONDS = 30.0  # after a request without an answer: then nothing can arrive for it any more

OnPulled = Callable[[list[Delivery] | Exception], None]

_INVALID_PULL_REQUEST = b'{"batch": "none"}'  # not a number: every server version rejects it without delivering a message


async def ensure_work_consumer(
    connection: Connection, stream: str, name: str, *subjects: str, max_in_flight: int | None = None, lease_ms: int = 0
) -> None:
    """At most `max_in_flight` messages are delivered and not acknowledged at the same time, whatever process has them.

    `lease_ms`: the consumer's own lease, which a delivery has unless another is sent (`Delivery.is_leased`). It must never
    change: the server would change the leases that exist. Without it, `ack_wait` only redelivers the messages of a process that
    died between a delivery and its lease.
    """
    filters: dict[str, object] = {"filter_subject": subjects[0]} if len(subjects) == 1 else {"filter_subjects": list(subjects)}
    config = {
        **filters,
        "ack_wait": (lease_ms + ACK_WAIT_MARGIN_MS if lease_ms else _ACK_WAIT_MS) * 1_000_000,
        "max_deliver": -1,
        "max_ack_pending": max_in_flight or -1,
        "max_waiting": 10_000,
    }
    await ensure_consumer(connection, stream, name, config)


class PullConsumer(Acknowledger):
    """Delivers and acknowledges the messages of one consumer.

    The task `_run` serves all callers of `pull` in this process. It first asks the server for messages that are ready now
    (`no_wait`), and while there are none it keeps one waiting pull request open for the next message.
    """

    def __init__(self, connection: Connection, stream: str, consumer: str) -> None:
        super().__init__(connection, stream, consumer)
        self._pull_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._callers: deque[PullCaller] = deque()
        self._task: asyncio.Task[None] | None = None
        self._inbox: asyncio.Queue[IncomingMessage | None] = asyncio.Queue()  # None wakes the task
        self._inbox_subject = ""
        self.is_limited = False  # the consumer has a `max_in_flight`
        self._has_waiting_pull = False
        self._waiting_pull_ends_at = 0.0
        self._has_reconnected = False
        self._received_bytes = 0  # of the present fetch
        self._requested_at: float | None = None  # of the present fetch, if a message can belong to no earlier request
        self._doubtful_until = 0.0  # until then a message may belong to an earlier request

    @property
    def waiting(self) -> int:
        """Calls of `pull` that wait for a message."""
        return len(self._callers)

    # Pulling

    async def pull(self, count: int, wait_seconds: float) -> list[Delivery]:
        """Up to `count` messages: those that are ready now, or the first that become ready within `wait_seconds`.

        Their payloads have at most `PULL_BYTES_MAX` together, unless it is one message.
        The caller must lease or release them at once. Raises EngineUnavailable, Maintenance.
        """
        future: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        caller = self._start(count, wait_seconds, partial(resolve, future))
        try:
            return await future
        except asyncio.CancelledError:
            # Messages that this caller has received are released at once; those still in flight go to another caller.
            if caller in self._callers:
                self._callers.remove(caller)
                self._inbox.put_nowait(None)  # if it was the last one, the task must withdraw the waiting pull
            self._release_those_of(caller)
            raise

    def pull_callback(self, count: int, on_pulled: OnPulled) -> None:
        """Like `pull` of what is ready now: calls `on_pulled`, which must not raise, with the messages or the error.

        Raises Maintenance.
        """
        self._start(count, 0.0, on_pulled)

    def _start(self, count: int, wait_seconds: float, on_pulled: OnPulled) -> PullCaller:
        self._connection.writes.admit(self._stream)
        caller = PullCaller(count, asyncio.get_running_loop().time() + wait_seconds, partial(self._on_end, on_pulled))
        self._callers.append(caller)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        else:
            self._inbox.put_nowait(None)
        return caller

    def _on_end(self, on_pulled: OnPulled, caller: PullCaller, problem: Exception | None) -> None:
        """Pass on the messages that a caller has received, once they are durable."""
        if problem is None and caller.deliveries:
            last = max(one.ref.stream_sequence for one in caller.deliveries)
            self._connection.store_sync.request_entry(self._stream, last, partial(self._on_synced, on_pulled, caller))
        else:
            self._on_synced(on_pulled, caller, problem)

    def _on_synced(self, on_pulled: OnPulled, caller: PullCaller, problem: Exception | None) -> None:
        deliveries = caller.deliveries
        if isinstance(problem, EngineUnavailable):
            self._release_those_of(caller)
        on_pulled(deliveries if problem is None else problem)

    def _release_those_of(self, caller: PullCaller) -> None:
        deliveries, caller.deliveries = caller.deliveries, []  # at most once: another consumer may have them then
        self.release([delivery.ref for delivery in deliveries])

    async def _run(self) -> None:
        try:
            self._inbox_subject = f"_INBOX.{new_id()}"
            unsubscribe = self._connection.subscribe(self._inbox_subject, self._on_message, barrier=self._barrier)
            remove_callback = self._connection.on_reconnect(self._on_reconnect)
            try:
                while await self._wait_for_callers():
                    await self._fetch_ready()
                    self._resolve_callers()
                    if self._callers and all(caller.is_requested for caller in self._callers):
                        await self._wait_for_message()
            finally:
                remove_callback()
                await unsubscribe()
                while not self._inbox.empty():
                    self._dispatch(self._inbox.get_nowait())
        except Exception as exc:
            if isinstance(exc, PostroadError):
                self._fail_callers(exc)
            else:
                self._fail_callers(EngineUnavailable("pulling from the queue failed", retry_after=1))
                raise
        finally:
            self._has_waiting_pull = False
            self._task = asyncio.create_task(self._run()) if self._callers else None  # a caller arrived during the end

    async def _barrier(self) -> None:
        """Return when every message in flight to us has arrived.

        A consumer replies in order, so the error for a deliberately invalid pull arrives after every message already in flight.
        """
        with contextlib.suppress(ConnectionLost, TimeoutError):
            await self._connection.request(self._pull_subject, _INVALID_PULL_REQUEST, timeout=_BARRIER_SECONDS)

    def _on_message(self, message: IncomingMessage) -> None:
        self._inbox.put_nowait(message)

    def _on_reconnect(self) -> None:
        """Pull requests from before the connection was lost will not be answered."""
        self._has_waiting_pull = False
        self._has_reconnected = True
        self._doubt(asyncio.get_running_loop().time() + _DOUBT_SECONDS)
        for caller in self._callers:
            caller.is_requested = False
        self._inbox.put_nowait(None)

    async def _wait_for_callers(self) -> bool:
        """Wait a while for the next caller, to reuse the subscription. False if there is none.

        Do not wait if a waiting pull is open: its message would arrive without a caller, be released, and count as an attempt.
        Ending the subscription withdraws it.
        """
        if not self._callers and not self._has_waiting_pull:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    while not self._callers:
                        self._dispatch(await self._inbox.get())
        return bool(self._callers)

    async def _fetch_ready(self) -> None:
        """Ask for the messages that are ready now, for all callers, and dispatch them until the server reports the end."""
        demand = 0
        for caller in self._callers:
            caller.is_requested = True
            demand += caller.count - len(caller.deliveries)
        demand = min(demand, _PULL_MESSAGES_MAX)
        self._received_bytes = sum(len(one.payload) for caller in self._callers for one in caller.deliveries)
        received, is_cut = await self._fetch(demand, _FIRST_PULL_BYTES_MAX)
        if not is_cut:
            return
        async with self._connection.large_pulls:
            is_cut = await self._fetch_slices(demand, received)
        if is_cut:
            for caller in self._callers:
                if not caller.deliveries:  # there are more messages, which did not fit
                    caller.is_requested = False

    async def _fetch_slices(self, demand: int, received: int) -> bool:
        """Fetch the messages that are ready in slices, of which one is in flight at a time in the process. True if
        `PULL_BYTES_MAX` ended the last request."""
        slice_bytes = _SLICE_BYTES_MAX
        is_cut = True
        while is_cut and received < demand:
            # The waiting pull may deliver one more message.
            left = PULL_BYTES_MAX // (2 if self._has_waiting_pull else 1) - self._received_bytes
            if left <= 0:
                break
            async with self._connection.large_transfer:
                more, is_cut = await self._fetch(demand - received, min(slice_bytes, left))
            received += more
            if is_cut and not more:
                if slice_bytes >= left:
                    break
                slice_bytes = left  # the next message is larger than a slice
        if is_cut and not received:  # the next message alone is over the limit
            async with self._connection.large_transfer:
                await self._fetch(1, None)
        return is_cut

    async def _fetch(self, demand: int, bytes_max: int | None) -> tuple[int, bool]:
        """Dispatch up to `demand` messages that are ready now; their number, and whether `bytes_max` ended the request."""
        if self.is_limited and self._has_waiting_pull:
            return 0, False  # it delivers one when there is room; the answers of two requests could not be distinguished
        batch = demand - self._has_waiting_pull  # the waiting pull covers one: asking twice would deliver one too many
        request: dict[str, object] = {"batch": batch, "no_wait": True}
        if self.is_limited:  # at its limit a consumer answers only when the request expires
            request["expires"] = int(_LIMITED_PULL_SECONDS * 1e9)
        if bytes_max is not None and (batch > 1 or self._received_bytes):  # one message alone is delivered whatever its size
            request["max_bytes"] = bytes_max
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        if batch <= 0 or not await self._send_pull(request):
            return 0, False
        if self._has_waiting_pull:  # whose message will it be?
            self._doubt(self._waiting_pull_ends_at + _WAITING_PULL_LOST_SECONDS)
        self._requested_at = sent_at if sent_at > self._doubtful_until else None
        received, bytes_before, is_near_limit = 0, self._received_bytes, False
        try:
            async with asyncio.timeout(self._answer_seconds) as timeout:
                while received < demand:
                    status = self._dispatch(await self._inbox.get())
                    if status == "message":
                        received += 1
                        is_near_limit = bytes_max is not None and (self._received_bytes - bytes_before) * 2 > bytes_max
                        # The message of the waiting pull is delivered at once, or not at all. If a message fits exactly into the
                        # rest of the limit, the server ends the request without a status.
                        if received == batch or is_near_limit:
                            timeout.reschedule(loop.time() + _WAITING_PULL_GRACE_SECONDS)
                    elif status == _BYTES_EXCEEDED:
                        return received, True
                    elif (
                        (self.is_limited and status == "408")
                        or status in (_NO_MORE, "404", "409", "503")
                        or self._has_reconnected
                        or not self._connection.is_up
                    ):
                        if status == "503":
                            await self._handle_unavailable(EngineNoResponders)
                        break
        except TimeoutError:
            self._doubt(loop.time() + _DOUBT_SECONDS)
            if received < batch and not is_near_limit:
                self._connection.report_unanswered(self._stream)
                if not received:  # a waiting pull would be lost as well
                    await self._handle_unavailable()
            return received, is_near_limit
        finally:
            self._requested_at = None
        return received, False

    @property
    def _answer_seconds(self) -> float:
        return _REPLICATED_PULL_ANSWER_SECONDS if self._connection.settings.has_replicas else _PULL_ANSWER_SECONDS

    def _doubt(self, until: float) -> None:
        self._doubtful_until = max(self._doubtful_until, until)

    async def _handle_unavailable(self, kind: type[EngineUnavailable] = EngineUnavailable) -> None:
        """There is no connection or no leader at present: fail the callers whose time is up, and ask again for the others."""
        self._connection.report_unanswered(self._stream)
        now = asyncio.get_running_loop().time()
        error = kind("the queue's engine has no leader, or no connection", retry_after=1)
        for caller in [caller for caller in self._callers if caller.deadline <= now]:
            self._callers.remove(caller)
            caller.end(error)
        for caller in self._callers:
            caller.is_requested = False
        await asyncio.sleep(0.1)

    async def _wait_for_message(self) -> None:
        """No message is ready: keep a waiting pull open, which the server answers with the next message.

        It ends no later than the last caller's deadline, and that caller is answered when the server reports the end. So it needs
        to be withdrawn only if all callers are cancelled.
        """
        loop = asyncio.get_running_loop()
        if not self._has_waiting_pull:
            now = loop.time()
            self._waiting_pull_ends_at = min(max(caller.deadline for caller in self._callers), now + _WAITING_PULL_SECONDS)
            seconds = max(self._waiting_pull_ends_at - now, _WAITING_PULL_SECONDS_MIN)
            self._has_waiting_pull = await self._send_pull({"batch": 1, "expires": int(seconds * 1e9)})
            if not self._has_waiting_pull:
                return
        lost_at = self._waiting_pull_ends_at + _WAITING_PULL_LOST_SECONDS
        earlier = [caller.deadline for caller in self._callers if caller.deadline < self._waiting_pull_ends_at]
        try:
            async with asyncio.timeout_at(max(min([lost_at, *earlier]), loop.time() + 0.001)):
                while True:
                    status = self._dispatch(await self._inbox.get())
                    if not self._callers:
                        return
                    if status == "message":
                        for caller in self._callers:  # more messages may be ready
                            caller.is_requested = False
                        return
                    if not self._has_waiting_pull or not all(caller.is_requested for caller in self._callers):
                        break
        except TimeoutError:
            if loop.time() >= lost_at:
                self._has_waiting_pull = False
                self._doubt(loop.time() + _DOUBT_SECONDS)
        self._resolve_callers()

    async def _send_pull(self, body: dict[str, object]) -> bool:
        if not self._connection.is_up:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._connection.wait_up()
        if not self._connection.is_up:
            await self._handle_unavailable()
            return False
        self._has_reconnected = False  # if it has, this request is the first on the new connection, and will be answered
        try:
            self._connection.publish(self._pull_subject, msgspec.json.encode(body), self._inbox_subject)
        except ConnectionLost:
            await self._handle_unavailable()
            return False
        return True

    def _dispatch(self, message: IncomingMessage | None) -> str:
        """Add a message to the caller that waits longest. Returns "message", the status of a status reply, or ""."""
        if message is None:
            return ""
        if not message.reply:
            headers = message.headers
            description = headers.get("Description")
            if description == _BYTES_EXCEEDED:
                return _BYTES_EXCEEDED
            if description == _BATCH_COMPLETED:
                return ""
            if description == _REQUESTS_PENDING:  # only a request that does not wait gets it
                return _NO_MORE
            status = headers.get("Status", "")
            if status == "408" and headers.get("Nats-Pending-Bytes", "0") != "0":  # a waiting pull has no limit in bytes
                return _NO_MORE
            if status in ("408", "409", "503"):
                self._has_waiting_pull = False
            return status
        delivery = Delivery(parse_ack_subject(message.reply), message.data, self._requested_at)
        self._has_waiting_pull = False
        self._received_bytes += len(message.data)
        for caller in self._callers:
            if not caller.is_full:
                caller.deliveries.append(delivery)
                return "message"
        self.release([delivery.ref])
        return "message"

    def release(self, refs: Sequence[DeliveryRef]) -> None:
        """Return messages to the queue. If the connection is lost, the server does so itself after `ack_wait`."""
        with contextlib.suppress(EngineUnavailable):
            self.send_acknowledgements([(ref, nak(0)) for ref in refs])

    def _resolve_callers(self) -> None:
        """Return messages to the callers that have any, and nothing to those whose time is up."""
        now = asyncio.get_running_loop().time()
        remaining: deque[PullCaller] = deque()
        for caller in self._callers:
            if caller.deliveries or (caller.is_requested and caller.deadline <= now):
                caller.end()
            else:
                remaining.append(caller)
        self._callers = remaining

    def _fail_callers(self, error: Exception) -> None:
        while self._callers:
            self._callers.popleft().end(error)

    def end_waits(self) -> None:
        """Answer the calls of `pull` that wait, with what is ready now."""
        for caller in self._callers:
            caller.deadline, caller.is_requested = 0.0, False
        self._inbox.put_nowait(None)

    def close(self, error: PostroadError) -> None:
        """Fail all pulls and acknowledgements in progress with this error."""
        self._closed_by = error
        self._fail_callers(error)
        if self._task is not None:
            self._task.cancel()
