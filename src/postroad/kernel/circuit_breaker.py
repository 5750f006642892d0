"""Circuit breaker. Pure: the caller passes the time."""

from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """Stops calls to a target that fails: open after `failure_threshold` failures in a row, and half-open `recovery_ms` after the
    last one, when it allows a single trial call. In memory."""

    def __init__(self, failure_threshold: int, recovery_ms: int) -> None:
        self._failure_threshold, self._recovery_ms = failure_threshold, recovery_ms
        self._failures = 0
        self._failed_at_ms: int | None = None
        self._is_trial = False

    @property
    def has_failures(self) -> bool:
        return self._failures > 0

    def state(self, now_ms: int) -> BreakerState:
        if self._failures < self._failure_threshold or self._failed_at_ms is None:
            return BreakerState.CLOSED
        is_recovered = now_ms - self._failed_at_ms >= self._recovery_ms
        return BreakerState.HALF_OPEN if is_recovered else BreakerState.OPEN

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
            self._failures, self._failed_at_ms = 0, None
            return
        self._failures += 1
        self._failed_at_ms = now_ms
