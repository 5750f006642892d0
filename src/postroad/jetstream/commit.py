"""Group commit: writes that overlap share one fsync.

With `sync_interval: always` a publish costs one fsync, whereas an atomic batch costs a fixed few milliseconds and then almost
nothing per message. So a few writes go singly, pipelined; once `batch_from` are waiting they go as one batch, and whatever
arrives meanwhile goes into the next. Decision 0003 has the measurements.

Every message carries its id as `Nats-Msg-Id`, so sending it again after a lost answer cannot store it twice.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from postroad.jetstream import metrics
from postroad.jetstream.api_errors import decode_pub_ack, translate
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.jetstream.protocol import publish_command
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.errors import EngineRefused, EngineUnavailable, PostroadError, TooLarge
from postroad.kernel.ids import ShortIds

# What no stream ever takes. Not every refusal will do: ids must be looked up before it, on a single server as on a cluster, and a
# cluster's leader must refuse it before it tells the replicas. An expected last id is looked at by each of them as it writes, and
# nats-server 2.15 then takes the stream for broken, for good.
_NEVER = "Nats-Rollup: never\r\n"
_COALESCE_FROM = 16  # single messages in flight: from there on they go out once a millisecond, in one piece
_HEADERS_ROOM = 512  # what the id and the batch's own headers may add to a message


class PendingMessage(msgspec.Struct, frozen=True):
    """A message to be stored. `headers` are encoded lines (`protocol.header_lines`); `id` is unique in its stream.

    `precondition_subject`: the subject filter that the expected sequence is checked against. The server checks it against the
    state before the batch, not against earlier messages of the same batch, so a batch must not contain such messages.
    """

    subject: str
    payload: bytes
    id: str
    headers: str = ""
    is_conditional: bool = False
    precondition_subject: str = ""

    @property
    def size(self) -> int:
        header_bytes = len(self.headers) if self.headers.isascii() else len(self.headers.encode())
        return len(self.payload) + header_bytes + len(self.subject) + _HEADERS_ROOM


class PublishAck(msgspec.Struct, frozen=True):
    """Where a message came to rest. `is_duplicate`: the id was known, and the sequence is the first one's."""

    sequence: int
    is_duplicate: bool = False


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    batch_from: int = 16
    batch_messages_max: int = 1000
    batch_bytes_max: int = 4 * 1024 * 1024
    try_seconds: float = 5.0
    deadline_seconds: float = 10.0


class _PendingWrite:
    """Messages of one caller that are stored together or not at all; nearly always a single one."""

    __slots__ = ("drafts", "future", "give_up_at", "may_be_stored", "size")

    def __init__(self, drafts: Sequence[PendingMessage], size: int, give_up_at: float) -> None:
        self.drafts = drafts
        self.size = size
        self.give_up_at = give_up_at
        self.may_be_stored = False  # by an earlier try that nobody answered
        self.future: asyncio.Future[Sequence[PublishAck]] = asyncio.get_running_loop().create_future()

    @property
    def is_conditional(self) -> bool:
        return any(draft.is_conditional for draft in self.drafts)


