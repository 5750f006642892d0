"""Subscriptions: create, look up, list, change, pause, resume, rotate the secret, delete."""

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.api.pages import Page
from postroad.api.stream_subscriptions import SubscriptionNotFound, WebhookRefused
from postroad.api.subscriptions import (
    DeliveryType,
    NewSubscription,
    PushFormat,
    RotatedSecret,
    SecretRotation,
    SnsSubscription,
    StartFrom,
    SubscriptionPatch,
    SubscriptionState,
)
from postroad.crypto.secret_encryption import DecryptionFailed
from postroad.governance.audit import Audit
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import AlreadyExists, Conflict, Forbidden, PreconditionFailed
from postroad.kernel.identity import Caller
from postroad.kernel.ids import derived_id, new_id
from postroad.outbound.rules import OutboundRefused, check_headers
from postroad.queues.lifecycle import QueueLifecycle
from postroad.subscriptions import validation
from postroad.subscriptions.attempt_log import AttemptLog
from postroad.subscriptions.dead_letters import SubscriptionDeadLetterStore
from postroad.subscriptions.endpoints import Endpoints
from postroad.subscriptions.events import SubscriptionChanged
from postroad.subscriptions.progress_store import ProgressStore
from postroad.subscriptions.push_client import PushClient
from postroad.subscriptions.records import StoredSecret, SubscriptionRecord, record_key
from postroad.subscriptions.signatures import new_secret
from postroad.telemetry.outbox import Outbox
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.records import TopicRecord

SUBSCRIPTIONS_BUCKET = "postroad_subscriptions"


