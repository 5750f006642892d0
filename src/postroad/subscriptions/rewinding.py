"""Rewinds: a subscription starts again at an earlier message of its topic, and then goes on with new ones or stops at a time.

Unlike a replay, which runs beside the live delivery, a rewind replaces its progress, so the order of the topic is kept. What
had not been delivered yet is delivered, too. The messages up to the newest one of that time are marked as replayed.
"""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from postroad.api.stream_subscriptions import SubscriptionNotFound
from postroad.api.subscriptions import RewindRequest, SubscriptionState
from postroad.governance.audit import Audit
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PreconditionFailed
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.subscriptions.progress_store import ProgressStore
from postroad.subscriptions.records import LIVE_CURSOR, StoredRewind, SubscriptionRecord
from postroad.subscriptions.service import Subscriptions
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.reading import TopicReader

Change = Callable[[SubscriptionRecord], SubscriptionRecord]


_END = "subscription.rewind-end"


class RewindState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"


class Rewinder:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[SubscriptionRecord],
        subscriptions: Subscriptions,
        topics: TopicLifecycle,
        reader: TopicReader,
        progress: ProgressStore,
        audit: Audit,
        clock: Clock,
    ) -> None:
        self._connection, self._table, self._subscriptions, self._topics = connection, table, subscriptions, topics
        self._reader, self._progress, self._audit, self._clock = reader, progress, audit, clock

    async def start(self, context: RequestContext, subscription: str, request: RewindRequest) -> SubscriptionRecord:
        """Raises SubscriptionNotFound, TopicNotFound, BodyInvalid, PreconditionFailed, EngineUnavailable."""
        record = await self._subscriptions.find(context.caller, subscription)
        _check_delivered(record)
        if (request.from_sequence is None) == (request.from_time is None):
            raise invalid_field("$.fromSequence", "give either `fromSequence` or `fromTime`")
        topic = await self._topics.find(context.tenant, record.topic)
        info = await stream_info(self._connection, topic.stream)
        last = 0 if info is None else info.state.last_seq
        from_ms = None if request.from_time is None else int(request.from_time.timestamp() * 1000)
        wanted = await self._reader.resolve_range(topic, from_sequence=request.from_sequence, from_ms=from_ms)
        first = min(wanted.start, last + 1)
        until_ms = None if request.to_time is None else int(request.to_time.timestamp() * 1000)
        rewind = StoredRewind(first=first, last=last, until_ms=until_ms)
        start_after = min(first - 1, await self._settled_to(record))
        return await self._restart(context, record, "subscription.rewind", start_after, rewind)

    async def end(self, context: RequestContext, subscription: str) -> SubscriptionRecord:
        """Go on with the messages that were published after the rewind was started. Idempotent. Raises like `start`."""
        record = await self._subscriptions.find(context.caller, subscription)
        if record.rewind is None:
            return record
        settled_to = await self._settled_to(record)
        if record.rewind.until_ms is None and settled_to >= record.rewind.last:  # it has gone on with them already
            return await self._change(context, record, _END, lambda now: _with(now, self._clock(), rewind=None))
        return await self._restart(context, record, _END, record.rewind.last, None)

    async def state(self, record: SubscriptionRecord) -> RewindState | None:
        """None without a rewind."""
        if record.rewind is None:
            return None
        stored = (await self._progress.load(record)).record
        if stored is None:
            return RewindState.PENDING
        return RewindState.DONE if stored.cursor.settled_to >= record.rewind.last else RewindState.RUNNING

    async def _settled_to(self, record: SubscriptionRecord) -> int:
        stored = (await self._progress.load(record)).record
        return record.start_after if stored is None else stored.cursor.settled_to

    async def _restart(
        self, context: RequestContext, record: SubscriptionRecord, action: str, start_after: int, rewind: StoredRewind | None
    ) -> SubscriptionRecord:
        cursor = f"live-{new_id()[-12:]}"
        changed = await self._change(
            context,
            record,
            action,
            lambda now: _with(now, self._clock(), cursor=cursor, start_after=start_after, rewind=rewind),
        )
        await self._progress.delete(record, LIVE_CURSOR)  # that of the record as it was
        return changed

    async def _change(self, context: RequestContext, record: SubscriptionRecord, action: str, make: Change) -> SubscriptionRecord:
        async with self._audit.change(context, action, record.id, after=msgspec.to_builtins(make(record).rewind)):
            changed = await self._table.change(record.key, make)
        if changed is None:
            raise SubscriptionNotFound(f"there is no subscription {record.id!r}")
        return changed[1]


def _check_delivered(record: SubscriptionRecord) -> None:
    if record.is_read_live:
        raise PreconditionFailed("nothing is delivered for a subscription that is read live; read it from a sequence instead")
    if record.state is SubscriptionState.PENDING:
        raise PreconditionFailed("the endpoint has not confirmed the subscription yet")


def _with(record: SubscriptionRecord, now_ms: int, **changes: object) -> SubscriptionRecord:
    return msgspec.structs.replace(record, updated_at_ms=now_ms, **changes)