class Committer:
    """Appends to one stream; callers that overlap share a batch and its fsync."""

    def __init__(self, connection: Connection, stream: str, policy: CommitPolicy, backlog: WriteBufferLimit) -> None:
        self.stream = stream
        self._connection = connection
        self._policy = policy
        self._backlog = backlog
        self._batch_ids = ShortIds()
        self._waiting: deque[_PendingWrite] = deque()
        self._together_waiting = 0  # units of several messages: they need a batch anyway, and the others may come along
        self._alone_in_flight = 0
        self._alone: dict[str, tuple[_PendingWrite, float]] = {}  # by reply subject, with the time until which it is waited for
        self._is_watched = False
        self._is_batch_in_flight = False
        self._is_advance_due = False
        self._ended_by: PostroadError | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def append(self, draft: PendingMessage) -> PublishAck:
        """Return once the message would survive a crash.

        Raises Conflict if a condition in the headers does not hold, EngineFull when the stream is at its limit, TooLarge,
        Overloaded when too much is waiting already, and EngineUnavailable when no leader answered before the deadline: then
        the message may or may not be stored, and the same `draft.id` can be sent again.
        """
        return (await self.submit((draft,)))[0]

    async def append_together(self, drafts: Sequence[PendingMessage]) -> Sequence[PublishAck]:
        """As `append`, for messages of which either all are stored or none."""
        return await self.submit(drafts)

    async def append_each(self, drafts: Sequence[Sequence[PendingMessage]]) -> list[Sequence[PublishAck] | PostroadError]:
        """As `append_together` for each of many, which share their batches; an outcome for each, in order."""
        outcomes: list[Sequence[PublishAck] | PostroadError] = []
        waiting: list[asyncio.Future[Sequence[PublishAck]] | PostroadError] = []
        for run_together in drafts:
            try:
                waiting.append(self.submit(run_together))
            except PostroadError as refused:
                waiting.append(refused)
        for one in waiting:
            try:
                outcomes.append(one if isinstance(one, PostroadError) else await one)
            except PostroadError as failed:
                outcomes.append(failed)
        return outcomes

    def end(self, problem: PostroadError) -> None:
        """The stream is gone for good: what nobody answered is not sent again, but fails with this problem."""
        self._ended_by = problem

    def submit(self, drafts: Sequence[PendingMessage]) -> "asyncio.Future[Sequence[PublishAck]]":
        """As `append_together`, for who has something better to do than to wait."""
        size = 0
        for draft in drafts:
            if draft.size > self._connection.max_payload:
                raise TooLarge(
                    f"a message of {len(draft.payload)} bytes is over what the engine takes ({self._connection.max_payload})"
                )
            size += draft.size
        self._backlog.take(size)
        unit = _PendingWrite(drafts, size, asyncio.get_running_loop().time() + self._policy.deadline_seconds)
        self._waiting.append(unit)
        self._together_waiting += len(drafts) > 1
        self._advance_soon()
        return unit.future

    def _advance_soon(self) -> None:
        """After the callbacks that are due now: whoever else is about to write gets to say so first."""
        if not self._is_advance_due and not self._is_batch_in_flight:
            self._is_advance_due = True
            asyncio.get_running_loop().call_soon(self._advance)

    def _advance(self) -> None:
        """Send what is waiting, if now is the time: a batch when many are, singles while few are in flight."""
        self._is_advance_due = False
        if self._is_batch_in_flight:
            return
        if len(self._waiting) >= self._policy.batch_from or self._together_waiting:
            self._is_batch_in_flight = True
            self._start(self._store_batch(self._take_batch()))
            return
        while self._waiting and self._alone_in_flight < self._policy.batch_from:
            self._alone_in_flight += 1
            self._send_alone(self._waiting.popleft())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_batch(self) -> list[_PendingWrite]:
        units: list[_PendingWrite] = []
        written: set[str] = set()  # above which there are subjects in this batch
        messages = size = 0
        while self._waiting:
            unit = self._waiting[0]
            if units and any(draft.precondition_subject and draft.precondition_subject in written for draft in unit.drafts):
                break
            messages += len(unit.drafts)
            size += unit.size
            if units and (messages > self._policy.batch_messages_max or size > self._policy.batch_bytes_max):
                break
            self._waiting.popleft()
            self._together_waiting -= len(unit.drafts) > 1
            if unit.future.cancelled():  # its caller left before it was ever sent
                self._backlog.give_back(unit.size)
                messages -= len(unit.drafts)
                size -= unit.size
            else:
                units.append(unit)
                written.update([draft.subject.rpartition(".")[0] for draft in unit.drafts])
        return units

    # One by one

    def _send_alone(self, unit: _PendingWrite) -> None:
        """The short way, without a task and a timer for each: whatever goes wrong goes the long one."""
        reply = ""
        try:
            reply, answered = self._connection.expect()
            self._connection.send(self._encode_single(unit.drafts[0], reply), is_urgent=self._alone_in_flight < _COALESCE_FROM)
        except Exception:  # the connection is away, or a mistake of our own, which must reach the caller
            self._connection.forget(reply)
            self._start(self._store_alone(unit))
            return
        loop = asyncio.get_running_loop()
        until = min(loop.time() + self._policy.try_seconds, unit.give_up_at)
        self._alone[reply] = unit, until
        answered.add_done_callback(partial(self._alone_answered, reply))
        if not self._is_watched:
            self._is_watched = True
            loop.call_at(until, self._give_up_late)

    def _alone_answered(self, reply: str, answered: "asyncio.Future[Reply]") -> None:
        sent = self._alone.pop(reply, None)
        if sent is None:
            return
        try:
            outcome: Sequence[PublishAck] | PostroadError = self._stored([sent[0]], answered.result())[0]
        except (ConnectionLost, EngineUnavailable) as problem:
            self._go_long(sent[0], problem)
            return
        except PostroadError as refusal:
            outcome = refusal
        self._settle(sent[0], outcome)
        self._alone_in_flight -= 1
        if self._waiting:
            self._advance_soon()

    def _give_up_late(self) -> None:
        """Those that nobody answered in time, the oldest first."""
        now = asyncio.get_running_loop().time()
        for reply, (unit, until) in list(self._alone.items()):
            if until > now:
                asyncio.get_running_loop().call_at(until, self._give_up_late)
                return
            del self._alone[reply]
            self._connection.forget(reply)
            self._go_long(unit, TimeoutError())
        self._is_watched = False

    def _go_long(self, unit: _PendingWrite, problem: Exception) -> None:
        metrics.commit_retries.inc()
        unit.may_be_stored = True
        self._start(self._store_alone(unit, problem))

    async def _store_alone(self, unit: _PendingWrite, problem: Exception | None = None) -> None:
        """The problem is that of an earlier try."""
        try:
            if problem is not None and self._ended_by is not None:
                self._fail([unit], self._ended_by)
                return
            if problem is not None and not self._still_in_time([unit], asyncio.get_running_loop().time(), problem):
                return
            await self._until_answered([unit])
        finally:
            self._alone_in_flight -= 1
            self._advance_soon()

    async def _store_batch(self, units: list[_PendingWrite]) -> None:
        try:
            if not await self._until_answered(units):
                await self._each_for_itself(units)
        finally:
            self._is_batch_in_flight = False
            self._advance_soon()

    async def _each_for_itself(self, units: list[_PendingWrite]) -> None:
        """A batch was refused as a whole and the answer does not say for whose sake: let only the guilty fail."""
        metrics.commit_rejected_batches.inc()
        suspects = [unit for unit in units if unit.is_conditional]
        others = [unit for unit in units if not unit.is_conditional]
        if suspects and others and await self._until_answered(others):
            others = []
        await asyncio.gather(*[self._until_answered([unit]) for unit in suspects + others])

    async def _until_answered(self, units: list[_PendingWrite]) -> bool:
        """Send, again and again while nobody answers, until stored or past the deadline. False if a batch was refused."""
        loop = asyncio.get_running_loop()
        pause = 0.02
        while units:
            try:
                stored = await self._send(units)
            except (ConnectionLost, TimeoutError, EngineUnavailable) as exc:
                metrics.commit_retries.inc()
                for unit in units:
                    unit.may_be_stored = True
                if self._ended_by is not None:
                    self._fail(units, self._ended_by)
                    return True
                units = self._still_in_time(units, loop.time() + pause, exc)
                if units:
                    await self._pause(pause, min(unit.give_up_at for unit in units))
                    pause = min(pause * 2, 1.0)
                continue
            except Exception as refusal:  # our own mistakes too, which must reach the caller and him alone
                if len(units) > 1:
                    return False
                self._settle(units[0], await self._found_stored(units[0], refusal))
                return True
            for unit, result in zip(units, stored, strict=True):
                self._settle(unit, result)
            return True
        return True

    async def _found_stored(self, unit: _PendingWrite, refusal: Exception) -> Sequence[PublishAck] | Exception:
        """What an earlier try stored may be refused for that very reason: a batch with known ids is, and a condition is looked at
        before the id. If all of its ids are known, the unit is stored already."""
        if not (unit.may_be_stored or (len(unit.drafts) > 1 and isinstance(refusal, EngineRefused))):
            return refusal
        places: list[PublishAck] = []
        for draft in unit.drafts:
            # A known id is looked up before this refusal, so the answer is the place or an error, and nothing is stored.
            probe = PendingMessage(draft.subject, b"", draft.id, _NEVER)
            try:
                [[place]] = await self._send([_PendingWrite((probe,), 0, unit.give_up_at)])
            except (ConnectionLost, TimeoutError, EngineUnavailable) as exc:
                return self._too_late(exc)
            except PostroadError:
                return refusal
            places.append(PublishAck(place.sequence, is_duplicate=not unit.may_be_stored))
        return places

    def _fail(self, units: list[_PendingWrite], problem: PostroadError) -> None:
        for unit in units:
            self._settle(unit, problem)

    async def _pause(self, seconds: float, give_up_at: float) -> None:
        await asyncio.sleep(seconds)
        try:
            async with asyncio.timeout_at(give_up_at):
                await self._connection.wait_up()
        except TimeoutError:
            return

    def _still_in_time(self, units: list[_PendingWrite], now: float, cause: Exception) -> list[_PendingWrite]:
        late = [unit for unit in units if unit.give_up_at <= now]
        for unit in late:
            self._settle(unit, self._too_late(cause))
        return [unit for unit in units if unit.give_up_at > now] if late else units

    def _too_late(self, cause: Exception) -> EngineUnavailable:
        words = f"{self.stream} did not answer in time: the message may or may not be stored"
        problem = EngineUnavailable(words, retry_after=1)
        problem.__cause__ = cause
        return problem

    def _settle(self, unit: _PendingWrite, outcome: Sequence[PublishAck] | Exception) -> None:
        self._backlog.give_back(unit.size)
        if unit.future.done():  # cancelled: the caller no longer wants to know
            return
        if isinstance(outcome, Exception):
            unit.future.set_exception(outcome)
        else:
            unit.future.set_result(outcome)

    async def _send(self, units: list[_PendingWrite]) -> list[Sequence[PublishAck]]:
        """One try: a single publish, or one atomic batch written in one piece."""
        drafts = [draft for unit in units for draft in unit.drafts]
        reply, answered = self._connection.expect()
        commands = self._encode_single(drafts[0], reply) if len(drafts) == 1 else self._encode_batch(drafts, reply)
        try:
            self._connection.send(commands)
            try_until = asyncio.get_running_loop().time() + self._policy.try_seconds
            async with asyncio.timeout_at(min(try_until, units[-1].give_up_at)):
                answer = await answered
        finally:
            self._connection.forget(reply)
        return self._stored(units, answer)

    def _stored(self, units: list[_PendingWrite], answer: Reply) -> list[Sequence[PublishAck]]:
        """What an answer says. Raises EngineUnavailable, or what the engine refused it for."""
        count = sum(len(unit.drafts) for unit in units)
        if answer.status == "503":
            raise EngineUnavailable("no responders")
        try:
            ack = decode_pub_ack(answer.data)
        except msgspec.DecodeError as exc:
            raise EngineUnavailable("an answer that cannot be read") from exc
        if ack.error is not None:
            raise translate(ack.error)
        if count == 1:
            metrics.stored_alone.inc()
            # A duplicate of our own earlier try is no duplicate to the caller.
            return [(PublishAck(ack.seq, ack.duplicate and not units[0].may_be_stored),)]
        metrics.stored_in_batch.inc(count)
        metrics.commit_batch_size.observe(count)
        return _share_out(units, ack.seq - count + 1)

    def _encode_single(self, draft: PendingMessage, reply: str) -> bytes:
        return publish_command(draft.subject, reply, f"Nats-Msg-Id: {draft.id}\r\n{draft.headers}", draft.payload)

    def _encode_batch(self, drafts: list[PendingMessage], reply: str) -> bytes:
        batch = f"Nats-Batch-Id: {self._batch_ids()}\r\nNats-Batch-Sequence: "
        last = len(drafts)
        commands = [
            publish_command(draft.subject, "", f"Nats-Msg-Id: {draft.id}\r\n{draft.headers}{batch}{index}\r\n", draft.payload)
            for index, draft in enumerate(drafts[:-1], 1)
        ]
        final = drafts[-1]
        lines = f"Nats-Msg-Id: {final.id}\r\n{final.headers}{batch}{last}\r\nNats-Batch-Commit: 1\r\n"
        commands.append(publish_command(final.subject, reply, lines, final.payload))
        return b"".join(commands)


def _share_out(units: list[_PendingWrite], first: int) -> list[Sequence[PublishAck]]:
    """A batch is stored without gaps, so its first sequence gives everyone's."""
    shares: list[Sequence[PublishAck]] = []
    for unit in units:
        shares.append(tuple(PublishAck(first + index) for index in range(len(unit.drafts))))
        first += len(unit.drafts)
    return shares


class Committers:
    """The process's committers, one per stream, made when first needed. An idle one costs a few hundred bytes and no task."""

    def __init__(self, connection: Connection, policy: CommitPolicy, backlog: WriteBufferLimit) -> None:
        self._connection, self._policy, self._backlog = connection, policy, backlog
        self._by_stream: dict[str, Committer] = {}

    def of(self, stream: str) -> Committer:
        found = self._by_stream.get(stream)
        if found is None:
            found = self._by_stream[stream] = Committer(self._connection, stream, self._policy, self._backlog)
        return found

    def forget(self, stream: str, problem: PostroadError | None = None) -> None:
        """The stream is no longer needed or, with a problem, gone: then who still writes to it is told so."""
        found = self._by_stream.pop(stream, None)
        if found is not None and problem is not None:
            found.end(problem)
