"""How an endpoint's response to a delivery is judged, and when the next attempt follows. Pure.

2xx                                                        delivered
408, 429, 5xx, 3xx (not followed), no response             transient: the next attempt follows after a delay
410                                                        the subscription is disabled
any other status                                           refused: dead letter at once; the circuit breaker is unaffected
"""

import email.utils
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from postroad.api.subscriptions import RETRY_DELAYS_MS

RETRY_AFTER_MS_MAX = 3_600_000
BREAKER_FAILURES = 10
BREAKER_OPEN_MS, BREAKER_OPEN_MS_MAX = 30_000, 300_000


class Outcome(StrEnum):
    """What an attempt came to."""

    DELIVERED = "delivered"
    TRANSIENT = "transient"
    REFUSED = "refused"
    GONE = "gone"


class Step(StrEnum):
    """What happens to the message after an attempt."""

    SETTLE = "settle"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    DISABLE = "disable"


@dataclass(frozen=True, slots=True)
class Decision:
    """`delay_ms` is the time before the next attempt; `pause_ms` applies to the whole subscription."""

    step: Step
    delay_ms: int = 0
    pause_ms: int = 0
    reason: str = ""


_SETTLED = Decision(Step.SETTLE)


def outcome_of(status: int) -> Outcome:
    if 200 <= status < 300:
        return Outcome.DELIVERED
    if status == 410:
        return Outcome.GONE
    if status in (408, 429) or status >= 500 or status < 400:
        return Outcome.TRANSIENT
    return Outcome.REFUSED


def decide(
    outcome: Outcome,
    attempt: int,
    *,
    cause: str,
    max_deliver: int,
    retry_delays_ms: Sequence[int] = RETRY_DELAYS_MS,
    retry_after_ms: int | None = None,
) -> Decision:
    """What follows the attempt of this number. `cause` is the status or the failure, for the dead letter's reason."""
    if outcome is Outcome.DELIVERED:
        return _SETTLED
    if outcome is Outcome.GONE:
        return Decision(Step.DISABLE, reason=cause)
    if outcome is Outcome.REFUSED:
        return Decision(Step.DEAD_LETTER, reason=cause)
    pause = min(retry_after_ms or 0, RETRY_AFTER_MS_MAX)
    if attempt >= max_deliver:
        return Decision(Step.DEAD_LETTER, pause_ms=pause, reason=f"{cause}, after {attempt} attempts")
    delay = retry_delays_ms[min(attempt, len(retry_delays_ms)) - 1]
    return Decision(Step.RETRY, max(delay, pause), pause)


def retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """The delay that a `Retry-After` header asks for, as seconds or as a date; None without a valid one."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text) * 1000
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return None
    return max(0, int(date.timestamp() * 1000) - now_ms)


class ConcurrencyWindow:
    """How many calls of a subscription may be in flight: one at first, one more after each success, half after a timeout.

    It starts small, so that many endpoints that do not respond at all occupy few slots.
    """

    __slots__ = ("_size", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._size = 1.0

    @property
    def size(self) -> int:
        return max(1, min(int(self._size), self.maximum))

    def grow(self) -> None:
        self._size = min(self._size + 1, self.maximum)

    def halve(self) -> None:
        self._size = max(1.0, self._size / 2)
