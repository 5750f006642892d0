"""Scenarios of the demo's three tenants. Data only: edit a scenario here.

Together they give every report of `postroad insights` and `postroad report` content: a fast queue, bursts, a failing consumer, a
consumer that is too slow, a queue without consumers.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """Planned outcome of a message. The publisher writes it into a header, so that it depends on the seed alone."""

    SUCCESS = "success"
    FAILS_ONCE = "fails-once"
    FAILS_ALWAYS = "fails-always"  # until it has no attempts left
    REJECTED_ON_RETRY = "rejected-on-retry"  # fails once, then the consumer dead-letters it
    REJECTED = "rejected"  # dead-lettered at the first attempt, until the cause is repaired


@dataclass(frozen=True, slots=True)
class OutcomeShare:
    """Percentage of a queue's messages with this outcome and reason."""

    percent: float
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Consumer:
    """Consumers of a queue, each of which pulls `batch` messages and takes a time from the range `processing_ms` for each.

    A `capacity` below 1 is the share of the arrival rate that is consumed, by one consumer, at any rate. After the share `until`
    of the run's time they consume nothing any more.
    """

    count: int = 2
    batch: int = 20
    processing_ms: tuple[float, float] = (2.0, 15.0)
    capacity: float = 1.0
    until: float = 1.0


@dataclass(frozen=True, slots=True)
class QueueScenario:
    """Traffic of a queue: its `share` of all published messages, and about every `burst_seconds` a burst of `burst_size` messages
    (at a rate of 50 a second). With `delay_ms` every message is delayed by a time from this range."""

    name: str
    share: float
    consumer: Consumer | None = field(default_factory=Consumer)
    outcomes: tuple[OutcomeShare, ...] = ()
    burst_seconds: float = 0.0
    burst_size: int = 0
    delay_ms: tuple[int, int] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def max_attempts(self) -> int:
        return int(self.settings.get("max_attempts", 10))

    @property
    def consumer_count(self) -> int:
        if self.consumer is None:
            return 0
        return 1 if self.consumer.capacity < 1 else self.consumer.count


@dataclass(frozen=True, slots=True)
class Redrive:
    """At the share `at` of the run's time the cause of this reason is repaired, and its dead letters are redriven."""

    queue: str
    reason: str
    at: float = 0.6


@dataclass(frozen=True, slots=True)
class SubscriptionScenario:
    """An endpoint of a topic. Its host does not exist: deliveries fail, as they do while an endpoint is down."""

    name: str
    url: str
    filter: tuple[str, ...] = (">",)
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class EventsScenario:
    """A topic with subscriptions, and a bucket whose values change. The rates are for 50 messages a second in all."""

    topic: str
    subscriptions: tuple[SubscriptionScenario, ...]
    bucket: str
    articles: tuple[str, ...]
    events_per_second: float = 2.0
    changes_per_second: float = 0.5


@dataclass(frozen=True, slots=True)
class TenantScenario:
    """Queues, a `feed` stream that is appended to and followed, and streams that sessions subscribe to, some of them by the
    `pattern`. The rates are for 50 messages a second in all."""

    name: str
    description: str
    queues: tuple[QueueScenario, ...]
    feed: str
    appends_per_second: float
    session_streams: tuple[str, ...]
    pattern: str
    publishes_per_second: float
    sessions_per_minute: float
    redrives: tuple[Redrive, ...] = ()
    events: EventsScenario | None = None


DAY_MS = 86_400_000
_RETRY_DELAYS_MS = [500, 1500, 3000]
_NO_TEMPLATE = "no template order-shipped.de"
_BAD_KEY = "401 from the partner: the API key is not valid"

