"""One attempt to deliver a message of a topic to a queue of the same tenant.

The ids of the queue's message and job are derived from subscription and sequence, and the engine refuses a second copy for a
minute: an attempt that is repeated after a lost response or a crash does not store the message twice in that time. A subscription
that delivers in order to an ordered queue stores each message once, whenever it is repeated.
"""

import asyncio
import base64
from typing import NamedTuple

import msgspec

from postroad.api.cloudevents import CONTENT_TYPE, ENCODING, is_event
from postroad.api.queues import QueueNotFound
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import InvalidRequest, PostroadError
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.ids import derived_id
from postroad.kernel.spans import Span
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.numbered_deliveries import NumberedDeliveries
from postroad.queues.publishing import Publisher
from postroad.queues.records import StoredMessage
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.push_client import AttemptResult
from postroad.subscriptions.quarantine import storable
from postroad.subscriptions.records import SubscriptionRecord
from postroad.topics.records import StoredTopicMessage, json_payload
from postroad.tracing.messaging import describe

_REASON_CHARS_MAX = 512


class SequenceNumber(NamedTuple):
    """A message's number in a sequence of deliveries, of which each is made once."""

    sequence: str
    number: int


class QueueTarget:
    def __init__(self, publisher: Publisher, queues: QueueLifecycle, numbered: NumberedDeliveries) -> None:
        self._publisher, self._queues, self._numbered = publisher, queues, numbered

    async def attempt(
        self,
        record: SubscriptionRecord,
        message: StoredMessage,
        queue: str,
        once: SequenceNumber | None = None,
        span: Span | None = None,
    ) -> AttemptResult:
        """Store the message in the queue; in an ordered queue only if `once` was not stored before. Does not raise for failures
        of the queue. `span`: that of the attempt, which the message carries."""
        if span is not None:
            message = msgspec.structs.replace(message, trace=span.traceparent)
            describe(span, message.id, message.job, len(bytes(message.payload)))
        started = asyncio.get_running_loop().time()
        outcome, error = Outcome.DELIVERED, None
        try:
            if record.sns is not None and self._queues.cached(record.tenant, queue) is None:
                await self._queues.find(record.tenant, queue)  # one that was deleted must not be created by a delivery
            target = None if once is None else self._queues.cached(record.tenant, queue)
            if once is not None and target is not None and target.is_ordered:
                await self._numbered.deliver(_context(record, message), target, message, once.sequence, once.number)
            else:
                await self.store(record, message, queue)
        except InvalidRequest as problem:
            outcome, error = Outcome.REFUSED, storable(f"{problem.code}: {problem.detail}")
        except PostroadError as problem:
            is_final = record.sns is not None and isinstance(problem, QueueNotFound)
            outcome = Outcome.REFUSED if is_final else Outcome.TRANSIENT
            error = storable(f"{problem.code}: {problem.detail}")
        return AttemptResult(outcome, int((asyncio.get_running_loop().time() - started) * 1000), error=error)

    async def store(self, record: SubscriptionRecord, message: StoredMessage, queue: str) -> None:
        """Return once the message is durable. Raises PostroadError."""
        await self._publisher.deliver(_context(record, message), queue, message)


def _context(record: SubscriptionRecord, message: StoredMessage) -> RequestContext:
    caller = Caller(record.tenant, "", frozenset({Scope.PUBLISH}), name="subscription")
    return RequestContext(caller, traceparent=message.trace)


def queue_message(record: SubscriptionRecord, message: StoredTopicMessage, now_ms: int) -> StoredMessage:
    """The message as it is stored in the queue. A body that is not JSON is a base64 text, marked by a header."""
    payload = json_payload(message)
    headers = dict(message.headers) | {
        "X-MQ-Topic": record.topic,
        "X-MQ-Subject": message.subject,
        "X-MQ-Id": str(message.sequence),
        "X-MQ-Hops": str(message.hops + 1),
    }
    if record.is_replayed(message.sequence):
        headers["X-MQ-Replayed"] = "true"
    if payload is not None and is_event(message.headers) and message.content_type is not None:
        headers[CONTENT_TYPE] = message.content_type
    if payload is None and not message.body and is_event(message.headers):
        payload = msgspec.Raw(b"null")  # an event without data
    if payload is None:
        headers |= {ENCODING: "base64", CONTENT_TYPE: message.content_type or "application/octet-stream"}
        payload = msgspec.Raw(msgspec.json.encode(base64.b64encode(message.body).decode()))
    return StoredMessage(
        v=1,
        id=derived_id(message.at_ms, record.delivery, message.sequence, "message"),
        job=derived_id(message.at_ms, record.delivery, message.sequence, "job"),
        at=now_ms,
        headers=headers,
        trace=message.traceparent,
        group=message.group or "",
        payload=payload,
    )


def dead_letter(
    record: SubscriptionRecord, message: StoredTopicMessage, found: StoredMessage, reason: str, attempts: int
) -> StoredMessage:
    """A message as the dead-letter queue of the subscription gets it: with the reason, and with ids of its own."""
    headers = dict(found.headers) | {
        "X-MQ-Dead-Reason": reason[:_REASON_CHARS_MAX],
        "X-MQ-Dead-Attempts": str(attempts),
        "X-MQ-Subscription": record.id,
    }
    return msgspec.structs.replace(
        found,
        id=derived_id(message.at_ms, record.delivery, message.sequence, "dead message"),
        job=derived_id(message.at_ms, record.delivery, message.sequence, "dead job"),
        headers=headers,
    )
