"""A message of a topic as subscriptions select it: by subject, payload and headers, each decoded once."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from postroad.kernel.matching import pattern_matches
from postroad.subscriptions.content_filter import ContentFilter
from postroad.subscriptions.filter_policy import FilterPolicy
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.sns_message import filter_values, sns_message
from postroad.subscriptions.value_tests import MISSING
from postroad.topics.records import StoredTopicMessage, json_payload


class ReceivedMessage:
    def __init__(self, stored: StoredTopicMessage) -> None:
        self.stored = stored

    @cached_property
    def payload(self) -> Any:
        raw = json_payload(self.stored)
        try:
            return MISSING if raw is None else msgspec.json.decode(raw)
        except (msgspec.DecodeError, RecursionError):
            return MISSING

    @cached_property
    def headers(self) -> Mapping[str, str]:
        """With lower-case names."""
        return {name.lower(): value for name, value in self.stored.headers.items()}

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        """As filter policies see them."""
        return filter_values(sns_message(self.stored).attributes)

    @cached_property
    def body_json(self) -> Any:
        """The body as JSON, whatever its content type."""
        try:
            return msgspec.json.decode(self.stored.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return MISSING

    def passes(self, filters: Sequence[ContentFilter | FilterPolicy]) -> bool:
        return all(self._passes(one) for one in filters)

    def _passes(self, one: ContentFilter | FilterPolicy) -> bool:
        if isinstance(one, FilterPolicy):
            return one.matches(self.body_json, {}) if one.needs_payload else one.matches(MISSING, self.attributes)
        return one.matches(self.payload if one.needs_payload else MISSING, self.headers)


def message_filters(record: SubscriptionRecord) -> tuple[ContentFilter | FilterPolicy, ...]:
    """The filters of a subscription, all of which a message must pass."""
    filters: list[ContentFilter | FilterPolicy] = []
    if record.content_filter is not None:
        filters.append(ContentFilter(record.content_filter))
    if record.sns is not None and (policy := record.sns.attributes.get("FilterPolicy")):
        body = record.sns.attributes.get("FilterPolicyScope") == "MessageBody"
        filters.append(FilterPolicy(policy, "MessageBody" if body else "MessageAttributes"))
    return tuple(filters)


def has_matching_subject(record: SubscriptionRecord, subject: str) -> bool:
    return any(pattern_matches(pattern, subject) for pattern in record.patterns)


def ordering_key(record: SubscriptionRecord, message: ReceivedMessage) -> str:
    """The key within which messages are delivered in order: the subject, the group, or the value of a header."""
    kind, _, name = record.ordering_key.partition(":")
    if kind == "group":
        return message.stored.group or ""
    return message.stored.subject if kind == "subject" else message.headers.get(name.lower(), "")
