"""The plan of a run: what happens when, determined by the seed. Pure.

Each actor has its own random generator, seeded with the seed and the actor's name. So the plan does not depend on the order in
which actors run, and two runs with the same seed, duration and rate publish the same messages.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from postroad.demo.scenarios import RATE, Outcome, OutcomeShare, QueueScenario, TenantScenario

_WAVE_SECONDS = 75.0
_WORDS = ("a letter", "from the", "post road", "while", "the coach", "is late", "and the horses", "wait", "at the inn")


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    at: float
    number: int
    outcome: Outcome
    reason: str
    delay_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """A session that subscribes `at`, is touched, may unsubscribe from its first stream, and is deleted or abandoned."""

    at: float
    number: int
    streams: tuple[str, ...]
    touches: tuple[float, ...]
    unsubscribes_at: float | None
    ends_at: float
    is_deleted: bool
    reads: bool


def seeded_random(seed: int, *names: str) -> Random:
    return Random(":".join((str(seed), *names)))  # noqa: S311  # must be reproducible, not hard to guess


def plan_messages(seed: int, tenant: str, scenario: QueueScenario, seconds: float, rate: float) -> list[PlannedMessage]:
    """Messages in order of their time: steady ones, whose rate varies in a wave, and bursts."""
    random = seeded_random(seed, tenant, scenario.name)
    times = list(arrivals(random, scenario.share * rate, seconds))
    for start in arrivals(random, 1 / scenario.burst_seconds if scenario.burst_seconds else 0.0, seconds, wave=0.0):
        times += [start] * max(1, round(scenario.burst_size * rate / RATE * random.uniform(0.5, 1.5)))
    return [_message(random, scenario, number, at) for number, at in enumerate(sorted(times))]


def _message(random: Random, scenario: QueueScenario, number: int, at: float) -> PlannedMessage:
    drawn = _drawn(random, scenario.outcomes)
    delay_ms = random.randint(*scenario.delay_ms) if scenario.delay_ms else 0
    text = " ".join(random.choices(_WORDS, k=random.choice((5, 8, 12, 25, 80))))
    return PlannedMessage(at, number, drawn.outcome, drawn.reason, delay_ms, text)


def _drawn(random: Random, shares: tuple[OutcomeShare, ...]) -> OutcomeShare:
    at = random.uniform(0, 100)
    for share in shares:
        if at < share.percent:
            return share
        at -= share.percent
    return OutcomeShare(100, Outcome.SUCCESS, "")


def arrivals(random: Random, per_second: float, seconds: float, *, wave: float = 0.4) -> Iterator[float]:
    """Random times before `seconds` with this mean rate, which varies by the share `wave` in a sine."""
    if per_second <= 0:
        return
    phase, at = random.uniform(0, math.tau), 0.0
    while True:
        at += random.expovariate(per_second * (1 + wave))
        if at >= seconds:
            return
        if random.random() * (1 + wave) <= 1 + wave * math.sin(phase + math.tau * at / _WAVE_SECONDS):
            yield at


def plan_sessions(seed: int, scenario: TenantScenario, seconds: float, rate: float) -> list[PlannedSession]:
    """At least four: one is deleted, one unsubscribes, one subscribes to the pattern, one is abandoned."""
    random = seeded_random(seed, scenario.name, "sessions")
    count = max(4, round(scenario.sessions_per_minute * seconds / 60 * rate / RATE))
    starts = sorted(random.uniform(0, seconds * 0.8) for _ in range(count))
    return [_session(random, scenario, number, at, seconds) for number, at in enumerate(starts)]


def _session(random: Random, scenario: TenantScenario, number: int, at: float, seconds: float) -> PlannedSession:
    ends_at = min(at + random.uniform(0.1, 1.0) * min(45.0, seconds * 0.5), seconds)
    names = random.sample(scenario.session_streams, random.randint(1, min(3, len(scenario.session_streams))))
    streams = (*names, scenario.pattern) if number % 4 == 2 or random.random() < 0.2 else tuple(names)
    touches = tuple(sorted(random.uniform(at, ends_at) for _ in range(random.randint(0, 4))))
    unsubscribes_at = random.uniform(at, ends_at) if number % 4 == 1 or random.random() < 0.2 else None
    is_deleted = number % 4 != 3 and (number % 4 == 0 or random.random() < 0.6)
    return PlannedSession(at, number, streams, touches, unsubscribes_at, ends_at, is_deleted, reads=random.random() < 0.5)


def processing_seconds(random: Random, scenario: QueueScenario, rate: float) -> float:
    """Time that a consumer takes for one message."""
    consumer = scenario.consumer
    if consumer is None:
        return 0.0
    if consumer.capacity < 1:
        return random.uniform(0.7, 1.3) / (scenario.share * rate * consumer.capacity)
    return random.uniform(*consumer.processing_ms) / 1000


@dataclass(frozen=True, slots=True)
class Decision:
    """A consumer's reply to a delivery: `ack`, `retry` or `dlq`. `is_last` marks a retry that has no attempts left."""

    action: str
    reason: str = ""
    is_last: bool = False


def decide(headers: dict[str, str], attempt: int, max_attempts: int, repaired: set[str]) -> Decision:
    """Reply according to the planned outcome in the headers. Messages without one, and repaired reasons, succeed."""
    try:
        outcome = Outcome(headers.get("outcome", Outcome.SUCCESS))
    except ValueError:
        outcome = Outcome.SUCCESS
    reason = headers.get("reason", "")
    if outcome is Outcome.REJECTED and reason not in repaired:
        return Decision("dlq", reason)
    if outcome is Outcome.FAILS_ALWAYS or (outcome in (Outcome.FAILS_ONCE, Outcome.REJECTED_ON_RETRY) and attempt == 1):
        return Decision("retry", reason, is_last=0 < max_attempts <= attempt)
    if outcome is Outcome.REJECTED_ON_RETRY:
        return Decision("dlq", reason)
    return Decision("ack")