SHOP = TenantScenario(
    name="demo-shop",
    description="Postroad demo: a shop, with bursts of orders and e-mails that fail",
    queues=(
        QueueScenario("orders", 0.20, burst_seconds=20, burst_size=120, settings={"expected_drain_seconds": 30}),
        QueueScenario(
            "emails",
            0.14,
            Consumer(count=2, batch=10, processing_ms=(10, 60)),
            outcomes=(
                OutcomeShare(10, Outcome.FAILS_ONCE, "421 the mail server is busy"),
                OutcomeShare(4, Outcome.FAILS_ALWAYS, "connection to mail.example timed out"),
                OutcomeShare(3, Outcome.REJECTED_ON_RETRY, "550 no such mailbox"),
                OutcomeShare(6, Outcome.REJECTED, _NO_TEMPLATE),
            ),
            settings={"max_attempts": 3, "retry_delays_ms": _RETRY_DELAYS_MS, "expected_drain_seconds": 60},
        ),
        QueueScenario("cart-reminders", 0.06, delay_ms=(1_000, 20_000), settings={"expected_drain_seconds": 60}),
    ),
    feed="orders/feed",
    appends_per_second=3,
    session_streams=("orders/1001/status", "orders/1002/status", "orders/1003/status"),
    pattern="orders/*/status",
    publishes_per_second=0.8,
    sessions_per_minute=6,
    redrives=(Redrive("emails", _NO_TEMPLATE),),
    events=EventsScenario(
        "order-events",
        subscriptions=(
            SubscriptionScenario("warehouse", "https://warehouse.demo.invalid/orders", ("orders.*.paid",)),
            SubscriptionScenario("newsletter", "https://newsletter.demo.invalid/", is_paused=True),
        ),
        bucket="stock",
        articles=("boots", "coat", "hat", "lamp", "saddle", "trunk"),
    ),
)

BANK = TenantScenario(
    name="demo-bank",
    description="Postroad demo: a bank, with a slow consumer and a queue without consumers",
    queues=(
        QueueScenario(
            "payments",
            0.20,
            Consumer(count=3, batch=10, processing_ms=(15, 80)),
            outcomes=(OutcomeShare(4, Outcome.FAILS_ONCE, "the ledger is locked"),),
            settings={"max_attempts": 5, "retry_delays_ms": _RETRY_DELAYS_MS, "expected_drain_seconds": 30},
        ),
        QueueScenario(
            "statements",
            0.08,
            Consumer(capacity=0.4, batch=1),
            settings={"expected_drain_seconds": 5, "retention_ms": DAY_MS},
        ),
        QueueScenario("audit-export", 0.03, None, settings={"expected_drain_seconds": 60, "retention_ms": DAY_MS}),
        QueueScenario(
            "partner-webhooks",
            0.05,
            Consumer(count=1, batch=6, processing_ms=(30, 120)),
            outcomes=(
                OutcomeShare(30, Outcome.REJECTED, _BAD_KEY),
                OutcomeShare(12, Outcome.FAILS_ALWAYS, "503 from the partner"),
                OutcomeShare(8, Outcome.REJECTED_ON_RETRY, "410 the partner has closed this address"),
            ),
            settings={"max_attempts": 2, "retry_delays_ms": [400], "expected_drain_seconds": 60},
        ),
    ),
    feed="ledger/2026",
    appends_per_second=2,
    session_streams=("accounts/7/balance", "accounts/8/balance"),
    pattern="accounts/*/balance",
    publishes_per_second=0.4,
    sessions_per_minute=4,
)

CHAT = TenantScenario(
    name="demo-chat",
    description="Postroad demo: a chat, with short-lived sessions",
    queues=(
        QueueScenario("notifications", 0.18, Consumer(count=3), burst_seconds=15, burst_size=60),
        QueueScenario(
            "moderation",
            0.06,
            Consumer(count=1, batch=6, processing_ms=(40, 200)),
            outcomes=(
                OutcomeShare(15, Outcome.FAILS_ONCE, "the model is overloaded"),
                OutcomeShare(4, Outcome.REJECTED, "language not supported: tlh"),
                OutcomeShare(4, Outcome.FAILS_ALWAYS, "the model returned no answer"),
            ),
            settings={"max_attempts": 3, "retry_delays_ms": _RETRY_DELAYS_MS, "expected_drain_seconds": 30},
        ),
    ),
    feed="agents/7/tokens",
    appends_per_second=4,
    session_streams=("rooms:general", "rooms:random", "rooms:cooking", "rooms:help"),
    pattern="rooms:*",
    publishes_per_second=2.5,
    sessions_per_minute=24,
    redrives=(Redrive("moderation", "language not supported: tlh", 0.75),),
)

SCENARIOS = (SHOP, BANK, CHAT)
RATE = 50.0  # messages a second of all tenants; the other rates of the scenarios are relative to it
