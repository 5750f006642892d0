"""The span of an attempt to deliver a message of a topic: to an HTTP endpoint, or to a queue."""

from urllib.parse import urlsplit

from postroad.api.subscriptions import DeliveryType
from postroad.kernel.spans import Span, SpanKind, Tracer, current_span
from postroad.subscriptions.push_client import AttemptResult
from postroad.subscriptions.records import SubscriptionRecord
from postroad.topics.records import StoredTopicMessage
from postroad.tracing.messaging import ATTEMPT, SUBSCRIPTION, operation


def begin_attempt(tracer: Tracer, record: SubscriptionRecord, message: StoredTopicMessage, attempt: int) -> Span | None:
    """A child of the span that published the message; None if its trace is not sampled."""
    context = tracer.sampled_context(message.traceparent)
    if context is None:
        return None
    attributes = operation("deliver", "send", record.tenant, record.topic)
    attributes |= {SUBSCRIPTION: record.id, ATTEMPT: attempt, "messaging.postroad.topic.sequence": message.sequence}
    kind = SpanKind.CLIENT
    if record.delivery_type is DeliveryType.QUEUE:
        kind, attributes["messaging.postroad.queue"] = SpanKind.PRODUCER, record.queue or ""
    elif record.url is not None:  # without its path and query, which can contain a secret
        parts = urlsplit(record.url)
        attributes |= {"http.request.method": "POST", "server.address": parts.hostname or ""}
        attributes["server.port"] = parts.port or (443 if parts.scheme == "https" else 80)
    span = tracer.continue_from(context, f"deliver {record.topic}", kind, attributes, [context])
    current_span.set(span)  # for the log lines of this attempt
    return span


def end_attempt(span: Span, result: AttemptResult) -> None:
    if result.status is not None:
        span.attributes["http.response.status_code"] = result.status
    span.end(None if result.is_delivered else str(result.status) if result.status is not None else result.error or "failed")
