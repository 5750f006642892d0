"""Scenario of the demo's commands: services of its three tenants. Data only: edit a scenario here.

Together they give every report about commands content: a noisy neighbour that is banned and readmitted, a clock that drifts out
of the window, a producer that keeps its old key, a target that stops draining, a revoked grant, strict commands that are sent
twice, telemetry that is not read, and an alert webhook that is down.
"""

from dataclasses import dataclass
from typing import Any

from postroad.api.command_limits import Fairness, RateLimit
from postroad.demo.scenarios import BANK, CHAT, DAY_MS, SHOP, Consumer, QueueScenario


@dataclass(frozen=True, slots=True)
class RouteScenario:
    """A command that `service` of `tenant` receives in `queue`. `settings` are those of the route."""

    tenant: str
    service: str
    command: str
    queue: QueueScenario
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Phase:
    """Commands from the share `begins` of the run's time to `ends`: `per_second` at the rate of 50 messages a second, and at
    least `count_min`."""

    begins: float
    ends: float
    per_second: float
    count_min: int


@dataclass(frozen=True, slots=True)
class SenderScenario:
    """A service that sends commands on a route.

    `is_repeated`: each command is sent twice. `behind_seconds`: how far its clock, which drifts, is behind at the end of the run.
    `rotates_at`, `revoked_at`: share of the run's time at which its secret is rotated, which it ignores, or its grant revoked.
    """

    tenant: str
    service: str
    route: RouteScenario
    phases: tuple[Phase, ...]
    is_repeated: bool = False
    behind_seconds: float = 0.0
    rotates_at: float | None = None
    revoked_at: float | None = None


@dataclass(frozen=True, slots=True)
class BanScenario:
    """The owner of the route refuses the commands of a sender from the share `begins` of the run's time to `ends`."""

    sender: SenderScenario
    begins: float
    ends: float
    reason: str


def _steady(per_second: float, count_min: int) -> tuple[Phase, ...]:
    return (Phase(0.0, 1.0, per_second, count_min),)


_QUEUE = {"max_attempts": 5, "expected_drain_seconds": 30}

POST = RouteScenario(
    CHAT.name,
    "bot",
    "post-message",
    QueueScenario("bot-messages", 0.0, Consumer(count=2), settings=_QUEUE),
    {
        "rate_limit": RateLimit(max=30, interval_seconds=1),
        "fairness": Fairness(window_seconds=5, ban_seconds=5, dominant_share=0.7, competing_sources=2),
    },
)
BOOK = RouteScenario(
    BANK.name,
    "ledger",
    "book-payment",
    QueueScenario("ledger-payments", 0.0, Consumer(count=1), settings=_QUEUE),
    {"dedupe_mode": "strict", "sensitivity": "moderate"},
)
PRINT = RouteScenario(
    BANK.name,
    "printer",
    "print-statement",
    QueueScenario(
        "printer-jobs",
        0.0,
        Consumer(count=1, batch=5, until=0.4),
        settings={"max_attempts": 5, "expected_drain_seconds": 5, "retention_ms": DAY_MS},
    ),
    {"expected_drain_seconds": 5},
)
ROUTES = (POST, BOOK, PRINT)

NOISY = SenderScenario(
    SHOP.name, "campaigns", POST, (Phase(0.08, 0.35, 20, 60), Phase(0.35, 0.65, 4, 12), Phase(0.7, 1.0, 0.5, 6))
)
SENDERS = (
    NOISY,
    SenderScenario(SHOP.name, "orders", POST, _steady(0.5, 8)),
    SenderScenario(BANK.name, "alerts", POST, _steady(0.5, 8)),
    SenderScenario(SHOP.name, "checkout", BOOK, _steady(0.7, 6), is_repeated=True),
    SenderScenario(SHOP.name, "till", BOOK, _steady(2.0, 12), behind_seconds=90.0),
    SenderScenario(CHAT.name, "moderator", PRINT, _steady(0.5, 8), rotates_at=0.25),
    SenderScenario(CHAT.name, "guest", PRINT, _steady(0.3, 8), revoked_at=0.5),
)
BAN = BanScenario(NOISY, 0.4, 0.55, "too many messages")
READS_TELEMETRY = (SHOP.name, CHAT.name)  # the third tenant does not
ALERTED = SHOP.name
ALERT_CHANNEL, ALERT_RULE, ALERT_EVENTS = "demo-ops", "demo-failures", "snavio.command.failed"
ALERT_URL = "https://ops.demo.invalid/alerts"  # a name that does not exist
