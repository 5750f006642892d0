"""Circuit breaker. Pure: the caller passes the time."""

from enum import StrEnum

import msgspec


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerCounts(msgspec.Struct, frozen=True, rename="camel"):
    """What a breaker remembers, for another process to continue with."""

    failures: int
    failed_at_ms: int
    recovery_ms: int


class CircuitBreaker:
    """Stops calls to a target that fails: open after `failure_threshold` failures in a row, and half-open `recovery_ms` after the
    last one, when it allows a single trial call. With `recovery_ms_max`, each failed trial doubles that time. In memory."""

    __slots__ = (
        "_failed_at_ms",
        "_failure_threshold",
        "_failures",
        "_first_recovery_ms",
        "_is_trial",
        "_recovery_ms",
        "_recovery_ms_max",
    )

    def __init__(self, failure_threshold: int, recovery_ms: int, recovery_ms_max: int | None = None) -> None:
        self._failure_threshold, self._first_recovery_ms = failure_threshold, recovery_ms
        self._recovery_ms_max = recovery_ms_max or recovery_ms
        self._recovery_ms = recovery_ms
        self._failures = 0
        self._failed_at_ms: int | None = None
        self._is_trial = False

    @property
    def has_failures(self) -> bool:
        return self._failures > 0

    @property
    def is_trial(self) -> bool:
        """True while the result of a trial call is awaited."""
        return self._is_trial

    @property
    def counts(self) -> BreakerCounts | None:
        """None without failures."""
        if self._failed_at_ms is None:
            return None
        return BreakerCounts(self._failures, self._failed_at_ms, self._recovery_ms)

    def restore(self, counts: BreakerCounts) -> None:
        """Continue where another breaker was."""
        self._failures, self._failed_at_ms = counts.failures, counts.failed_at_ms
        self._recovery_ms = min(max(counts.recovery_ms, self._first_recovery_ms), self._recovery_ms_max)

    @property
    def half_open_at_ms(self) -> int | None:
        """When a trial call is allowed; None while the breaker is closed."""
        if self._failures < self._failure_threshold or self._failed_at_ms is None:
            return None
        return self._failed_at_ms + self._recovery_ms

    def state(self, now_ms: int) -> BreakerState:
        half_open_at_ms = self.half_open_at_ms
        if half_open_at_ms is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now_ms >= half_open_at_ms else BreakerState.OPEN

    def allows(self, now_ms: int) -> bool:
        """True if a call may be made now. While half-open one call is allowed, and another after `recovery_ms` more."""
        state = self.state(now_ms)
        if state is BreakerState.HALF_OPEN:
            self._is_trial, self._failed_at_ms = True, now_ms
        return state is not BreakerState.OPEN

    def record(self, successes: int, failures: int, now_ms: int) -> None:
        """Record the outcome of a call to one or more targets. Any failure counts; a trial succeeds with any success."""
        is_trial, self._is_trial = self._is_trial, False
        if failures == 0 or (is_trial and successes):
            self._failures, self._failed_at_ms, self._recovery_ms = 0, None, self._first_recovery_ms
            return
        if is_trial:
            self._recovery_ms = min(self._recovery_ms * 2, self._recovery_ms_max)
        self._failures += 1
        self._failed_at_ms = now_ms
