"""`client.topics`: topics and their messages."""

import base64
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from postroad.api.topics import PublishedTopicMessage, TopicBatchResult, TopicMessage, TopicMessagePage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, live, operation, pages
from postroad.client.cloudevents import one_event, some_events
from postroad.client.encoding import Moment, given, hops_header, moment, segment
from postroad.client.generated.topics import TopicsCalls
from postroad.client.topic_follower import OnNotice, TopicFollower


def _path(topic: str, rest: str = "") -> str:
    return f"/v1/topics/{segment(topic)}{rest}"


class TopicCalls(TopicsCalls):
    @operation
    def publish(
        self,
        topic: str,
        subject: str,
        payload: Any,
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        is_repeatable: bool = True,
        hops: int | None = None,
    ) -> Call[PublishedTopicMessage]:
        """Publish a message; return its position once it is stored durably. A `payload` of bytes is sent as it is, else as JSON.

        Without an idempotency key one is generated, so that a retry after a lost response does not publish a second message.
        With `is_repeatable=False` no key is generated, and the call is not retried. `hops`: those of the delivery that this
        message responds to, so that a loop ends. Raises TopicNotFound, TopicFed, SchemaMismatch, IdempotencyMismatch,
        LoopDetected.
        """
        key = idempotency_key or (str(uuid.uuid4()) if is_repeatable else None)
        body = {"subject": subject, "headers": dict(headers or {})} | given(contentType=content_type, idempotencyKey=key)
        body |= _content(payload)
        return Call(
            method="POST",
            path=_path(topic, "/messages"),
            headers=hops_header(hops),
            body=body,
            response=PublishedTopicMessage,
            is_repeatable=key is not None,
        )

    @operation
    def publish_batch(
        self, topic: str, messages: Sequence[Mapping[str, Any]], *, hops: int | None = None
    ) -> Call[TopicBatchResult]:
        """Publish up to 1,000 messages, each a mapping with `subject`, `payload` and the other fields of the API.

        A `payload` of bytes is sent as it is. The result has an item for each message, in order. The call is retried only if
        every message has an `idempotencyKey`.
        """
        is_repeatable = all("idempotencyKey" in message for message in messages)
        body = {"messages": [_message(message) for message in messages]}
        return Call(
            method="POST",
            path=_path(topic, "/messages/batch"),
            headers=hops_header(hops),
            body=body,
            response=TopicBatchResult,
            is_repeatable=is_repeatable,
        )

    @operation
    def publish_event(self, topic: str, event: Mapping[str, Any]) -> Call[PublishedTopicMessage]:
        """Publish a CloudEvents 1.0 event, a mapping in its JSON format. Its `type` is the subject of the message, `source` and
        `id` are the idempotency key, and its attributes are headers `ce-…`. Raises BodyInvalid, IdempotencyMismatch."""
        return Call(method="POST", path=_path(topic, "/messages"), body=one_event(event), response=PublishedTopicMessage)

    @operation
    def publish_events(self, topic: str, events: Sequence[Mapping[str, Any]]) -> Call[TopicBatchResult]:
        """Publish up to 1,000 CloudEvents; the result has an item for each, in order."""
        return Call(method="POST", path=_path(topic, "/messages/batch"), body=some_events(events), response=TopicBatchResult)

    @pages
    def messages(
        self,
        topic: str,
        *,
        subject: str | Sequence[str] = (),
        from_sequence: int | None = None,
        to_sequence: int | None = None,
        from_time: Moment | None = None,
        to_time: Moment | None = None,
        page_size: int = 100,
    ) -> Pages[TopicMessage]:
        """The messages of a range, oldest first: those whose subject matches the pattern, or one of several.

        `to_sequence` is included, `to_time` is not. Raises TopicNotFound.
        """
        query = _range_query(subject, from_sequence, to_sequence, from_time, to_time) | {"limit": page_size}
        return Pages(call=Call(method="GET", path=_path(topic, "/messages"), query=query, response=TopicMessagePage))

    @operation
    def messages_page(
        self,
        topic: str,
        *,
        subject: str | Sequence[str] = (),
        from_sequence: int | None = None,
        to_sequence: int | None = None,
        from_time: Moment | None = None,
        to_time: Moment | None = None,
        count: bool = False,
        page_size: int = 100,
        cursor: str | None = None,
    ) -> Call[TopicMessagePage]:
        """One page of `messages`, with the next cursor and, with `count`, the number of messages in the whole range."""
        query = _range_query(subject, from_sequence, to_sequence, from_time, to_time)
        query |= {"count": count or None, "limit": page_size, "cursor": cursor}
        return Call(method="GET", path=_path(topic, "/messages"), query=query, response=TopicMessagePage)

    @live
    def follow(
        self,
        topic: str,
        *,
        filter: str | Sequence[str] = (),  # noqa: A002  # the name of the query parameter
        from_sequence: int | None = None,
        from_time: Moment | None = None,
        latest_only: int | None = None,
        last_event_id: str | None = None,
        on_notice: OnNotice | None = None,
    ) -> TopicFollower:
        """The messages of a topic as they are published: from now on, or from a sequence or a time. `latest_only`: of each
        subject, only the newest message in so many milliseconds.

        Connects again after an interruption and continues after the last message: each is returned once, in order. `on_notice`
        is called with a `TopicReady`, `TopicGap` or `TopicReset`; without it, gaps and resets are logged as warnings. Raises
        TopicNotFound and other permanent errors.
        """
        patterns = [filter] if isinstance(filter, str) else list(filter)
        query = {
            "filter": patterns or None,
            "fromSequence": from_sequence,
            "fromTime": moment(from_time),
            "latestOnly": latest_only,
        }
        return TopicFollower(_path(topic, "/stream"), query, last_event_id, on_notice)


def _range_query(
    subject: str | Sequence[str],
    from_sequence: int | None,
    to_sequence: int | None,
    from_time: Moment | None,
    to_time: Moment | None,
) -> dict[str, object]:
    patterns = [subject] if isinstance(subject, str) else list(subject)
    return {
        "subject": patterns or None,
        "fromSequence": from_sequence,
        "toSequence": to_sequence,
        "fromTime": moment(from_time),
        "toTime": moment(to_time),
    }


def _content(payload: Any) -> dict[str, Any]:
    if isinstance(payload, bytes | bytearray | memoryview):
        return {"body_b64": base64.b64encode(payload).decode()}
    return {"payload": payload}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    given_fields = dict(message)
    return given_fields | _content(given_fields.pop("payload")) if "payload" in given_fields else given_fields


class Topics(TopicCalls, SyncNamespace):
    pass


class AsyncTopics(TopicCalls, AsyncNamespace):
    pass
