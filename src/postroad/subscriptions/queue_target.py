"""One attempt to deliver a message of a topic to a queue of the same tenant.

The ids of the queue's message and job are derived from subscription and sequence, and the engine refuses a second copy for a
minute: an attempt that is repeated after a lost response or a crash does not store the message twice in that time.
"""

import asyncio
import base64

import msgspec

from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import InvalidRequest, PostroadError
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.ids import derived_id
from postroad.queues.publishing import Publisher
from postroad.queues.records import StoredMessage
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.push_client import AttemptResult
from postroad.subscriptions.records import SubscriptionRecord
from postroad.topics.records import StoredTopicMessage, json_payload


class QueueTarget:
    def __init__(self, publisher: Publisher, clock: Clock) -> None:
        self._publisher, self._clock = publisher, clock

    async def attempt(self, record: SubscriptionRecord, message: StoredTopicMessage) -> AttemptResult:
        """Store the message in the queue. Does not raise for failures of the queue."""
        started = asyncio.get_running_loop().time()
        outcome, error = Outcome.DELIVERED, None
        try:
            await self._store(record, message)
        except InvalidRequest as problem:
            outcome, error = Outcome.REFUSED, f"{problem.code}: {problem.detail}"
        except PostroadError as problem:
            outcome, error = Outcome.TRANSIENT, f"{problem.code}: {problem.detail}"
        return AttemptResult(outcome, int((asyncio.get_running_loop().time() - started) * 1000), error=error)

    async def _store(self, record: SubscriptionRecord, message: StoredTopicMessage) -> None:
        caller = Caller(record.tenant, "", frozenset({Scope.PUBLISH}), name="subscription")
        context = RequestContext(caller, traceparent=message.traceparent)
        await self._publisher.deliver(context, record.queue or "", queue_message(record, message, self._clock()))


def queue_message(record: SubscriptionRecord, message: StoredTopicMessage, now_ms: int) -> StoredMessage:
    """The message as it is stored in the queue. A body that is not JSON is a base64 text, marked by a header."""
    payload = json_payload(message)
    headers = dict(message.headers) | {
        "X-MQ-Topic": record.topic,
        "X-MQ-Subject": message.subject,
        "X-MQ-Id": str(message.sequence),
        "X-MQ-Hops": str(message.hops + 1),
    }
    if payload is None:
        headers |= {"X-MQ-Encoding": "base64", "X-MQ-Content-Type": message.content_type or "application/octet-stream"}
        payload = msgspec.Raw(msgspec.json.encode(base64.b64encode(message.body).decode()))
    return StoredMessage(
        v=1,
        id=derived_id(message.at_ms, record.incarnation, message.sequence, "message"),
        job=derived_id(message.at_ms, record.incarnation, message.sequence, "job"),
        at=now_ms,
        headers=headers,
        trace=message.traceparent,
        payload=payload,
    )
