"""CloudEvents as messages of queues and topics, and back: the attributes are headers of the message (docs/cloudevents.md)."""

import base64
from collections.abc import Mapping
from urllib.parse import quote

import msgspec
from msgspec import UNSET

from postroad.api.queues import Message, NewMessage
from postroad.api.topics import NewTopicMessage
from postroad.kernel.cloudevents import (
    PREFIX,
    TYPES,
    Attribute,
    CloudEvent,
    from_headers,
    to_headers,
    to_json,
    types_of,
    with_types,
)
from postroad.kernel.errors import BodyInvalid
from postroad.kernel.media_types import BYTES, is_json

CONTENT_TYPE, ENCODING = "X-MQ-Content-Type", "X-MQ-Encoding"  # headers of a message in a queue
QUEUE_MESSAGE = "postroad.queue.message"  # type of a message that was not published as an event
_SPEC_VERSION = PREFIX + "specversion"
_NOTHING = msgspec.Raw(b"null")

# In


def event_headers(event: CloudEvent) -> dict[str, str]:
    """The headers of a message that keep the attributes, but for the content type."""
    types = types_of(event)
    return to_headers(event) | ({TYPES: types} if types else {})


def queue_message(event: CloudEvent) -> NewMessage:
    """Data that is not JSON is a base64 text, marked by a header, like that of a topic. No data is null."""
    headers, payload = event_headers(event), _NOTHING
    if "datacontenttype" in event.attributes:
        headers[CONTENT_TYPE] = event.content_type
    if event.data is not None and is_json(event.content_type):
        payload = msgspec.Raw(event.data)
    elif event.data is not None:
        headers[ENCODING] = "base64"
        payload = msgspec.Raw(msgspec.json.encode(base64.b64encode(event.data).decode()))
    return NewMessage(payload=payload, headers=headers, idempotency_key=event.key)


def topic_message(event: CloudEvent) -> NewTopicMessage:
    """The subject is the event's type. No data is an empty body."""
    is_payload = event.data is not None and is_json(event.content_type)
    return NewTopicMessage(
        subject=str(event.attributes["type"]),
        payload=msgspec.Raw(event.data or b"") if is_payload else UNSET,
        body_b64=UNSET if is_payload else base64.b64encode(event.data or b"").decode(),
        content_type=event.content_type,
        headers=event_headers(event),
        idempotency_key=event.key,
    )


# Out


def stored_event(headers: Mapping[str, str], content_type: str | None, data: bytes | None) -> CloudEvent | None:
    """The event of a message; None if the message was not published as an event, or its headers are not those of one."""
    if not is_event(headers):
        return None
    try:
        event = from_headers(headers.items(), content_type, data)
    except BodyInvalid:  # any publisher may use such headers
        return None
    return with_types(event, headers[TYPES]) if TYPES in headers else event


def is_event(headers: Mapping[str, str]) -> bool:
    """True if a message with these headers was published as an event."""
    return _SPEC_VERSION in headers


def made_event(data: bytes | None, content_type: str | None, **attributes: str) -> CloudEvent:
    """The event of a message that was not published as one."""
    given: dict[str, Attribute] = {"specversion": "1.0", **attributes}
    if content_type is not None:
        given["datacontenttype"] = content_type
    return CloudEvent(given, data)


def event_of_message(message: Message, queue: str) -> CloudEvent:
    """The event of a leased message."""
    content_type, data = message.headers.get(CONTENT_TYPE), _data_of(message)
    made = stored_event(message.headers, content_type, data) or made_event(
        data,
        content_type,
        id=message.message_id,
        source=f"/v1/queues/{quote(queue, safe='')}",
        type=QUEUE_MESSAGE,
        time=message.enqueued_at,
    )
    if message.traceparent is None or "traceparent" in made.attributes:
        return made
    return CloudEvent({**made.attributes, "traceparent": message.traceparent}, data)


def _data_of(message: Message) -> bytes | None:
    payload = bytes(message.raw_payload)
    if payload == b"null":
        return None
    if message.headers.get(ENCODING) != "base64":
        return payload
    try:
        return base64.b64decode(msgspec.json.decode(payload, type=str), validate=True)
    except ValueError:  # another publisher's header
        return payload


def delivery_attributes(message: Message) -> dict[str, Attribute]:
    """Attributes that identify the lease of a message. They are not stored if the event is published again."""
    return {
        "postroadreceipt": message.receipt_id,
        "postroadmessageid": message.message_id,
        "postroadjobid": message.job_id,
        "postroadattempt": message.attempt,
    }


def leased_event(message: Message, queue: str) -> bytes:
    """The event of a leased message with the attributes of its lease, as JSON."""
    return to_json(event_of_message(message, queue), delivery_attributes(message))


def event_of_topic_message(
    topic: str, headers: Mapping[str, str], *, sequence: int, subject: str, time: str, content_type: str | None, body: bytes
) -> CloudEvent:
    """The event of a message of a topic."""
    data = body or None
    return stored_event(headers, content_type if data is not None else None, data) or made_event(
        data,
        content_type or BYTES,
        id=str(sequence),
        source=f"/v1/topics/{quote(topic, safe='')}",
        type=subject,
        subject=subject,
        time=time,
    )


def telemetry_event(line: bytes, name: str, event_id: str, tenant: str, time: str = "") -> bytes:
    """An event of the tenant's telemetry as JSON. Its data is the event as it is stored."""
    source = f"/v1/tenants/{quote(tenant, safe='')}"
    attributes = {"id": event_id, "source": source, "type": f"postroad.{name}"} | ({"time": time} if time else {})
    return to_json(made_event(line, "application/json", **attributes))
