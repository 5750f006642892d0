"""Event types of topics."""

from typing import ClassVar

from postroad.kernel.event import Event


class TopicEvent(Event, frozen=True, kw_only=True):
    """An event of one topic."""

    resource: ClassVar[tuple[str, str] | None] = ("topic", "topic")

    topic: str


class TopicChanged(TopicEvent, frozen=True, kw_only=True, tag="topic.changed"):
    """A topic was `created`, its settings were `updated`, or it was `deleted` with its messages: `change` is one of these."""

    version: int = 1
    change: str
    incarnation: str
    key_id: str = ""
    request_id: str = ""


class TopicPurged(TopicEvent, frozen=True, kw_only=True, tag="topic.purged"):
    """Messages of the topic were deleted: those whose subject matches `subject`, up to `to_sequence` if it is not null."""

    version: int = 1
    subject: str
    to_sequence: int | None = None
    count: int
    key_id: str = ""
    request_id: str = ""


class TopicSampled(TopicEvent, frozen=True, kw_only=True, tag="topic.sampled"):
    """Traffic and size of a topic that messages were published to in the last `seconds`. `published` counts them, `messages`
    and `bytes` are stored."""

    version: int = 1
    published: int
    messages: int
    bytes: int
    seconds: float


EVENTS: tuple[type[Event], ...] = (TopicChanged, TopicPurged, TopicSampled)
