"""Token bucket: the rate of requests over time, with bursts. Pure: the time is passed in."""


class TokenBucket:
    """Holds up to `burst` tokens, two seconds' worth by default, and gains `rate` per second."""

    _LATE_SECONDS = 0.04

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, now: float, burst: float | None = None) -> None:
        self.rate, self.burst = rate, max(1.0, 2 * rate if burst is None else burst)
        self._tokens, self._at = self.burst, now

    @classmethod
    def at_most(cls, per_second: float, now: float) -> "TokenBucket":
        """At most so many tokens in any second, and 96 % of them at least if they are taken up to 40 ms late, as by timers."""
        burst = per_second * cls._LATE_SECONDS
        return cls(per_second, now, burst=1) if burst <= 1 else cls(per_second - burst, now, burst)

    def take(self, now: float) -> float:
        """Take a token; return 0. Without one, return the seconds until there is one."""
        tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        self._at = now
        if tokens < 1.0:
            self._tokens = tokens
            return (1.0 - tokens) / self.rate
        self._tokens = tokens - 1.0
        return 0.0

    def wait(self, now: float) -> float:
        """The seconds until there is a token; 0 if there is one. Takes none."""
        tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
        return 0.0 if tokens >= 1.0 else (1.0 - tokens) / self.rate

    def is_full(self, now: float) -> bool:
        return self._tokens + (now - self._at) * self.rate >= self.burst
