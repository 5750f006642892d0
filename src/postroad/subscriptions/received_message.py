"""A message of a topic as subscriptions select it: by subject, payload and headers, each decoded once."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from postroad.kernel.matching import pattern_matches
from postroad.subscriptions.content_filter import MISSING, ContentFilter
from postroad.subscriptions.records import SubscriptionRecord
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

    def passes(self, content: ContentFilter | None) -> bool:
        if content is None:
            return True
        return content.matches(self.payload if content.needs_payload else MISSING, self.headers)


def has_matching_subject(record: SubscriptionRecord, subject: str) -> bool:
    return any(pattern_matches(pattern, subject) for pattern in record.patterns)


def ordering_key(record: SubscriptionRecord, message: ReceivedMessage) -> str:
    """The key within which messages are delivered in order: the subject, or the value of a header."""
    kind, _, name = record.ordering_key.partition(":")
    return message.stored.subject if kind == "subject" else message.headers.get(name.lower(), "")
