"""Who the three tenants of the demo are, and what happens to them. Data and nothing else: change a story here.

Each report of `postroad insights` and `postroad report` has something to show for it: a queue that is quick, one that comes in
bursts, one whose consumer fails, one that nobody can keep up with, one that nobody polls.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Fate(StrEnum):
    """What a consumer will make of a message. The publisher decides and writes it into a header, so that it depends on the seed
    alone and not on who pulls when."""

    FINE = "fine"
    FLAKY = "flaky"  # fails once
    DOOMED = "doomed"  # fails until the queue gives it up
    HOPELESS = "hopeless"  # fails once, then the consumer gives it up
    REFUSED = "refused"  # given up at once: something is misconfigured


@dataclass(frozen=True, slots=True)
class Chance:
    """One kind of message in a queue: how many of a hundred, what becomes of it, and why."""

    percent: float
    fate: Fate
    reason: str


@dataclass(frozen=True, slots=True)
class Consumer:
    """`hands` pull `batch` at a time and take between the two of `working_ms` for each. With `keeps_up` below 1 there is one
    hand, whose pace is that part of what comes in, whatever the rate is."""

    hands: int = 2
    batch: int = 20
    working_ms: tuple[float, float] = (2.0, 15.0)
    keeps_up: float = 1.0


@dataclass(frozen=True, slots=True)
class QueueStory:
    """`share` is the part of all published messages that comes here. A burst of `burst_size` (at a rate of 50 a second) comes
    about every `burst_seconds`. `delay_ms`: all messages are delayed, by between the two."""

    name: str
    share: float
    consumer: Consumer | None = field(default_factory=Consumer)
    chances: tuple[Chance, ...] = ()
    burst_seconds: float = 0.0
    burst_size: int = 0
    delay_ms: tuple[int, int] | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def max_attempts(self) -> int:
        return int(self.settings.get("max_attempts", 10))


@dataclass(frozen=True, slots=True)
class Redrive:
    """At this part of the time somebody repairs what refused messages for this reason, and puts them back."""

    queue: str
    reason: str
    at: float = 0.6


@dataclass(frozen=True, slots=True)
class TenantStory:
    """`feed` is a stream that is appended to and followed; `rooms` are streams that sessions subscribe to, some of them by the
    `pattern`. The rates are for 50 messages a second in all."""

    name: str
    description: str
    queues: tuple[QueueStory, ...]
    feed: str
    feed_per_second: float
    rooms: tuple[str, ...]
    pattern: str
    says_per_second: float
    sessions_per_minute: float
    redrives: tuple[Redrive, ...] = ()


DAY_MS = 86_400_000
_QUICK_LADDER = [500, 1500, 3000]
_NO_TEMPLATE = "no template order-shipped.de"
_BAD_KEY = "401 from the partner: the API key is not valid"

SHOP = TenantStory(
    name="demo-shop",
    description="Postroad demo: a shop, with bursts of orders and e-mails that fail",
    queues=(
        QueueStory("orders", 0.20, burst_seconds=20, burst_size=120, settings={"expected_drain_seconds": 30}),
        QueueStory(
            "emails",
            0.14,
            Consumer(hands=2, batch=10, working_ms=(10, 60)),
            chances=(
                Chance(10, Fate.FLAKY, "421 the mail server is busy"),
                Chance(4, Fate.DOOMED, "connection to mail.example timed out"),
                Chance(3, Fate.HOPELESS, "550 no such mailbox"),
                Chance(6, Fate.REFUSED, _NO_TEMPLATE),
            ),
            settings={"max_attempts": 3, "retry_delays_ms": _QUICK_LADDER, "expected_drain_seconds": 60},
        ),
        QueueStory("cart-reminders", 0.06, delay_ms=(1_000, 20_000), settings={"expected_drain_seconds": 60}),
    ),
    feed="orders/feed",
    feed_per_second=3,
    rooms=("orders/1001/status", "orders/1002/status", "orders/1003/status"),
    pattern="orders/*/status",
    says_per_second=0.8,
    sessions_per_minute=6,
    redrives=(Redrive("emails", _NO_TEMPLATE),),
)

BANK = TenantStory(
    name="demo-bank",
    description="Postroad demo: a bank, with a slow drain and a queue that nobody polls",
    queues=(
        QueueStory(
            "payments",
            0.20,
            Consumer(hands=3, batch=10, working_ms=(15, 80)),
            chances=(Chance(4, Fate.FLAKY, "the ledger is locked"),),
            settings={"max_attempts": 5, "retry_delays_ms": _QUICK_LADDER, "expected_drain_seconds": 30},
        ),
        QueueStory(
            "statements",
            0.08,
            Consumer(keeps_up=0.4, batch=1),
            settings={"expected_drain_seconds": 5, "retention_ms": DAY_MS},
        ),
        QueueStory("audit-export", 0.03, None, settings={"expected_drain_seconds": 60, "retention_ms": DAY_MS}),
        QueueStory(
            "partner-webhooks",
            0.05,
            Consumer(hands=1, batch=6, working_ms=(30, 120)),
            chances=(
                Chance(30, Fate.REFUSED, _BAD_KEY),
                Chance(12, Fate.DOOMED, "503 from the partner"),
                Chance(8, Fate.HOPELESS, "410 the partner has closed this address"),
            ),
            settings={"max_attempts": 2, "retry_delays_ms": [400], "expected_drain_seconds": 60},
        ),
    ),
    feed="ledger/2026",
    feed_per_second=2,
    rooms=("accounts/7/balance", "accounts/8/balance"),
    pattern="accounts/*/balance",
    says_per_second=0.4,
    sessions_per_minute=4,
)

CHAT = TenantStory(
    name="demo-chat",
    description="Postroad demo: a chat, with sessions that come and go",
    queues=(
        QueueStory("notifications", 0.18, Consumer(hands=3), burst_seconds=15, burst_size=60),
        QueueStory(
            "moderation",
            0.06,
            Consumer(hands=1, batch=6, working_ms=(40, 200)),
            chances=(
                Chance(15, Fate.FLAKY, "the model is overloaded"),
                Chance(4, Fate.REFUSED, "language not supported: tlh"),
                Chance(4, Fate.DOOMED, "the model gave no answer"),
            ),
            settings={"max_attempts": 3, "retry_delays_ms": _QUICK_LADDER, "expected_drain_seconds": 30},
        ),
    ),
    feed="agents/7/tokens",
    feed_per_second=4,
    rooms=("rooms:general", "rooms:random", "rooms:cooking", "rooms:help"),
    pattern="rooms:*",
    says_per_second=2.5,
    sessions_per_minute=24,
    redrives=(Redrive("moderation", "language not supported: tlh", 0.75),),
)

STORIES = (SHOP, BANK, CHAT)
RATE = 50.0  # messages a second of all three; the stories' other rates are for this one
