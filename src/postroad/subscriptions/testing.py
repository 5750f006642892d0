"""Test deliveries and tests of filters, which store nothing."""

from typing import Any

import msgspec

from postroad.api.subscription_tests import DeliveryTest, DeliveryTestResult, FilterTest, FilterTestResult
from postroad.api.subscriptions import DeliveryType
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PreconditionFailed
from postroad.kernel.json import at_field
from postroad.kernel.matching import pattern_matches
from postroad.kernel.media_types import JSON
from postroad.kernel.names import topic_subject
from postroad.subscriptions.attempter import Attempter
from postroad.subscriptions.content_filter import ContentFilter
from postroad.subscriptions.outgoing import OutgoingMessage, message_headers
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.validation import patterns_of
from postroad.topics.records import StoredTopicMessage
from postroad.topics.rules import check_subject

_HIDDEN = "***"


class DeliveryTester:
    def __init__(self, attempter: Attempter, clock: Clock) -> None:
        self._attempter, self._clock = attempter, clock

    async def deliver(self, record: SubscriptionRecord, wanted: DeliveryTest) -> DeliveryTestResult:
        """Send a message to the endpoint and return the complete attempt. Raises PreconditionFailed, BodyInvalid."""
        if record.delivery_type is not DeliveryType.HTTP_PUSH:
            raise PreconditionFailed("only subscriptions of the type http_push can be tested; publish a message instead")
        with at_field("$.subject"):
            subject = check_subject(wanted.subject)
        message = StoredTopicMessage(
            sequence=0,
            at_ms=self._clock(),
            subject=subject,
            nats_subject=f"{topic_subject(record.tenant, record.topic)}.{subject}",
            headers=dict(wanted.headers),
            content_type=JSON,
            traceparent=None,
            hops=0,
            body=msgspec.json.encode(wanted.payload),
        )
        result = await self._attempter.send(record, OutgoingMessage(message), 1)
        shown = dict.fromkeys(record.header_names, _HIDDEN)
        shown |= message_headers(record.topic, message, record.format) | dict(result.request_headers)
        return DeliveryTestResult(
            outcome=result.outcome.value,
            duration_ms=result.duration_ms,
            request_headers=shown,
            request_body=message.body.decode(),
            status=result.status,
            error=result.error,
            response_headers=dict(result.response_headers),
            response_body=result.response_body,
        )


def filter_result(wanted: FilterTest) -> FilterTestResult:
    """Raises BodyInvalid, FilterInvalid."""
    with at_field("$.subject"):
        subject = check_subject(wanted.subject)
    patterns = patterns_of(wanted.filter)
    content = ContentFilter(wanted.content_filter) if wanted.content_filter is not None else None
    headers = {name.lower(): value for name, value in wanted.headers.items()}
    payload: Any = wanted.payload
    subject_matches = any(pattern_matches(pattern, subject) for pattern in patterns)
    content_matches = content is None or content.matches(payload, headers)
    return FilterTestResult(
        matches=subject_matches and content_matches, subject_matches=subject_matches, content_matches=content_matches
    )
