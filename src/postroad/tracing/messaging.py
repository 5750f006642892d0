"""Spans of messages, with the names and attributes of OpenTelemetry's conventions for messaging.

An operation on behalf of a request belongs to the request's span, and links to the messages. Work on a message of a sampled trace
is recorded in that trace, too, as a child of the span that published it: so a trace shows what became of its messages, whatever
their consumers send.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from postroad.kernel.context import RequestContext
from postroad.kernel.spans import Attribute, Span, SpanContext, SpanKind, Tracer

T = TypeVar("T")

_LINKS_MAX = 128  # as the SDKs of OpenTelemetry have
_SYSTEM = "postroad"
MESSAGE_ID, JOB_ID, ATTEMPT = "messaging.message.id", "messaging.postroad.job.id", "messaging.postroad.attempt"
COUNT, FAILED, SIZE = "messaging.batch.message_count", "messaging.postroad.failed_count", "messaging.message.body.size"
CONVERSATION = "messaging.message.conversation_id"
SUBSCRIPTION = "messaging.destination.subscription.name"


class TracedMessage(NamedTuple):
    """A message that was received or settled. `context`: that of its trace if it is sampled."""

    message_id: str
    job_id: str
    attempt: int
    context: SpanContext | None


def operation(name: str, kind: str, tenant: str, destination: str) -> dict[str, Attribute]:
    """The attributes of every span of messages; `kind` is the type of the operation."""
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": destination,
        "messaging.postroad.tenant": tenant,
    }


def publishing(context: RequestContext, parent: Span, destination: str) -> tuple[RequestContext, Span]:
    """The span of a publish, and the context of its messages: they carry the span, so their consumers continue from it."""
    attributes = operation("publish", "send", context.tenant, destination)
    span = parent.child(f"publish {destination}", SpanKind.PRODUCER, attributes)
    return msgspec.structs.replace(context, traceparent=span.traceparent, span=span), span


def appending(parent: Span, tenant: str, stream: str) -> Span:
    """The span of an append to a stream, whose data carry no trace."""
    return parent.child(f"append {stream}", SpanKind.CLIENT, operation("append", "send", tenant, stream))


def fanning_out(parent: Span, tenant: str, stream: str) -> Span:
    """The span of the copies of an appended message to the streams of subscribed sessions."""
    return parent.child(f"fan out {stream}", SpanKind.PRODUCER, operation("fan out", "send", tenant, stream))


def waking(tracer: Tracer, tenant: str, subscription: str) -> Span | None:
    """The first span of a trace: a webhook learns of new data in streams, of any number of traces."""
    span = tracer.begin(None, f"wake {subscription}", SpanKind.CLIENT)
    if span is not None:
        span.attributes = {**operation("wake", "send", tenant, subscription), "http.request.method": "POST"}
    return span


def describe(span: Span, message_id: str, job_id: str, size: int) -> None:
    """Add what is known of a single message that is published."""
    span.attributes |= {MESSAGE_ID: message_id, JOB_ID: job_id, SIZE: size}


def ending(span: Span, callback: Callable[[T], None]) -> Callable[[T], None]:
    """The callback, after the end of the span with the same outcome, which may be an error."""

    def end(outcome: T) -> None:
        span.end(outcome if isinstance(outcome, Exception) else None)
        callback(outcome)

    return end


def record_batch(span: Span, outcomes: Sequence[object]) -> None:
    """Describe a batch by the outcomes of its messages, of which some may be errors."""
    failed = sum(isinstance(one, Exception) for one in outcomes)
    span.attributes[COUNT] = len(outcomes)
    if failed:
        span.attributes[FAILED] = failed


def record_operation(
    tracer: Tracer,
    parent: Span | None,
    name: str,
    kind: str,
    tenant: str,
    destination: str,
    messages: Sequence[TracedMessage],
    start_ns: int,
) -> None:
    """Record that messages were received or settled for a request, whose span is `parent` if it is sampled."""
    title = f"{name} {destination}"
    span = None
    if parent is not None:
        attributes = operation(name, kind, tenant, destination)
        attributes[COUNT] = len(messages)
        if len(messages) == 1:
            attributes |= _of_message(messages[0])
        links = [one.context for one in messages if one.context is not None][:_LINKS_MAX]
        span = parent.child(title, SpanKind.CLIENT, attributes, links, start_ns)
        span.end()
    for one in messages:
        if one.context is None or (span is not None and one.context.trace_id == span.trace_id):
            continue
        attributes = operation(name, kind, tenant, destination) | _of_message(one)
        links = [one.context] if span is None else [one.context, span.context]
        tracer.continue_from(one.context, title, SpanKind.CLIENT, attributes, links, start_ns).end()


def _of_message(message: TracedMessage) -> dict[str, Attribute]:
    return {MESSAGE_ID: message.message_id, JOB_ID: message.job_id, ATTEMPT: message.attempt}
