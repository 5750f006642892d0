"""A limit on log lines that callers can cause at will."""

import time
from collections.abc import Callable


class LogLimit:
    """Admits one log line per interval and counts the others."""

    def __init__(self, seconds: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next_at = 0.0
        self._suppressed = 0

    def admit(self) -> int | None:
        """The number of lines suppressed since the last one; None if this one is to be suppressed."""
        now = self._clock()
        if now < self._next_at:
            self._suppressed += 1
            return None
        self._next_at = now + self._seconds
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed
