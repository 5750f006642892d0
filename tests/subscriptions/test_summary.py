"""The sentence of a subscription's status."""

from typing import Any

import pytest

from postroad.api.subscriptions import DeliveryType, SubscriptionState
from postroad.subscriptions.delivery_cursor import CursorState
from postroad.subscriptions.records import ProgressRecord, SubscriptionRecord
from postroad.subscriptions.summary import live_summary, summary

NOW_MS = 1_800_000_000_000


def record(**changes: Any) -> SubscriptionRecord:
    fields: dict[str, Any] = {
        "id": "s1",
        "incarnation": "i1",
        "tenant": "acme",
        "topic": "orders",
        "topic_incarnation": "t1",
        "delivery_type": DeliveryType.HTTP_PUSH,
        "patterns": (">",),
        "start_after": 0,
        "max_deliver": 20,
        "retry_delays_ms": (1000,),
        "ack_wait_ms": 25_000,
        "max_in_flight": 8,
        "created_at_ms": NOW_MS,
        "updated_at_ms": NOW_MS,
    }
    return SubscriptionRecord(**fields | changes)


def progress(**changes: Any) -> ProgressRecord:
    fields: dict[str, Any] = {"owner": "d1", "at_ms": NOW_MS, "cursor": CursorState(read_to=0)}
    return ProgressRecord(**fields | changes)


@pytest.mark.parametrize(
    ("last_error", "lag", "dead", "expected"),
    [
        (None, 0, 0, "Everything is delivered."),
        (None, 1, 0, "Delivering; 1 message is not delivered yet."),
        ("HTTP 500", 1, 0, "Retrying after HTTP 500; 1 message is not delivered yet."),
        ("HTTP 500", 2, 1, "Retrying after HTTP 500; 2 messages are not delivered yet."),
        ("HTTP 400", 0, 1, "Everything else is delivered; 1 message is a dead letter, the last one after HTTP 400."),
        (None, 0, 2, "Everything else is delivered; 2 messages are dead letters."),
    ],
)
def test_what_is_delivered(last_error: str | None, lag: int, dead: int, expected: str) -> None:
    assert summary(record(), progress(last_error=last_error), lag, dead, ["d1"], NOW_MS) == expected


def test_why_nothing_is_delivered() -> None:
    paused = record(state=SubscriptionState.PAUSED)
    assert summary(paused, progress(), 1, 0, ["d1"], NOW_MS) == "Paused; 1 message waits until it is resumed."
    assert summary(record(), progress(), 2, 0, [], NOW_MS) == "No delivery process runs; 2 messages wait."
    assert summary(record(), None, 1, 0, ["d1"], NOW_MS).endswith("about to take it over; 1 message waits.")


def test_where_clients_read() -> None:
    assert "at /v1/ws/s1;" in live_summary(record(delivery_type=DeliveryType.WEBSOCKET))
    assert "at /v1/subscriptions/s1/stream;" in live_summary(record(delivery_type=DeliveryType.SSE))
