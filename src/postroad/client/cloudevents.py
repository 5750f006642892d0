"""CloudEvents with the SDK: messages as events, and requests that publish events."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from postroad.api.cloudevents import event_of_message, event_of_topic_message
from postroad.api.queues import Message
from postroad.api.topics import TopicMessage
from postroad.client.calls import Content
from postroad.kernel.cloudevents import BATCH, EVENT, to_json

__all__ = ["cloud_event"]


def cloud_event(message: Message | TopicMessage, origin: str) -> dict[str, Any]:
    """The CloudEvent of a message as a dictionary in the JSON format. `origin`: its queue or topic, which makes the `source` of a
    message that was not published as an event."""
    if isinstance(message, Message):
        event = event_of_message(message, origin)
    else:
        event = event_of_topic_message(
            origin,
            message.headers,
            sequence=message.sequence,
            subject=message.subject,
            time=message.timestamp,
            content_type=message.content_type,
            body=message.body,
        )
    found: dict[str, Any] = msgspec.json.decode(to_json(event))
    return found


def one_event(event: Mapping[str, Any]) -> Content:
    return Content(msgspec.json.encode(dict(event)), EVENT)


def some_events(events: Sequence[Mapping[str, Any]]) -> Content:
    return Content(msgspec.json.encode([dict(one) for one in events]), BATCH)
