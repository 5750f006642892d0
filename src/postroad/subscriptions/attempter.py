"""Attempts: send one message, judge the result, and apply it to the subscription's progress."""

from collections.abc import Awaitable
from functools import cache

import structlog

from postroad.api.subscriptions import DeliveryType, Ordering
from postroad.crypto.secret_encryption import DecryptionFailed
from postroad.kernel.buffered_metrics import Counter
from postroad.kernel.clock import Clock
from postroad.kernel.errors import InvalidRequest, NotFound, PostroadError
from postroad.kernel.spans import Span, Tracer
from postroad.queues.records import StoredMessage
from postroad.subscriptions import metrics
from postroad.subscriptions.attempt_log import AttemptLog
from postroad.subscriptions.attempt_span import begin_attempt, end_attempt
from postroad.subscriptions.dead_letters import SubscriptionDeadLetterStore
from postroad.subscriptions.endpoint_rules import Decision, Outcome, Step, decide
from postroad.subscriptions.endpoints import Endpoints
from postroad.subscriptions.events import DeliveryDead, LoopSuspected, SubscriptionFailing, SubscriptionRecovered
from postroad.subscriptions.formats import DeliveryFormats, NotDeliverable
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.owned_subscription import OwnedSubscription, Started
from postroad.subscriptions.push_client import AttemptResult, PushClient
from postroad.subscriptions.quarantine import reason_of, storable
from postroad.subscriptions.queue_target import QueueTarget, SequenceNumber, dead_letter, queue_message
from postroad.subscriptions.received_message import ReceivedMessage, ordering_key
from postroad.subscriptions.records import AttemptRecord, SubscriptionRecord
from postroad.telemetry.flow_counters import FlowCounters
from postroad.telemetry.outbox import Outbox
from postroad.topics.records import StoredTopicMessage

log = structlog.get_logger("postroad.subscriptions")


def _in_quarantine(reason: str) -> AttemptResult:
    """The result of an attempt that cannot be made, whose message becomes a dead letter."""
    return AttemptResult(Outcome.REFUSED, 0, error=reason, is_ours=True)


async def _without_secret() -> AttemptResult:
    return AttemptResult(Outcome.TRANSIENT, 0, error="the secret cannot be decrypted", is_ours=True)


@cache
def _counter(delivery_type: DeliveryType, outcome: Outcome) -> Counter:
    return metrics.attempts.labels(delivery_type.value, outcome.value)