class Subscriptions:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[SubscriptionRecord],
        topics: TopicLifecycle,
        queues: QueueLifecycle,
        push: PushClient,
        endpoints: Endpoints,
        progress: ProgressStore,
        attempts: AttemptLog,
        dead_letters: SubscriptionDeadLetterStore,
        outbox: Outbox,
        audit: Audit,
        clock: Clock,
        *,
        subscriptions_max: int,
    ) -> None:
        self._connection, self._table, self._topics, self._queues = connection, table, topics, queues
        self._push, self._endpoints, self._progress = push, endpoints, progress
        self._attempts, self._dead_letters = attempts, dead_letters
        self._outbox, self._audit, self._clock, self._max = outbox, audit, clock, subscriptions_max

    # Create

    async def create(
        self, context: RequestContext, topic_name: str, new: NewSubscription, sns: SnsSubscription | None = None
    ) -> tuple[SubscriptionRecord, str | None, bool]:
        """Return the subscription, its secret if that was generated, and whether it is new.

        One of the SNS API is delivered in its form; if it has a URL, it is pending until the endpoint has confirmed it.
        A request with the name and the settings of an existing one returns that; with others, the error names them. Raises
        TopicNotFound, QueueNotFound, BodyInvalid, FilterInvalid, WebhookRefused, AlreadyExists, Forbidden, EngineUnavailable.
        """
        validation.check_new(new)
        topic = await self._topics.find_or_create(context, topic_name)
        record, secret = await self._new_record(context, topic, new, sns)
        await self._dead_letters.ensure(context.tenant)
        while True:
            known = await self._table.fetch(record.key) if new.name is not None else None
            if known is not None:
                differences = [*validation.differences(known, record), *self._hidden_differences(known, new)]
                if not differences:
                    return known, None, False
                raise AlreadyExists(
                    f"the topic {topic.name!r} has a subscription {new.name!r} with other settings: {known.id} differs in "
                    f"{', '.join(differences)}",
                    extra={"errors": [{"path": f"$.{name}", "detail": "differs"} for name in differences]},
                )
            count = self._table.count_under(f"{context.tenant}.")
            if count >= self._max:
                raise Forbidden(f"the tenant has {count} subscriptions; {self._max} is the limit")
            with contextlib.suppress(Conflict):
                async with self._audit.change(context, "subscription.create", record.id, after=_audited(record)):
                    await self._table.create(record.key, record)
                self._record(context, record, "created")
                return record, secret, True
            self._table.forget(record.key)

    def _hidden_differences(self, known: SubscriptionRecord, new: NewSubscription) -> list[str]:
        """Encrypted settings in which a request differs from an existing subscription. A secret that is left out is any."""
        if known.delivery_type is not DeliveryType.HTTP_PUSH or known.sns is not None:
            return []
        try:
            has_other_secret = new.secret is not None and not self._endpoints.has_secret(known, new.secret)
            has_other_headers = self._endpoints.of(known, self._clock()).headers != new.headers
        except DecryptionFailed:  # with another platform key nothing can be compared; attempts report it
            return []
        return ["secret"] * has_other_secret + ["headers"] * has_other_headers

    async def _new_record(
        self, context: RequestContext, topic: TopicRecord, new: NewSubscription, sns: SnsSubscription | None
    ) -> tuple[SubscriptionRecord, str | None]:
        """The record, and its secret if it was generated."""
        await self._check_target(context, new.url, new.queue, new.headers, is_sns=sns is not None)
        await self._check_dead_letter_queue(context, new.dead_letter_queue)
        now, incarnation = self._clock(), new_id()
        is_named = new.name is not None
        record = SubscriptionRecord(
            id=derived_id(topic.created_at_ms, topic.incarnation, new.name) if is_named else incarnation,
            incarnation=incarnation,
            tenant=context.tenant,
            topic=topic.name,
            topic_incarnation=topic.incarnation,
            name=new.name,
            delivery_type=new.delivery_type,
            patterns=validation.patterns_of(new.filter),
            content_filter=new.content_filter,
            url=new.url,
            queue=new.queue,
            header_names=tuple(new.headers),
            start_after=await self._start_after(topic, new),
            start=validation.start_text(new),
            max_deliver=new.max_deliver,
            retry_delays_ms=new.retry_delays_ms,
            ack_wait_ms=new.ack_wait_ms,
            max_per_second=new.max_per_second,
            max_in_flight=new.max_in_flight,
            ordering=new.ordering,
            ordering_key=new.ordering_key,
            format=new.format,
            latest_only=new.latest_only,
            dead_letter_queue=new.dead_letter_queue,
            created_at_ms=now,
            updated_at_ms=now,
        )
        if sns is not None:
            state = SubscriptionState.ACTIVE if new.url is None else SubscriptionState.PENDING
            return msgspec.structs.replace(record, sns=sns, state=state, format=PushFormat.SNS), None
        if new.delivery_type is not DeliveryType.HTTP_PUSH:
            return record, None
        generated = new_secret() if new.secret is None else None
        secret = self._endpoints.encrypt_secret(record.secret_owner, new.secret or generated or "", now)
        headers = self._endpoints.encrypt_headers(record.secret_owner, new.headers)
        return msgspec.structs.replace(record, secrets=(secret,), headers=headers), generated

    async def _check_target(
        self, context: RequestContext, url: str | None, queue: str | None, headers: dict[str, str], *, is_sns: bool = False
    ) -> None:
        try:
            check_headers(headers)
            if url is not None:
                self._push.check(url, allow_http=is_sns)
        except OutboundRefused as refused:
            raise WebhookRefused(f"the endpoint is not allowed: {refused.explanation}") from refused
        if queue is not None:
            if not context.caller.may_use("queue", queue):
                raise Forbidden(f"the key may not use the queue {queue!r}")
            if is_sns:  # a queue of SQS has a type, which does not follow from its name
                await self._queues.find(context.tenant, queue)
            else:
                await self._queues.find_or_create(context, queue)

    async def _check_dead_letter_queue(self, context: RequestContext, queue: str | None) -> None:
        """Raises QueueNotFound, Forbidden."""
        if queue is None:
            return
        if not context.caller.may_use("queue", queue):
            raise Forbidden(f"the key may not use the queue {queue!r}")
        await self._queues.find(context.tenant, queue)

    async def _start_after(self, topic: TopicRecord, new: NewSubscription) -> int:
        """The sequence that the delivery starts after."""
        if new.start_from is StartFrom.ALL:
            return 0
        if new.start_sequence is not None:
            return new.start_sequence - 1
        if new.start_time is not None:
            since_ms = int(new.start_time.timestamp() * 1000)
            page = await stream_reader.read_since(self._connection, topic.stream, f"{topic.subject}.>", since_ms, 1)
            if page.entries:
                return page.entries[0].sequence - 1
        info = await stream_info(self._connection, topic.stream)
        return 0 if info is None else info.state.last_seq

    # Look up

    async def find(self, caller: Caller, subscription: str) -> SubscriptionRecord:
        """Raises SubscriptionNotFound."""
        is_id = len(subscription) == 36 and subscription.replace("-", "").isalnum() and subscription.isascii()
        record = await self._table.fetch(record_key(caller.tenant, subscription)) if is_id else None
        if record is None or not caller.may_use("topic", record.topic):
            raise SubscriptionNotFound(f"there is no subscription {subscription[:64]!r}")
        return record

    def named(self, topic: TopicRecord, name: str) -> SubscriptionRecord | None:
        """The subscription of a topic with this name, if this process knows it."""
        return self._table.get(record_key(topic.tenant, derived_id(topic.created_at_ms, topic.incarnation, name)))

    def page(
        self, caller: Caller, topic: str | None, state: SubscriptionState | None, limit: int, after: str | None
    ) -> Page[SubscriptionRecord]:
        """The subscriptions of topics that the caller may use, oldest first, after the id `after`."""
        prefix = f"{caller.tenant}."
        found = (
            record
            for key in self._table.keys_under(prefix, "" if after is None else prefix + after)
            if (record := self._table.get(key)) is not None
            and caller.may_use("topic", record.topic)
            and topic in (None, record.topic)
            and state in (None, record.state)
        )
        records = list(itertools.islice(found, limit + 1))
        return Page(items=records[:limit], next_cursor=records[limit - 1].id if len(records) > limit else None)

    # Change

    async def change(self, context: RequestContext, subscription: str, patch: SubscriptionPatch) -> SubscriptionRecord:
        """Raises SubscriptionNotFound, BodyInvalid, FilterInvalid, WebhookRefused, QueueNotFound, Forbidden."""
        known = await self.find(context.caller, subscription)
        headers = {} if patch.headers is UNSET else patch.headers
        validation.check_headers(headers)
        wanted = validation.patched(known, patch, self._clock())
        url, queue = (None if value is UNSET else value for value in (patch.url, patch.queue))
        await self._check_target(context, url, queue, headers, is_sns=known.sns is not None)
        if patch.dead_letter_queue is not UNSET:
            await self._check_dead_letter_queue(context, patch.dead_letter_queue)

        def make(record: SubscriptionRecord) -> SubscriptionRecord:
            changed = validation.patched(record, patch, self._clock())
            if patch.headers is UNSET:
                return changed
            encrypted = self._endpoints.encrypt_headers(record.secret_owner, headers)
            return msgspec.structs.replace(changed, headers=encrypted, header_names=tuple(headers), updated_at_ms=self._clock())

        async with self._audit.change(context, "subscription.update", known.id, before=_audited(known), after=_audited(wanted)):
            changed = await self._table.change(known.key, make)
        if changed is None:
            raise SubscriptionNotFound(f"there is no subscription {subscription!r}")
        self._record(context, changed[1], "updated")
        return changed[1]

    async def set_state(self, context: RequestContext, subscription: str, state: SubscriptionState) -> SubscriptionRecord:
        """Pause or resume. Resuming a disabled subscription enables it. Raises SubscriptionNotFound."""
        known = await self.find(context.caller, subscription)
        if known.state is SubscriptionState.PENDING:
            raise PreconditionFailed("the endpoint has not confirmed the subscription yet")
        if known.state is state or (state is SubscriptionState.PAUSED and not known.is_active):
            return known
        action = "paused" if state is SubscriptionState.PAUSED else "resumed"
        async with self._audit.change(context, f"subscription.{action.removesuffix('d')}", known.id):
            changed = await self._table.change(known.key, lambda record: self._with_state(record, state, None))
        if changed is None:
            raise SubscriptionNotFound(f"there is no subscription {subscription!r}")
        self._record(context, changed[1], action)
        return changed[1]

    async def change_sns(
        self, context: RequestContext, known: SubscriptionRecord, change: Callable[[SubscriptionRecord], SubscriptionRecord]
    ) -> SubscriptionRecord:
        """Set attributes of the SNS API, and the settings of deliveries that they stand for. `change` is called again after a
        concurrent change. Raises SubscriptionNotFound, QueueNotFound, Forbidden, and what `change` raises."""

        def make(record: SubscriptionRecord) -> SubscriptionRecord:
            return msgspec.structs.replace(change(record), updated_at_ms=self._clock())

        wanted = make(known)
        if wanted.dead_letter_queue != known.dead_letter_queue:
            await self._check_dead_letter_queue(context, wanted.dead_letter_queue)

        async with self._audit.change(context, "subscription.update", known.id, before=_audited(known), after=_audited(wanted)):
            changed = await self._table.change(known.key, make)
        if changed is None:
            raise SubscriptionNotFound(f"there is no subscription {known.id!r}")
        self._record(context, changed[1], "updated")
        return changed[1]

    async def confirm(self, context: RequestContext, known: SubscriptionRecord, sns: SnsSubscription) -> SubscriptionRecord:
        """The endpoint accepts the subscription: deliver what is published from now on. Idempotent."""
        topic = await self._topics.find(known.tenant, known.topic)
        info = await stream_info(self._connection, topic.stream)
        start_after = 0 if info is None else info.state.last_seq

        def make(record: SubscriptionRecord) -> SubscriptionRecord:
            if record.state is not SubscriptionState.PENDING or record.incarnation != known.incarnation:
                return record
            confirmed = self._with_state(record, SubscriptionState.ACTIVE, None)
            return msgspec.structs.replace(confirmed, sns=sns, start_after=start_after)

        async with self._audit.change(context, "subscription.confirm", known.id):
            changed = await self._table.change(known.key, make)
        if changed is None:
            raise SubscriptionNotFound(f"there is no subscription {known.id!r}")
        if changed[0] != changed[1]:
            self._record(context, changed[1], "confirmed")
        return changed[1]

    async def expire(self, record: SubscriptionRecord) -> None:
        """Remove a subscription that its endpoint has not confirmed in time."""
        await self._remove(record)
        self._outbox.record(
            None,
            SubscriptionChanged(
                tenant=record.tenant, subscription=record.id, topic=record.topic, change="deleted", reason="not confirmed"
            ),
        )

    async def disable(self, record: SubscriptionRecord, reason: str) -> None:
        """The endpoint said that it is gone. Undelivered messages wait until the subscription is resumed.

        Only of the record that the attempt was made with: another attempt may have disabled it, and a user enabled it, since.
        """
        changed = await self._table.change(
            record.key,
            lambda one: self._with_state(one, SubscriptionState.DISABLED, reason) if _is_unchanged(one, record) else one,
        )
        if changed is not None and changed[0] != changed[1]:
            self._outbox.record(
                None,
                SubscriptionChanged(
                    tenant=record.tenant, subscription=record.id, topic=record.topic, change="disabled", reason=reason
                ),
            )

    def _with_state(self, record: SubscriptionRecord, state: SubscriptionState, reason: str | None) -> SubscriptionRecord:
        return msgspec.structs.replace(record, state=state, disabled_reason=reason, updated_at_ms=self._clock())

    async def rotate_secret(self, context: RequestContext, subscription: str, rotation: SecretRotation) -> RotatedSecret:
        """Add a secret; the previous one stays valid for the grace time, older ones end. Raises SubscriptionNotFound."""
        known = await self.find(context.caller, subscription)
        if known.delivery_type is not DeliveryType.HTTP_PUSH:
            raise Forbidden("only subscriptions of the type http_push have a secret")
        secret = rotation.secret or new_secret()
        now_ms = self._clock()
        until_ms = now_ms + rotation.grace_seconds * 1000
        stored = self._endpoints.encrypt_secret(known.secret_owner, secret, now_ms)

        def make(record: SubscriptionRecord) -> SubscriptionRecord:
            kept: tuple[StoredSecret, ...] = ()
            if rotation.grace_seconds and record.secrets:
                kept = (msgspec.structs.replace(record.secrets[-1], valid_until_ms=until_ms),)
            return msgspec.structs.replace(record, secrets=(*kept, stored), updated_at_ms=self._clock())

        async with self._audit.change(context, "subscription.rotate", known.id):
            changed = await self._table.change(known.key, make)
        if changed is None:
            raise SubscriptionNotFound(f"there is no subscription {subscription!r}")
        self._record(context, changed[1], "updated")
        return RotatedSecret(secret=secret, previous_valid_until=rfc3339(until_ms) if rotation.grace_seconds else None)

    # Delete

    async def delete(self, context: RequestContext, subscription: str) -> None:
        """Delete the subscription with its progress, attempts and dead letters. Raises SubscriptionNotFound."""
        record = await self.find(context.caller, subscription)
        async with self._audit.change(context, "subscription.delete", record.id, before=_audited(record)):
            await self._remove(record)
        self._record(context, record, "deleted")

    async def _remove(self, record: SubscriptionRecord) -> None:
        """First the record, then what belongs to it: the rest of an interrupted deletion is garbage, not a subscription."""
        await self._table.delete(record.key)
        await self._progress.delete(record)
        await self._attempts.delete(record)
        await self._dead_letters.remove_all(record)

    async def count_of(self, topic: TopicRecord) -> int:
        return len(self.of_topic(topic))

    async def remove_of(self, topic: TopicRecord) -> None:
        """Delete the subscriptions of a topic that is being deleted. Idempotent."""
        for record in self.of_topic(topic):
            await self._remove(record)

    def of_topic(self, topic: TopicRecord) -> list[SubscriptionRecord]:
        found = [self._table.get(key) for key in self._table.keys_under(f"{topic.tenant}.")]
        return [one for one in found if one is not None and one.topic_incarnation == topic.incarnation]

    async def delete_all(self, tenant: str) -> None:
        """Delete all subscriptions of a tenant. May be repeated after an interruption."""
        for key in list(self._table.keys_under(f"{tenant}.")):
            await self._table.delete(key)
        await self._progress.delete_tenant(tenant)
        await self._attempts.delete_tenant(tenant)

    def _record(self, context: RequestContext, record: SubscriptionRecord, change: str) -> None:
        self._outbox.record(context, SubscriptionChanged(subscription=record.id, topic=record.topic, change=change))


def _is_unchanged(one: SubscriptionRecord, record: SubscriptionRecord) -> bool:
    """True if the subscription is active and its settings are those of the record; replays may differ."""
    return one.is_active and (one.incarnation, one.updated_at_ms) == (record.incarnation, record.updated_at_ms)


def _audited(record: SubscriptionRecord) -> dict[str, Any]:
    """The settings without secrets and headers."""
    shown = msgspec.to_builtins(record)
    return {name: value for name, value in shown.items() if name not in ("secrets", "headers", "replays")}
