"""Throttling of clients that send invalid credentials, per address.

Valid credentials keep working from a throttled address, which other clients may share. The throttle saves the lookups and log
entries that unknown credentials cost; keys are too long to be guessed at any rate.
"""

import ipaddress
import time
from collections.abc import Callable

from postroad.access import metrics
from postroad.kernel.errors import RateLimited, Unauthenticated

_ADDRESSES_MAX = 10_000


class LoginThrottle:
    """A token bucket per address and worker: `burst` failures at once, then `per_minute`."""

    def __init__(self, burst: int, per_minute: float, now: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._per_second, self._now = burst, per_minute / 60, now
        self._levels: dict[str, tuple[float, float]] = {}  # address → level of the bucket, and the time it had that level

    def is_throttled(self, address: str) -> bool:
        return bool(self._levels) and self._level(_group(address)) + 1 > self._burst

    def record_failure(self, address: str, detail: str) -> RateLimited | Unauthenticated:
        """Count a failure and return the error to raise."""
        metrics.refused.inc()
        group = _group(address)
        level = self._level(group)
        if level + 1 > self._burst:  # slightly above counts, too: the level falls between two calls
            self._levels[group] = self._levels.pop(group)
            seconds = (level + 1 - self._burst) / self._per_second
            return RateLimited("too many requests with unknown credentials from this address", retry_after=seconds)
        self._levels.pop(group, None)
        if len(self._levels) >= _ADDRESSES_MAX:
            del self._levels[next(iter(self._levels))]  # the address with the oldest failure
        self._levels[group] = (level + 1, self._now())
        return Unauthenticated(detail)

    def _level(self, group: str) -> float:
        level, at = self._levels.get(group, (0.0, 0.0))
        return max(0.0, level - (self._now() - at) * self._per_second)


def _group(address: str) -> str:
    """The /64 network of an IPv6 address, since one client has all of it; IPv4 addresses, mapped ones included, as they are."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed), 64), strict=False))
