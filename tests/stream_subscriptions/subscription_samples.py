"""Subscription records for tests."""

from typing import Any

from postroad.stream_subscriptions.records import Kind, SubscriptionRecord


def at(number: int) -> str:
    return f"0000000000000000_{number:016d}"


def record(**changes: Any) -> SubscriptionRecord:
    given: dict[str, Any] = {
        "id": "sub",
        "tenant": "t",
        "kind": Kind.WEBHOOK,
        "pattern": "events/*",
        "webhook_url": "https://example.com/hook",
        "lease_ttl_ms": 30_000,
        "config_hash": "",
        "root": "http://here/v1/stream",
        "created_at_ms": 0,
    }
    return SubscriptionRecord(**{**given, **changes})
