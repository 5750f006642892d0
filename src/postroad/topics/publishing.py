"""Publishing to topics: one message or a batch, deduplicated by idempotency key."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
from msgspec import UNSET

from postroad.api.queues import IdempotencyMismatch, SchemaMismatch
from postroad.api.topics import NewTopicMessage, PublishedTopicMessage, TopicFed, TopicNotFound
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.submitted_write import Outcome
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, EngineRefused, PostroadError
from postroad.kernel.futures import resolve
from postroad.kernel.ids import new_id
from postroad.kernel.media_types import is_json
from postroad.kernel.usage_counters import UsageCounters
from postroad.queues.schemas import Schemas
from postroad.telemetry.flow_counters import FlowCounters
from postroad.topics import metrics, rules
from postroad.topics.hops import check_hops
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.records import TopicRecord, pending_message
from postroad.topics.rules import IdempotencyMark, MessageLimits, body_hash, check_message, message_body, message_id, parse_mark
from postroad.tracing.messaging import SIZE, ending, publishing, record_batch

_FIRST_READS = 5
_FIRST_READ_SECONDS = 0.05


OnPublished = Callable[[PublishedTopicMessage | Exception], None]


class _PendingPublish(msgspec.Struct, frozen=True):
    """A message to store. `mark`: set if it has an idempotency key. `is_deduplicated`: it has a `dedupeId`."""

    subject: str
    write: PendingMessage
    at_ms: int
    mark: IdempotencyMark | None
    is_deduplicated: bool = False
    group: str | None = None


class SinglePublish(msgspec.Struct, frozen=True):
    """A message that only needs to be stored."""

    context: RequestContext
    record: TopicRecord
    pending: _PendingPublish


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
        self.flows: FlowCounters | None = None  # set where flows are counted
        lifecycle.on_end(self._topic_ended)

    async def publish(
        self,
        context: RequestContext,
        topic: str,
        new: NewTopicMessage,
        *,
        hops: int = 0,
        feeder: str | None = None,
        extension: str | None = None,
    ) -> PublishedTopicMessage:
        """Return once the message is durable.

        `hops`: how often the message was forwarded. `feeder`: the resource that publishes, for a topic with a feeder.
        `extension`: what another protocol keeps with the message.
        Raises TopicNotFound, TopicFed, LoopDetected, TooLarge, BodyInvalid, SchemaMismatch, SchemaTooSlow, IdempotencyMismatch,
        EngineFull, StorageQuotaExceeded, Overloaded, EngineUnavailable.
        """
        single = self.prepare_single(context, topic, new, hops=hops, feeder=feeder, extension=extension)
        if single is not None:
            future: asyncio.Future[PublishedTopicMessage] = asyncio.get_running_loop().create_future()
            self.store_single(single, partial(resolve, future))
            return await future
        if context.span is None:
            return await self._publish(context, topic, new, hops, feeder, extension)
        context, span = publishing(context, context.span, topic)
        with span:
            return await self._publish(context, topic, new, hops, feeder, extension)

    async def _publish(
        self,
        context: RequestContext,
        topic: str,
        new: NewTopicMessage,
        hops: int,
        feeder: str | None,
        extension: str | None,
    ) -> PublishedTopicMessage:
        """Publish a message that is deduplicated, has to match a schema, or whose topic is not known yet."""
        record = self._lifecycle.cached(context.tenant, topic)
        if record is None:
            record = await self._lifecycle.find_or_create(context, topic)
        _check_allowed(record, hops, feeder)
        pending = await self._prepare(record, context, new, hops, extension=extension)
        ack = await self._committers.of(record.stream).append(pending.write)
        self._count(record, context, (pending,))
        return await self._published(record, pending, ack)

    def prepare_single(
        self,
        context: RequestContext,
        topic: str,
        new: NewTopicMessage,
        *,
        hops: int = 0,
        feeder: str | None = None,
        extension: str | None = None,
    ) -> SinglePublish | None:
        """A message without an idempotency key and `dedupeId` for a known topic without a schema; None for others. No effect.

        Raises TopicFed, LoopDetected, TooLarge, BodyInvalid.
        """
        record = self._lifecycle.cached(context.tenant, topic)
        if record is None or record.settings.schema is not None or new.idempotency_key is not None:
            return None
        if new.dedupe_id is not None or record.settings.dedupe_by_content:
            return None
        _check_allowed(record, hops, feeder)
        body = self._checked_body(context, new, "$")
        if context.span is not None:
            context, span = publishing(context, context.span, topic)
            span.attributes[SIZE] = len(body.data)
        return SinglePublish(context, record, self._pending(record, context, new, body, hops, extension))

    def store_single(self, single: SinglePublish, on_published: OnPublished) -> None:
        """Call `on_published` once the message is durable, or with the error.

        Raises TooLarge, StorageQuotaExceeded, EngineFull, Overloaded: then nothing is stored.
        """
        write, span = single.pending.write, single.context.span
        if span is not None:
            on_published = ending(span, on_published)
        try:
            self._committers.of(single.record.stream).submit_callback((write,), partial(self._on_stored, single, on_published))
        except PostroadError as error:
            if span is not None:
                span.end(error)
            raise

    def _on_stored(self, single: SinglePublish, on_published: OnPublished, outcome: Outcome) -> None:
        published: PublishedTopicMessage | Exception
        if isinstance(outcome, Exception):
            published = outcome
        else:
            try:
                self._count(single.record, single.context, (single.pending,))
                published = _published_of(single.pending, outcome[0].sequence, single.pending.at_ms)
            except Exception as error:  # a bug: the caller must not wait for ever
                published = error
        on_published(published)

    async def publish_batch(
        self,
        context: RequestContext,
        topic: str,
        batch: Sequence[NewTopicMessage],
        *,
        hops: int = 0,
        feeder: str | None = None,
        extensions: Sequence[str | None] = (),
    ) -> list[PublishedTopicMessage | PostroadError]:
        """Like `publish` for each message, with an outcome for each. A failed message does not affect the others. Messages of one
        group are stored in their order."""
        if context.span is None:
            return await self._publish_batch(context, topic, batch, hops, feeder, extensions)
        context, span = publishing(context, context.span, topic)
        with span:
            outcomes = await self._publish_batch(context, topic, batch, hops, feeder, extensions)
            record_batch(span, outcomes)
            return outcomes

    async def _publish_batch(
        self,
        context: RequestContext,
        topic: str,
        batch: Sequence[NewTopicMessage],
        hops: int,
        feeder: str | None,
        extensions: Sequence[str | None],
    ) -> list[PublishedTopicMessage | PostroadError]:
        record = await self._lifecycle.find_or_create(context, topic)
        _check_allowed(record, hops, feeder)
        outcomes: list[PublishedTopicMessage | PostroadError | None] = [None] * len(batch)
        pending: list[tuple[int, _PendingPublish]] = []
        for index, new in enumerate(batch):
            try:
                extension = extensions[index] if extensions else None
                prepared = await self._prepare(record, context, new, hops, f"$.messages[{index}]", extension)
                pending.append((index, prepared))
            except PostroadError as problem:
                outcomes[index] = problem
        acks = await self._append(record, [one for _, one in pending])
        stored = [one for (_, one), ack in zip(pending, acks, strict=True) if not isinstance(ack, PostroadError)]
        self._count(record, context, stored)
        for (index, one), ack in zip(pending, acks, strict=True):
            try:
                outcomes[index] = ack if isinstance(ack, PostroadError) else await self._published(record, one, ack)
            except PostroadError as problem:
                outcomes[index] = problem
        return [outcome for outcome in outcomes if outcome is not None]

    async def _append(self, record: TopicRecord, pending: Sequence[_PendingPublish]) -> list[PublishAck | PostroadError]:
        """Store the messages, those of one group together or, if one of them was published before, one after the other."""
        by_group: dict[str | int, list[int]] = {}
        for index, one in enumerate(pending):
            by_group.setdefault(index if one.group is None else one.group, []).append(index)
        groups, committer = list(by_group.values()), self._committers.of(record.stream)
        stored = await committer.append_each([[pending[index].write for index in group] for group in groups])
        outcomes: dict[int, PublishAck | PostroadError] = {}

        async def append_one_by_one(group: Sequence[int]) -> None:
            for index in group:
                [one] = await committer.append_each([(pending[index].write,)])
                outcomes[index] = one if isinstance(one, PostroadError) else one[0]

        divided: list[Sequence[int]] = []
        for group, acks in zip(groups, stored, strict=True):
            if isinstance(acks, PostroadError):
                if len(group) > 1 and isinstance(acks, EngineRefused | Conflict):
                    divided.append(group)
                else:
                    outcomes |= dict.fromkeys(group, acks)
            else:
                outcomes |= dict(zip(group, acks, strict=True))
        await asyncio.gather(*(append_one_by_one(group) for group in divided))
        return [outcomes[index] for index in range(len(pending))]

    async def _prepare(
        self,
        record: TopicRecord,
        context: RequestContext,
        new: NewTopicMessage,
        hops: int,
        path: str = "$",
        extension: str | None = None,
    ) -> _PendingPublish:
        body = self._checked_body(context, new, path)
        if record.settings.schema is not None:
            await self._check_schema(record, new, body, path)
        return self._pending(record, context, new, body, hops, extension)

    def _checked_body(self, context: RequestContext, new: NewTopicMessage, path: str) -> rules.MessageBody:
        """Raises TooLarge, BodyInvalid."""
        check_message(new, self._limits, path)
        return message_body(new, self._tenant_settings.of(context.tenant).max_message_bytes, path)

    def _pending(
        self,
        record: TopicRecord,
        context: RequestContext,
        new: NewTopicMessage,
        body: rules.MessageBody,
        hops: int,
        extension: str | None,
    ) -> _PendingPublish:
        now, mark = self._clock(), None
        if new.idempotency_key is not None:
            mark = IdempotencyMark(now, body_hash(new, body))
        dedupe_id, key = rules.dedupe_message_id(new, record.settings, body), new.idempotency_key
        write = pending_message(
            record,
            new.subject,
            body,
            dedupe_id or (new_id() if key is None else message_id(context.caller.key_id, key)),
            headers=new.headers.items(),
            traceparent=context.traceparent,
            hops=hops,
            mark=mark,
            extension=extension,
            group=new.group_id,
            is_deduplicated=dedupe_id is not None,
        )
        return _PendingPublish(new.subject, write, now, mark, dedupe_id is not None, new.group_id)

    async def _check_schema(self, record: TopicRecord, new: NewTopicMessage, body: rules.MessageBody, path: str) -> None:
        schema, field = record.settings.schema, "payload" if new.body_b64 is UNSET else "body_b64"
        if schema is None:
            return
        if not is_json(body.content_type):
            detail = f"the topic has a JSON Schema, and {body.content_type} is no JSON type"
            raise SchemaMismatch(detail, extra={"errors": [{"path": f"{path}.contentType", "detail": detail}]})
        await self._schemas.check(record.tenant, record.stream, schema, body.data, f"{path}.{field}")

    async def _published(self, record: TopicRecord, pending: _PendingPublish, ack: PublishAck) -> PublishedTopicMessage:
        """Raises IdempotencyMismatch if the engine knew the idempotency key from another message."""
        at_ms = pending.at_ms
        is_duplicate = pending.is_deduplicated and ack.is_duplicate
        if is_duplicate and (entry := await self._first_message(record, ack.sequence)) is not None:
            at_ms = entry.at_ms
        if ack.is_known and pending.mark is not None:
            first = await self._first_message(record, ack.sequence)
            found = None if first is None else parse_mark(first.headers)
            if found is not None and found.body_hash != pending.mark.body_hash:
                raise IdempotencyMismatch("the idempotency key was used with another body")
            if found is not None:
                at_ms = found.at_ms
        return _published_of(pending, ack.sequence, at_ms, is_duplicate=is_duplicate)

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

    def _count(self, record: TopicRecord, context: RequestContext, stored: Sequence[_PendingPublish]) -> None:
        if self.flows is not None and stored:
            self.flows.add(record.tenant, f"key:{context.caller.key_id}", f"topic:{record.name}", len(stored))
        metrics.published.add(record.tenant, len(stored))
        counters = self._usage.of(record.tenant)
        counters.topic_messages += len(stored)
        counters.topic_bytes += sum(len(one.write.payload) for one in stored)

    def _topic_ended(self, record: TopicRecord) -> None:
        """Fail the waiting writes of a deleted topic."""
        self._committers.forget(record.stream, TopicNotFound("the topic was deleted"))


def _published_of(pending: _PendingPublish, sequence: int, at_ms: int, *, is_duplicate: bool = False) -> PublishedTopicMessage:
    return PublishedTopicMessage(
        sequence=sequence,
        timestamp=rfc3339(at_ms),
        subject=pending.subject,
        nats_subject=pending.write.subject,
        duplicate=is_duplicate,
    )


def _check_allowed(record: TopicRecord, hops: int, feeder: str | None) -> None:
    if record.fed_by is not None and record.fed_by != feeder:
        raise TopicFed(f"only {record.fed_by} publishes to the topic {record.name!r}")
    check_hops(hops)
