"""Publishing to topics: one message or a batch, deduplicated by idempotency key."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from postroad.api.queues import IdempotencyMismatch, SchemaMismatch
from postroad.api.topics import NewTopicMessage, PublishedTopicMessage, TopicFed, TopicNotFound
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.kernel.ids import new_id
from postroad.kernel.usage_counters import UsageCounters
from postroad.queues.schemas import Schemas
from postroad.topics import metrics, rules
from postroad.topics.hops import check_hops
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.records import TopicRecord, pending_message
from postroad.topics.rules import IdempotencyMark, MessageLimits, body_hash, check_message, message_body, message_id, parse_mark

_FIRST_READS = 5
_FIRST_READ_SECONDS = 0.05


class _PendingPublish(msgspec.Struct, frozen=True):
    """A message to store. `mark`: set if it has an idempotency key."""

    subject: str
    write: PendingMessage
    at_ms: int
    mark: IdempotencyMark | None


class TopicPublisher:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        lifecycle: TopicLifecycle,
        usage: UsageCounters,
        clock: Clock,
        *,
        tenant_settings: TenantSettingsStore,
        schemas: Schemas,
        limits: MessageLimits,
    ) -> None:
        self._connection, self._committers, self._lifecycle = connection, committers, lifecycle
        self._usage, self._clock, self._tenant_settings = usage, clock, tenant_settings
        self._schemas, self._limits = schemas, limits
        lifecycle.on_end(self._topic_ended)

    async def publish(
        self, context: RequestContext, topic: str, new: NewTopicMessage, *, hops: int = 0, feeder: str | None = None
    ) -> PublishedTopicMessage:
        """Return once the message is durable.

        `hops`: how often the message was forwarded. `feeder`: the resource that publishes, for a topic with a feeder.
        Raises TopicNotFound, TopicFed, LoopDetected, TooLarge, BodyInvalid, SchemaMismatch, SchemaTooSlow, IdempotencyMismatch,
        EngineFull, StorageQuotaExceeded, Overloaded, EngineUnavailable.
        """
        record = self._lifecycle.cached(context.tenant, topic)
        if record is None:
            record = await self._lifecycle.find_or_create(context, topic)
        _check_allowed(record, hops, feeder)
        pending = await self._prepare(record, context, new, hops)
        ack = await self._committers.of(record.stream).append(pending.write)
        self._count(record, (pending,))
        return await self._published(record, pending, ack)

    async def publish_batch(
        self,
        context: RequestContext,
        topic: str,
        batch: Sequence[NewTopicMessage],
        *,
        hops: int = 0,
        feeder: str | None = None,
    ) -> list[PublishedTopicMessage | PostroadError]:
        """Like `publish` for each message, with an outcome for each. A failed message does not affect the others."""
        record = await self._lifecycle.find_or_create(context, topic)
        _check_allowed(record, hops, feeder)
        outcomes: list[PublishedTopicMessage | PostroadError | None] = [None] * len(batch)
        pending: list[tuple[int, _PendingPublish]] = []
        for index, new in enumerate(batch):
            try:
                pending.append((index, await self._prepare(record, context, new, hops, f"$.messages[{index}]")))
            except PostroadError as problem:
                outcomes[index] = problem
        acks = await self._committers.of(record.stream).append_each([(one.write,) for _, one in pending])
        self._count(record, [one for (_, one), ack in zip(pending, acks, strict=True) if not isinstance(ack, PostroadError)])
        for (index, one), ack in zip(pending, acks, strict=True):
            try:
                outcomes[index] = ack if isinstance(ack, PostroadError) else await self._published(record, one, ack[0])
            except PostroadError as problem:
                outcomes[index] = problem
        return [outcome for outcome in outcomes if outcome is not None]

    async def _prepare(
        self, record: TopicRecord, context: RequestContext, new: NewTopicMessage, hops: int, path: str = "$"
    ) -> _PendingPublish:
        check_message(new, self._limits, path)
        body = message_body(new, self._tenant_settings.of(context.tenant).max_message_bytes, path)
        if record.settings.schema is not None:
            await self._check_schema(record, new, body, path)
        now, mark = self._clock(), None
        if new.idempotency_key is not None:
            mark = IdempotencyMark(now, body_hash(new, body))
        write = pending_message(
            record,
            new.subject,
            body,
            new_id() if new.idempotency_key is None else message_id(context.caller.key_id, new.idempotency_key),
            headers=new.headers.items(),
            traceparent=context.traceparent,
            hops=hops,
            mark=mark,
        )
        return _PendingPublish(new.subject, write, now, mark)

    async def _check_schema(self, record: TopicRecord, new: NewTopicMessage, body: rules.MessageBody, path: str) -> None:
        schema, field = record.settings.schema, "payload" if new.body_b64 is UNSET else "body_b64"
        if schema is None:
            return
        if not rules.is_json(body.content_type):
            detail = f"the topic has a JSON Schema, and {body.content_type} is no JSON type"
            raise SchemaMismatch(detail, extra={"errors": [{"path": f"{path}.contentType", "detail": detail}]})
        await self._schemas.check(record.tenant, record.stream, schema, body.data, f"{path}.{field}")

    async def _published(self, record: TopicRecord, pending: _PendingPublish, ack: PublishAck) -> PublishedTopicMessage:
        """Raises IdempotencyMismatch if the engine knew the idempotency key from another message."""
        at_ms = pending.at_ms
        if ack.is_known and pending.mark is not None:
            first = await self._first_message(record, ack.sequence)
            found = None if first is None else parse_mark(first.headers)
            if found is not None and found.body_hash != pending.mark.body_hash:
                raise IdempotencyMismatch("the idempotency key was used with another body")
            if found is not None:
                at_ms = found.at_ms
        return PublishedTopicMessage(
            sequence=ack.sequence, timestamp=rfc3339(at_ms), subject=pending.subject, nats_subject=pending.write.subject
        )

    async def _first_message(self, record: TopicRecord, sequence: int) -> Entry | None:
        """The message that the engine knows the id from. None if it was purged, or dropped at a limit of the topic.

        A replica may not have it yet when the leader reports the duplicate: then read again.
        """
        for left in range(_FIRST_READS, 0, -1):
            entry = await stream_reader.at(self._connection, record.stream, sequence)
            if entry is not None or left == 1 or record.replicas == 1:
                return entry
            await asyncio.sleep(_FIRST_READ_SECONDS)
        return None

    def _count(self, record: TopicRecord, stored: Sequence[_PendingPublish]) -> None:
        metrics.published.add(record.tenant, len(stored))
        counters = self._usage.of(record.tenant)
        counters.topic_messages += len(stored)
        counters.topic_bytes += sum(len(one.write.payload) for one in stored)

    def _topic_ended(self, record: TopicRecord) -> None:
        """Fail the waiting writes of a deleted topic."""
        self._committers.forget(record.stream, TopicNotFound("the topic was deleted"))


def _check_allowed(record: TopicRecord, hops: int, feeder: str | None) -> None:
    if record.fed_by is not None and record.fed_by != feeder:
        raise TopicFed(f"only {record.fed_by} publishes to the topic {record.name!r}")
    check_hops(hops)
