"""Checks of requests, and the changes that they make to a subscription. Pure."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from postroad.api.subscriptions import (
    DeliveryType,
    NewSubscription,
    PushFormat,
    StartFrom,
    SubscriptionPatch,
)
from postroad.kernel.json import at_field, invalid_field
from postroad.subscriptions.content_filter import ContentFilter
from postroad.subscriptions.outgoing import is_own_header
from postroad.subscriptions.records import LIVE_TYPES, SubscriptionRecord
from postroad.topics.rules import check_pattern

_PLAIN_FIELDS = (
    "content_filter",
    "url",
    "queue",
    "max_deliver",
    "retry_delays_ms",
    "ack_wait_ms",
    "max_per_second",
    "max_in_flight",
    "ordering",
    "ordering_key",
    "format",
    "latest_only",
    "dead_letter_queue",
)
_SELECTION_FIELDS = frozenset({"delivery_type", "name", "filter", "content_filter", "latest_only"})
_LIVE_ONLY = "is for `sse` and `websocket` only"


def patterns_of(given: tuple[str, ...] | str, path: str = "$.filter") -> tuple[str, ...]:
    """The patterns, each once. Raises BodyInvalid with the path."""
    patterns = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
    for index, pattern in enumerate(patterns):
        with at_field(path if isinstance(given, str) else f"{path}[{index}]"):
            check_pattern(pattern)
    return patterns


def check_new(new: NewSubscription) -> None:
    """Check fields that depend on each other. Raises BodyInvalid, FilterInvalid."""
    if new.delivery_type in LIVE_TYPES:
        check_selection_only(new)
    elif new.latest_only is not None:
        raise invalid_field("$.latestOnly", _LIVE_ONLY)
    check_target(new.delivery_type, new.url, new.queue)
    check_format(new.format)
    if new.delivery_type is DeliveryType.QUEUE and (new.secret is not None or new.headers):
        raise invalid_field("$.secret" if new.secret is not None else "$.headers", "is for `http_push` only")
    check_headers(new.headers)
    if (new.start_sequence is not None) != (new.start_from is StartFrom.SEQUENCE):
        raise invalid_field("$.startSequence", "is required with `startFrom: sequence`, and only then")
    if (new.start_time is not None) != (new.start_from is StartFrom.TIME):
        raise invalid_field("$.startTime", "is required with `startFrom: time`, and only then")
    if new.content_filter is not None:
        ContentFilter(new.content_filter)


def check_format(given: PushFormat | UnsetType) -> None:
    """Raises BodyInvalid for a format that only another API sets."""
    if given is PushFormat.SNS:
        raise invalid_field("$.format", "`sns` is set by the SNS API")


def check_target(delivery_type: DeliveryType, url: str | None, queue: str | None) -> None:
    """Raises BodyInvalid unless exactly the target of the delivery type is given."""
    if (url is not None) != (delivery_type is DeliveryType.HTTP_PUSH):
        raise invalid_field("$.url", "is required for `http_push`, and only for it")
    if (queue is not None) != (delivery_type is DeliveryType.QUEUE):
        raise invalid_field("$.queue", "is required for `queue`, and only for it")


def check_selection_only(given: NewSubscription | SubscriptionPatch) -> None:
    """Raises BodyInvalid for a setting of deliveries: a subscription that clients read live only selects messages."""
    fields = msgspec.structs.fields(type(given))
    for one in fields:
        if one.name not in _SELECTION_FIELDS and getattr(given, one.name) != _default(one):
            raise invalid_field(
                f"$.{one.encode_name}", "is a setting of deliveries, and not for subscriptions that are read live"
            )


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises BodyInvalid for a header that deliveries set themselves."""
    for name in headers:
        if is_own_header(name):
            raise invalid_field("$.headers", f"{name[:100]!r} is set by the delivery")


def patched(record: SubscriptionRecord, patch: SubscriptionPatch, now_ms: int) -> SubscriptionRecord:
    """The record with the changes, other than headers, which are encrypted. Raises BodyInvalid, FilterInvalid."""
    if record.is_read_live:
        check_selection_only(patch)
    elif patch.latest_only is not UNSET:
        raise invalid_field("$.latestOnly", _LIVE_ONLY)
    changes: dict[str, Any] = {name: value for name in _PLAIN_FIELDS if (value := getattr(patch, name)) is not UNSET}
    check_format(patch.format)
    if patch.filter is not UNSET:
        changes["patterns"] = patterns_of(patch.filter)
    if changes.get("content_filter") is not None:
        ContentFilter(changes["content_filter"])
    changed = msgspec.structs.replace(record, **changes)
    check_target(changed.delivery_type, changed.url, changed.queue)
    return record if changed == record else msgspec.structs.replace(changed, updated_at_ms=now_ms)


def start_text(new: NewSubscription) -> str:
    """Where the delivery of a new subscription starts, as it was requested."""
    if new.start_sequence is not None:
        return f"sequence {new.start_sequence}"
    if new.start_time is not None:
        return f"time {int(new.start_time.timestamp() * 1000)}"
    return new.start_from.value


def differences(known: SubscriptionRecord, wanted: SubscriptionRecord) -> list[str]:
    """The settings, as the API calls them, in which a repeated request to create a subscription differs from what exists.

    Not those that are encrypted. Where delivery starts is unknown of subscriptions of before that was stored.
    """
    changed = {
        "delivery_type": known.delivery_type != wanted.delivery_type,
        "filter": known.patterns != wanted.patterns,
        "startFrom": known.start not in ("", wanted.start),
    }
    for field in msgspec.structs.fields(NewSubscription):
        if field.name in _PLAIN_FIELDS:
            changed[field.encode_name] = getattr(known, field.name) != getattr(wanted, field.name)
    return [name for name, is_different in changed.items() if is_different]
