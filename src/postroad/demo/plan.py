"""What the demo does when, decided beforehand by the seed alone. Pure.

Each actor draws from a `Random` of its own, named for the seed and for what it does: so nothing depends on who is served first,
and two runs with the same seed, time and rate publish the same messages.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from postroad.demo.scenarios import RATE, Chance, Fate, QueueStory, TenantStory

_WAVE_SECONDS = 75.0
_WORDS = ("a letter", "from the", "post road", "while", "the coach", "is late", "and the horses", "wait", "at the inn")


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    at: float
    number: int
    fate: Fate
    reason: str
    delay_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """It comes `at`, subscribes, is touched, lets go of its first stream at `unsubscribes_at`, and at `until` is deleted or just
    goes away."""

    at: float
    number: int
    streams: tuple[str, ...]
    touches: tuple[float, ...]
    unsubscribes_at: float | None
    until: float
    is_deleted: bool
    reads: bool


def draws(seed: int, *names: str) -> Random:
    return Random(":".join((str(seed), *names)))  # noqa: S311  # it must be the same again, not hard to guess


def messages(seed: int, tenant: str, story: QueueStory, seconds: float, rate: float) -> list[PlannedMessage]:
    """In order of their time. The steady ones come and go in a wave; bursts are on top of it."""
    draw = draws(seed, tenant, story.name)
    times = list(arrivals(draw, story.share * rate, seconds))
    for start in arrivals(draw, 1 / story.burst_seconds if story.burst_seconds else 0.0, seconds, wave=0.0):
        times += [start] * max(1, round(story.burst_size * rate / RATE * draw.uniform(0.5, 1.5)))
    return [_message(draw, story, number, at) for number, at in enumerate(sorted(times))]


def _message(draw: Random, story: QueueStory, number: int, at: float) -> PlannedMessage:
    chance = _chance(draw, story.chances)
    delay_ms = draw.randint(*story.delay_ms) if story.delay_ms else 0
    text = " ".join(draw.choices(_WORDS, k=draw.choice((5, 8, 12, 25, 80))))
    return PlannedMessage(at, number, chance.fate, chance.reason, delay_ms, text)


def _chance(draw: Random, chances: tuple[Chance, ...]) -> Chance:
    at = draw.uniform(0, 100)
    for chance in chances:
        if at < chance.percent:
            return chance
        at -= chance.percent
    return Chance(100, Fate.FINE, "")


def arrivals(draw: Random, per_second: float, seconds: float, *, wave: float = 0.4) -> Iterator[float]:
    """Moments before `seconds`, at random, so many a second on average; more and less of them as the wave goes."""
    if per_second <= 0:
        return
    phase, at = draw.uniform(0, math.tau), 0.0
    while True:
        at += draw.expovariate(per_second * (1 + wave))
        if at >= seconds:
            return
        if draw.random() * (1 + wave) <= 1 + wave * math.sin(phase + math.tau * at / _WAVE_SECONDS):
            yield at


def sessions(seed: int, story: TenantStory, seconds: float, rate: float) -> list[PlannedSession]:
    """At least four, however short the time is: one is deleted, one lets go, one has the pattern, one goes away."""
    draw = draws(seed, story.name, "sessions")
    count = max(4, round(story.sessions_per_minute * seconds / 60 * rate / RATE))
    begins = sorted(draw.uniform(0, seconds * 0.8) for _ in range(count))
    return [_session(draw, story, number, at, seconds) for number, at in enumerate(begins)]


def _session(draw: Random, story: TenantStory, number: int, at: float, seconds: float) -> PlannedSession:
    until = min(at + draw.uniform(0.1, 1.0) * min(45.0, seconds * 0.5), seconds)
    names = draw.sample(story.rooms, draw.randint(1, min(3, len(story.rooms))))
    streams = (*names, story.pattern) if number % 4 == 2 or draw.random() < 0.2 else tuple(names)
    touches = tuple(sorted(draw.uniform(at, until) for _ in range(draw.randint(0, 4))))
    lets_go = draw.uniform(at, until) if number % 4 == 1 or draw.random() < 0.2 else None
    is_deleted = number % 4 != 3 and (number % 4 == 0 or draw.random() < 0.6)
    return PlannedSession(at, number, streams, touches, lets_go, until, is_deleted, reads=draw.random() < 0.5)


def working_seconds(draw: Random, story: QueueStory, rate: float) -> float:
    """How long a consumer takes for a message."""
    consumer = story.consumer
    if consumer is None:
        return 0.0
    if consumer.keeps_up < 1:
        return draw.uniform(0.7, 1.3) / (story.share * rate * consumer.keeps_up)
    return draw.uniform(*consumer.working_ms) / 1000


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a consumer does with a delivery. `is_last`: a retry after which the queue gives it up by itself."""

    action: str  # ack, retry or dlq
    reason: str = ""
    is_last: bool = False


def verdict(headers: dict[str, str], attempt: int, max_attempts: int, repaired: set[str]) -> Verdict:
    """By the fate that the message came with; what the demo did not publish is fine. Once somebody has repaired what refused
    messages for a reason, they are fine, too."""
    try:
        fate = Fate(headers.get("fate", "fine"))
    except ValueError:
        fate = Fate.FINE
    reason = headers.get("reason", "")
    if fate is Fate.REFUSED and reason not in repaired:
        return Verdict("dlq", reason)
    if fate is Fate.DOOMED or (fate in (Fate.FLAKY, Fate.HOPELESS) and attempt == 1):
        return Verdict("retry", reason, is_last=0 < max_attempts <= attempt)
    if fate is Fate.HOPELESS:
        return Verdict("dlq", reason)
    return Verdict("ack")
