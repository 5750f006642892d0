"""Group commit, part 2: send writes to a stream until the server acknowledges them; concurrent writes share one fsync.

Every message carries its id as `Nats-Msg-Id`, so sending it again after a lost acknowledgement cannot store it twice.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial

import structlog

from postroad.jetstream import metrics
from postroad.jetstream.batching import (
    CommitPolicy,
    PendingMessage,
    PublishAck,
    SinglesInFlight,
    WriteQueue,
    assign_sequences,
    split_conditional,
)
from postroad.jetstream.conflict_resolution import read_resolution
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.jetstream.protocol import encode_batch, encode_publish
from postroad.jetstream.storage_budget import Budget, StorageBudgets, StoreBudget
from postroad.jetstream.store_sync import Callback
from postroad.jetstream.submitted_write import (
    OnOutcome,
    Outcome,
    SubmittedWrite,
    deadline_error,
    decode_reply,
    ignore_outcome,
    single_ack,
)
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import Conflict, EngineNoResponders, EngineRefused, EngineUnavailable, PostroadError, TooLarge
from postroad.kernel.futures import resolve
from postroad.kernel.ids import ShortIds

__all__ = ["CommitPolicy", "Committer", "Committers", "PendingMessage", "PublishAck"]

# A header that every stream rejects, used to ask whether an id is stored. The choice matters: ids must be checked before it, on a
# single server as on a cluster, and a cluster's leader must reject it before it replicates the message. A precondition on the
# last id does not qualify: each replica checks it as it writes, and nats-server 2.15 then marks the stream as broken for good.
_ALWAYS_REJECTED = "Nats-Rollup: never\r\n"
_COALESCE_FROM = 16  # single messages in flight, from which on they are written to the socket once a millisecond
_RESOLUTIONS_MAX = 5  # of one rejected batch, before its writes are sent one by one
_READS_FIRST = 8  # batches after a conflict
_LAG_SECONDS = 0.005  # a healthy replica lags less
_BACKOFF = Backoff(first_seconds=0.02, max_seconds=1.0)
log = structlog.get_logger("postroad.jetstream")

_UNANSWERED = (ConnectionLost, TimeoutError, EngineUnavailable)


class Committer:
    """Appends to one stream; concurrent callers share a batch and its fsync."""

    def __init__(
        self,
        connection: Connection,
        stream: str,
        policy: CommitPolicy,
        buffer_limit: WriteBufferLimit,
        budget: Budget | None = None,
    ) -> None:
        self.stream = stream
        self._budget = budget or StoreBudget()
        self._connection = connection
        self._policy = policy
        self._buffer_limit = buffer_limit
        self._batch_ids = ShortIds()
        self._queue: WriteQueue[SubmittedWrite] = WriteQueue(policy)
        self._singles: dict[SubmittedWrite, tuple[str, float]] = {}  # reply subject, and the end of the attempt
        self._in_flight = SinglesInFlight(policy)  # those in `_singles`, and those that a task retries
        self._has_timer = False
        self._is_batch_in_flight = False
        self._is_send_scheduled = False
        self._reads_first = 0  # batches that are to begin with a read of their preconditions
        self._closed_by: PostroadError | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, message: PendingMessage, *, uses_reserve: bool = False) -> PublishAck:
        """Return once the message would survive a crash. `uses_reserve`: not refused for want of storage (`storage_budget.py`).

        Raises Conflict if a precondition in the headers does not hold, EngineFull when the stream is at its limit or the store is
        full, StorageQuotaExceeded, TooLarge, Overloaded when too many bytes are pending, Maintenance while writes are held, and
        EngineUnavailable when no leader answered before the deadline: then the message may or may not be stored, and the same
        `message.id` can be sent again.
        """
        return (await self.submit((message,), uses_reserve=uses_reserve))[0]

    async def append_together(self, messages: Sequence[PendingMessage], *, uses_reserve: bool = False) -> Sequence[PublishAck]:
        """Like `append`, for messages of which either all are stored or none."""
        return await self.submit(messages, uses_reserve=uses_reserve)

    async def append_each(self, writes: Sequence[Sequence[PendingMessage]]) -> list[Sequence[PublishAck] | PostroadError]:
        """Like `append_together` for each of many writes, which share batches. Return the outcomes in order."""
        submitted: list[asyncio.Future[Sequence[PublishAck]] | PostroadError] = []
        for messages in writes:
            try:
                submitted.append(self.submit(messages))
            except PostroadError as error:
                submitted.append(error)
        outcomes: list[Sequence[PublishAck] | PostroadError] = []
        for one in submitted:
            try:
                outcomes.append(one if isinstance(one, PostroadError) else await one)
            except PostroadError as error:
                outcomes.append(error)
        return outcomes

    def submit(self, messages: Sequence[PendingMessage], *, uses_reserve: bool = False) -> "asyncio.Future[Sequence[PublishAck]]":
        """Like `append_together`, but returns a future."""
        future: asyncio.Future[Sequence[PublishAck]] = asyncio.get_running_loop().create_future()
        self._submit(messages, partial(resolve, future), future, uses_reserve=uses_reserve)
        return future

    def submit_callback(self, messages: Sequence[PendingMessage], on_outcome: OnOutcome, *, is_synced: bool = True) -> None:
        """Like `append_together`, but calls `on_outcome`, which must not raise, later with the acknowledgements or the error.

        With `is_synced` false it is called once the server has the messages, and they are not durable before a call of
        `Committers.sync`. Raises TooLarge, StorageQuotaExceeded, EngineFull, Overloaded, Maintenance: then nothing is sent.
        """
        self._submit(messages, on_outcome, None, uses_reserve=False, is_synced=is_synced)

    def _submit(
        self,
        messages: Sequence[PendingMessage],
        on_outcome: OnOutcome,
        future: "asyncio.Future[Sequence[PublishAck]] | None",
        *,
        uses_reserve: bool,
        is_synced: bool = True,
    ) -> None:
        self._connection.writes.admit(self.stream)
        size = 0
        for message in messages:
            message_size = message.size
            if message_size > self._connection.max_payload:
                raise TooLarge(
                    f"a message of {len(message.payload)} bytes exceeds the engine's limit of {self._connection.max_payload}"
                )
            size += message_size
        if uses_reserve:
            self._budget.count(size)
        else:
            self._budget.admit(size)
        self._buffer_limit.reserve(size)
        deadline = asyncio.get_running_loop().time() + self._policy.deadline_seconds
        self._queue.add(SubmittedWrite(messages, size, deadline, on_outcome, future, is_synced=is_synced))
        self._schedule_send()

    def close(self, error: PostroadError) -> None:
        """Mark the stream as deleted: writes that are not answered are not sent again, but fail with `error`."""
        self._closed_by = error

    def _schedule_send(self) -> None:
        """Send after the callbacks that are due now, so that concurrent callers can add their writes first."""
        if not self._is_send_scheduled and not self._is_batch_in_flight:
            self._is_send_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_pending)

    def _send_pending(self) -> None:
        self._is_send_scheduled = False
        if self._is_batch_in_flight:
            return
        if self._queue.is_batch_due:
            batch, cancelled = self._queue.next_batch()
            for write in cancelled:
                self._buffer_limit.release(write.size)
            self._is_batch_in_flight = True
            self._start(self._store_batch(batch), batch)
            return
        while len(self._queue) and self._in_flight.has_capacity:
            self._send_single(self._queue.next_single())

    def _start(self, work: Coroutine[None, None, None], writes: Sequence[SubmittedWrite]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_done, writes))

    def _on_done(self, writes: Sequence[SubmittedWrite], task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():  # the process ends
            for write in writes:
                if not write.is_resolved:
                    self._resolve(write, deadline_error(self.stream, asyncio.CancelledError()))

    # Single messages: without a task and a timer for each. Failures are handed to a task.

    def _send_single(self, write: SubmittedWrite) -> None:
        self._in_flight.add(write.size)
        reply_subject = ""
        try:
            reply_subject = self._connection.expect_callback(partial(self._on_single_reply, write))
            command = encode_publish(write.messages[0], reply_subject)
            self._connection.send(command, is_urgent=self._in_flight.count < _COALESCE_FROM)
        except Exception:  # the connection is down, or the message cannot be encoded, which must reach the caller
            self._connection.forget(reply_subject)
            self._start(self._store_single(write), (write,))
            return
        loop = asyncio.get_running_loop()
        attempt_ends = min(loop.time() + self._policy.attempt_seconds, write.deadline)
        self._singles[write] = reply_subject, attempt_ends
        if not self._has_timer:
            self._has_timer = True
            loop.call_at(attempt_ends, self._expire_singles)

    def _on_single_reply(self, write: SubmittedWrite, reply: Reply | ConnectionLost) -> None:
        del self._singles[write]
        try:
            if isinstance(reply, ConnectionLost):
                raise reply
            outcome: Outcome = single_ack(write, decode_reply(reply))
        except (ConnectionLost, EngineUnavailable) as error:
            self._retry_single(write, error)
            return
        except PostroadError as error:
            outcome = error
        self._resolve(write, outcome)
        self._in_flight.remove(write.size)
        if len(self._queue):
            self._schedule_send()

    def _expire_singles(self) -> None:
        """Retry the messages whose attempt has timed out, oldest first. One timer serves all of them."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for write, (reply_subject, attempt_ends) in list(self._singles.items()):
            if attempt_ends > now:
                loop.call_at(attempt_ends, self._expire_singles)
                return
            del self._singles[write]
            self._connection.forget(reply_subject)
            self._retry_single(write, TimeoutError())
        self._has_timer = False

    def _retry_single(self, write: SubmittedWrite, error: Exception) -> None:
        self._count_unanswered()
        write.may_be_stored = True
        self._start(self._store_single(write, error), (write,))

    def _count_unanswered(self) -> None:
        metrics.commit_retries.inc()
        self._connection.report_unanswered(self.stream)

    async def _store_single(self, write: SubmittedWrite, error: Exception | None = None) -> None:
        """`error`: the failure of an earlier attempt."""
        try:
            if error is not None and self._closed_by is not None:
                self._resolve(write, self._closed_by)
                return
            if error is not None and not self._fail_overdue([write], asyncio.get_running_loop().time(), error):
                return
            await self._send_until_acknowledged([write], error)
        finally:
            self._in_flight.remove(write.size)
            self._schedule_send()

    async def _store_batch(self, writes: list[SubmittedWrite]) -> None:
        try:
            rejection = None if self._reads_first else await self._send_until_acknowledged(writes)
            if self._reads_first or rejection is not None:
                await self._store_in_parts(writes, rejection)
        finally:
            self._is_batch_in_flight = False
            self._schedule_send()

    async def _store_in_parts(self, writes: list[SubmittedWrite], rejection: Exception | None) -> None:
        """Store a batch that was rejected as a whole, without naming the message at fault, or that probably would be.

        Only the writes at fault may fail. One read finds those whose precondition does not hold; the others are sent together.
        The next batches begin with such a read: repeated keys rarely come alone, and a rejected batch costs more than a read.
        """
        for _ in range(_RESOLUTIONS_MAX):
            writes = [write for write in writes if not write.is_resolved]
            if not writes:
                return
            # A precondition may also fail because an earlier attempt, which was not answered, has stored the write.
            if not isinstance(rejection, Conflict | None) or any(write.may_be_stored for write in writes):
                break
            resolution = await read_resolution(self._connection, self.stream, writes, min(write.deadline for write in writes))
            if resolution is None:
                break
            is_any_at_fault = bool(resolution.stale or resolution.deferred)
            self._reads_first = _READS_FIRST if is_any_at_fault else max(0, self._reads_first - 1)
            if rejection is not None and not is_any_at_fault:
                await asyncio.sleep(_LAG_SECONDS)  # the replica that answered does not know yet what the batch was rejected for
            for write in resolution.stale:
                self._resolve(write, Conflict("a precondition does not hold: the last sequence of its subject is another"))
            rejection = await self._send_until_acknowledged(resolution.sendable)
        await self._store_separately([write for write in writes if not write.is_resolved])

    async def _store_separately(self, writes: list[SubmittedWrite]) -> None:
        """Send those without a precondition together, if possible, and the others one by one."""
        conditional, unconditional = split_conditional(writes)
        if conditional and unconditional and await self._send_until_acknowledged(unconditional) is None:
            unconditional = []
        left = [write for write in conditional + unconditional if not write.is_resolved]
        metrics.commit_separate_writes.inc(len(left))
        await asyncio.gather(*[self._send_until_acknowledged([write]) for write in left])

    async def _send_until_acknowledged(self, writes: list[SubmittedWrite], cause: Exception | None = None) -> Exception | None:
        """Send, and repeat while there is no answer, until stored or past the deadline. `cause`: of an earlier attempt's failure.

        Past the deadline, "no responders" to any attempt is the cause: the deadline ends the last one, mostly without an answer.

        Return the error if a batch of several writes was rejected; every other outcome is given to the callers.
        """
        loop = asyncio.get_running_loop()
        delays = _BACKOFF.delays()
        while writes:
            try:
                acks = await self._send(writes)
            except _UNANSWERED as error:
                self._count_unanswered()
                for write in writes:
                    write.may_be_stored = True
                if self._closed_by is not None:
                    for write in writes:
                        self._resolve(write, self._closed_by)
                    return None
                delay = next(delays)
                cause = error if cause is None or isinstance(error, EngineNoResponders) else cause
                writes = self._fail_overdue(writes, loop.time() + delay, cause)
                if writes:
                    await asyncio.sleep(delay)
                    await self._connection.wait_up_until(min(write.deadline for write in writes))
                continue
            except Exception as rejection:  # includes encoding errors, which must reach their caller and no other
                if len(writes) > 1:
                    metrics.commit_rejected_batches.inc()
                    return rejection
                self._resolve(writes[0], await self._outcome_of_rejected(writes[0], rejection))
                return None
            for write, result in zip(writes, acks, strict=True):
                self._resolve(write, result)
            return None
        return None

    async def _outcome_of_rejected(self, write: SubmittedWrite, rejection: Exception) -> Outcome:
        """Distinguish a real rejection from that of a write that an earlier attempt stored.

        The server rejects a batch with known ids, and checks a precondition before the id. If all ids are known, the write is
        stored.
        """
        if not (write.may_be_stored or (len(write.messages) > 1 and isinstance(rejection, EngineRefused))):
            return rejection
        acks: list[PublishAck] = []
        for message in write.messages:
            # A known id is answered with its position before the header is checked, an unknown one is rejected. Nothing is stored
            # either way.
            probe = PendingMessage(message.subject, b"", message.id, _ALWAYS_REJECTED)
            try:
                [[ack]] = await self._send([SubmittedWrite((probe,), 0, write.deadline, ignore_outcome)])
            except _UNANSWERED as error:
                return deadline_error(self.stream, error)
            except PostroadError:
                return rejection
            acks.append(PublishAck(ack.sequence, is_duplicate=not write.may_be_stored, is_known=True))
        return acks

    def _fail_overdue(self, writes: list[SubmittedWrite], now: float, cause: Exception) -> list[SubmittedWrite]:
        """Fail the writes whose deadline has passed; return the others."""
        overdue = [write for write in writes if write.deadline <= now]
        for write in overdue:
            self._resolve(write, deadline_error(self.stream, cause))
        return [write for write in writes if write.deadline > now] if overdue else writes

    def _resolve(self, write: SubmittedWrite, outcome: Outcome) -> None:
        """Report the outcome; that of a stored write once it is durable, unless its caller syncs it."""
        write.is_resolved = True
        if isinstance(outcome, Exception) or not write.is_synced:
            self._report(write, outcome)
        else:
            last = outcome[-1].sequence
            self._connection.store_sync.request(self.stream, last, lambda problem: self._report(write, problem or outcome))

    def _report(self, write: SubmittedWrite, outcome: Outcome) -> None:
        self._buffer_limit.release(write.size)
        try:
            write.on_outcome(outcome)
        except Exception:  # a bug, which must not stop the writes of others
            log.exception("write_callback_failed", stream=self.stream)

    async def _send(self, writes: list[SubmittedWrite]) -> list[Sequence[PublishAck]]:
        """One attempt: a single publish, or one atomic batch written to the socket at once."""
        messages = [message for write in writes for message in write.messages]
        is_single = len(messages) == 1
        reply_subject, replied = self._connection.expect()
        try:
            commands = (
                encode_publish(messages[0], reply_subject)
                if is_single
                else encode_batch(messages, self._batch_ids(), reply_subject)
            )
            self._connection.send(commands)
            attempt_ends = asyncio.get_running_loop().time() + self._policy.attempt_seconds
            async with asyncio.timeout_at(min(attempt_ends, writes[-1].deadline)):
                reply = await replied
        finally:
            self._connection.forget(reply_subject)
        ack = decode_reply(reply)
        if is_single:
            return [single_ack(writes[0], ack)]
        metrics.stored_in_batch.inc(len(messages))
        metrics.commit_batch_size.observe(len(messages))
        return assign_sequences(writes, ack.seq)