class Attempter:
    def __init__(
        self,
        push: PushClient,
        queues: QueueTarget,
        endpoints: Endpoints,
        dead_letters: SubscriptionDeadLetterStore,
        attempts: AttemptLog,
        outbox: Outbox,
        clock: Clock,
        formats: DeliveryFormats,
        tracer: Tracer | None = None,
    ) -> None:
        self._formats, self._tracer = formats, tracer
        self._push, self._queues, self._endpoints = push, queues, endpoints
        self._dead_letters, self._attempts, self._outbox, self._clock = dead_letters, attempts, outbox, clock
        self.flows: FlowCounters | None = None  # set where flows are counted

    async def send(
        self, record: SubscriptionRecord, message: OutgoingMessage, attempt: int, delivery: str | None = None
    ) -> AttemptResult:
        """One attempt, to wherever the subscription delivers. Does not raise for failures of the target.

        `delivery` names an ordered delivery of the topic, in which an ordered queue gets each message once.
        """
        span = None if self._tracer is None else begin_attempt(self._tracer, record, message.stored, attempt)
        if span is None:
            return await self._send_or_refuse(record, message, attempt, delivery, None)
        with span:
            result = await self._send_or_refuse(record, message, attempt, delivery, span)
            end_attempt(span, result)
            return result

    async def _send_or_refuse(
        self, record: SubscriptionRecord, message: OutgoingMessage, attempt: int, delivery: str | None, span: Span | None
    ) -> AttemptResult:
        """One attempt. A message that cannot be sent, for whatever reason, is refused. Raises PostroadError."""
        try:
            return await self._sending(record, message, attempt, delivery, span)
        except NotDeliverable as refused:
            return AttemptResult(Outcome.REFUSED, 0, error=storable(str(refused)))
        except PostroadError:
            raise
        except Exception as problem:  # a bug, or a message that no form has a place for
            log.exception("message_not_sent", subscription=record.id, sequence=message.stored.sequence)
            return _in_quarantine(reason_of("the message cannot be sent", problem))

    def _sending(
        self, record: SubscriptionRecord, message: OutgoingMessage, attempt: int, delivery: str | None, span: Span | None
    ) -> Awaitable[AttemptResult]:
        """The attempt, to be awaited: every coroutine between here and the connection costs each delivery."""
        form = self._formats.of(record)
        if record.delivery_type is DeliveryType.QUEUE:
            once = None
            if delivery is not None and record.ordering is Ordering.KEY:
                key = ordering_key(record, ReceivedMessage(message.stored))
                once = SequenceNumber(f"{delivery}\0{key}", message.stored.sequence)
            return self._queues.attempt(record, self._queue_message(record, message), record.queue or "", once, span)
        if form is not None:
            return self._push.attempt_formatted(record, message, form, span)
        try:
            endpoint = self._endpoints.of(record, self._clock())
        except DecryptionFailed:
            log.error("subscription_secret_unreadable", tenant=record.tenant, subscription=record.id)
            return _without_secret()
        return self._push.attempt(endpoint, message, attempt, span)

    def _queue_message(self, record: SubscriptionRecord, message: OutgoingMessage) -> StoredMessage:
        form = self._formats.of(record)
        if form is not None:
            return form.queue_message(record, message, self._clock())
        return queue_message(record, message.stored, self._clock())

    async def attempt_again(self, record: SubscriptionRecord, message: OutgoingMessage, attempt: int) -> AttemptResult:
        """One attempt for a dead letter. It is counted and logged like others, and does not change what the owner of the
        subscription knows: its progress and its breaker. Raises PostroadError."""
        result = await self.send(record, message, attempt)
        now_ms, is_delivered = self._clock(), result.outcome is Outcome.DELIVERED
        _counter(record.delivery_type, result.outcome).inc()
        if is_delivered:
            metrics.delivered.add(record.tenant)
        if not is_delivered or self._attempts.takes_success(record, now_ms - result.duration_ms):
            self._log(record, message.stored, attempt, result, now_ms)
        return result

    async def attempt(self, owned: OwnedSubscription, started: Started, message: OutgoingMessage) -> Decision:
        """Send and apply the result. A dead letter is durable before its message is settled. Raises EngineUnavailable."""
        record, cursor = owned.record, started.cursor.cursor
        started_ms = self._clock()
        is_live = started.cursor is owned.live
        delivery = record.delivery if is_live else f"{record.incarnation}/{started.cursor.name}"
        quarantine = cursor.quarantine(started.sequence)
        if quarantine:
            result = _in_quarantine(quarantine)
        elif self._tracer is None:
            result = await self._send_or_refuse(record, message, started.attempt, delivery, None)
        else:
            result = await self.send(record, message, started.attempt, delivery)
        now_ms = self._clock()
        decision = decide(
            result.outcome,
            started.attempt,
            cause=result.cause,
            max_deliver=record.max_deliver,
            retry_delays_ms=record.retry_delays_ms,
            retry_after_ms=result.retry_after_ms,
        )
        _counter(record.delivery_type, result.outcome).inc()
        if result.is_ours and result.outcome is Outcome.REFUSED:
            metrics.quarantined.add(record.tenant)
        if owned.is_released:
            return decision
        owned.count(result, now_ms)
        if self.flows is not None:
            is_delivered = result.outcome is Outcome.DELIVERED
            self.flows.add(
                record.tenant, f"topic:{record.topic}", f"subscription:{record.id}", int(is_delivered), int(not is_delivered)
            )
        self._record_health(owned, result)
        if is_live and owned.loops.add(message.stored, started_ms, now_ms):
            self._record_loop(record, message.stored)
        if decision.pause_ms:
            owned.paused_until_ms = max(owned.paused_until_ms, now_ms + decision.pause_ms)
        if decision.step is Step.DEAD_LETTER:
            await self._dead_letter(record, message, decision.reason, started.attempt, now_ms)
        if decision.step is Step.RETRY:
            cursor.retry(started.sequence, now_ms + decision.delay_ms)
        elif decision.step is Step.DISABLE:
            cursor.release(started.sequence)
        else:
            cursor.settle(started.sequence)
        if result.outcome is Outcome.DELIVERED:
            metrics.delivered.add(record.tenant)
            metrics.latency.observe(max(0, now_ms - message.stored.at_ms) / 1000)
            if not self._attempts.takes_success(record, now_ms - result.duration_ms):
                return decision
        next_ms = now_ms + decision.delay_ms if decision.step is Step.RETRY else None
        self._log(record, message.stored, started.attempt, result, now_ms, next_ms)
        return decision

    async def _dead_letter(
        self, record: SubscriptionRecord, outgoing: OutgoingMessage, reason: str, attempts: int, now_ms: int
    ) -> None:
        message = outgoing.stored
        if not await self._store_in_queue(record, outgoing, reason, attempts):
            await self._dead_letters.store(record, message, reason, attempts, now_ms)
        metrics.dead.add(record.tenant)
        self._outbox.record(
            None,
            DeliveryDead(
                tenant=record.tenant,
                subscription=record.id,
                topic=record.topic,
                sequence=message.sequence,
                subject=message.subject,
                reason=reason,
                attempt_count=attempts,
            ),
        )

    async def _store_in_queue(self, record: SubscriptionRecord, message: OutgoingMessage, reason: str, attempts: int) -> bool:
        """Publish a dead letter to the queue that the subscription names. False without one, or if the queue refuses it."""
        if record.dead_letter_queue is None:
            return False
        try:
            found = self._queue_message(record, message)
            letter = dead_letter(record, message.stored, found, reason, attempts)
            await self._queues.store(record, letter, record.dead_letter_queue)
        except (InvalidRequest, NotFound, NotDeliverable) as refused:
            log.warning("dead_letter_queue_refused", tenant=record.tenant, subscription=record.id, reason=storable(str(refused)))
            return False
        except PostroadError:
            raise
        except Exception:  # the queue has no form for it, as the target may have had none
            log.exception("dead_letter_queue_refused", tenant=record.tenant, subscription=record.id)
            return False
        return True

    def _record_health(self, owned: OwnedSubscription, result: AttemptResult) -> None:
        """Record the first opening of the breaker, and the first success after it."""
        record = owned.record
        if not owned.is_failing and owned.breaker.half_open_at_ms is not None:
            owned.is_failing = True
            self._outbox.record(
                None,
                SubscriptionFailing(
                    tenant=record.tenant, subscription=record.id, topic=record.topic, error=owned.last_error or ""
                ),
            )
        elif owned.is_failing and result.outcome is Outcome.DELIVERED:
            owned.is_failing = False
            self._outbox.record(None, SubscriptionRecovered(tenant=record.tenant, subscription=record.id, topic=record.topic))

    def _record_loop(self, record: SubscriptionRecord, message: StoredTopicMessage) -> None:
        metrics.suspected_loops.add(record.tenant)
        log.warning("loop_suspected", tenant=record.tenant, subscription=record.id, topic=record.topic)
        self._outbox.record(
            None,
            LoopSuspected(tenant=record.tenant, subscription=record.id, topic=record.topic, subject=message.subject),
        )

    def _log(
        self,
        record: SubscriptionRecord,
        message: StoredTopicMessage,
        attempt: int,
        result: AttemptResult,
        now_ms: int,
        next_ms: int | None = None,
    ) -> None:
        """Keep the attempt. `next_ms` is the time of the one that follows."""
        self._attempts.add(
            record,
            AttemptRecord(
                at=now_ms - result.duration_ms,
                seq=message.sequence,
                subject=message.subject,
                n=attempt,
                outcome=result.outcome.value,
                ms=result.duration_ms,
                status=result.status,
                error=result.error,
                body=result.response_body if result.outcome is not Outcome.DELIVERED else None,
                next=next_ms,
            ),
        )
