"""Event types of subscriptions."""

from typing import ClassVar

from postroad.kernel.event import Event


class SubscriptionEvent(Event, frozen=True, kw_only=True):
    """An event of one subscription. Keys that are restricted to some topics see the events of these only."""

    resource: ClassVar[tuple[str, str] | None] = ("topic", "topic")

    subscription: str
    topic: str


class SubscriptionChanged(SubscriptionEvent, frozen=True, kw_only=True, tag="subscription.changed"):
    """A subscription was `created`, `confirmed`, `updated`, `paused`, `resumed`, `deleted`, or `disabled` for a `reason`."""

    version: int = 1
    change: str
    reason: str = ""
    key_id: str = ""
    request_id: str = ""


class SubscriptionFailing(SubscriptionEvent, frozen=True, kw_only=True, tag="subscription.failing"):
    """The circuit breaker of a subscription opened after repeated failures, the last of which is `error`."""

    version: int = 1
    error: str


class SubscriptionRecovered(SubscriptionEvent, frozen=True, kw_only=True, tag="subscription.recovered"):
    """A delivery succeeded after `subscription.failing`."""

    version: int = 1


class DeliverySampled(SubscriptionEvent, frozen=True, kw_only=True, tag="delivery.sampled"):
    """Attempts of a subscription in the last `seconds`, if there were any."""

    version: int = 1
    seconds: float
    delivered: int
    failed: int
    open: int


class DeliveryDead(SubscriptionEvent, frozen=True, kw_only=True, tag="delivery.dead"):
    """A message could not be delivered and is a dead letter now."""

    version: int = 1
    sequence: int
    subject: str
    reason: str
    attempt_count: int


class LoopSuspected(SubscriptionEvent, frozen=True, kw_only=True, tag="loop.suspected"):
    """A key of a bucket, the `subject`, was changed during the delivery of its previous change, 10 times in a row: the receiver
    seems to write back to the bucket."""

    version: int = 1
    subject: str


EVENTS: tuple[type[Event], ...] = (
    SubscriptionChanged,
    SubscriptionFailing,
    SubscriptionRecovered,
    DeliverySampled,
    DeliveryDead,
    LoopSuspected,
)