class Committers:
    """The process's committers, one per stream, created on first use. An idle one costs a few hundred bytes and no task."""

    def __init__(
        self,
        connection: Connection,
        policy: CommitPolicy,
        buffer_limit: WriteBufferLimit,
        storage: StorageBudgets | None = None,
    ) -> None:
        self._connection, self._policy, self.buffer_limit = connection, policy, buffer_limit
        self.storage = storage or StorageBudgets()
        self._by_stream: dict[str, Committer] = {}

    @property
    def are_held(self) -> bool:
        """True during maintenance: an append would raise Maintenance."""
        return self._connection.writes.is_held

    def sync(self, written: Mapping[str, int], callback: Callback) -> None:
        """Call `callback` once the writes to these streams, by name with the highest sequence, are durable, or with the error."""
        self._connection.store_sync.request_all(written, callback)

    def of(self, stream: str) -> Committer:
        found = self._by_stream.get(stream)
        if found is None:
            budget = self.storage.of_stream(stream)
            found = self._by_stream[stream] = Committer(self._connection, stream, self._policy, self.buffer_limit, budget)
        return found

    def forget(self, stream: str, error: PostroadError | None = None) -> None:
        """Drop the committer of a stream. With an error, the stream is gone: writes still in progress fail with it."""
        found = self._by_stream.pop(stream, None)
        if found is not None and error is not None:
            found.close(error)
