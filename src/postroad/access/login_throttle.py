"""A brake on guessing: an address that keeps coming with unknown credentials is told to wait.

Credentials that are good go on working from the same address, which others may share. What the brake saves is the look-ups that
unknown ones cost, and the log; keys themselves are too long to be guessed at any speed.
"""

import ipaddress
import time
from collections.abc import Callable

from postroad.access import metrics
from postroad.kernel.errors import RateLimited, Unauthenticated

_ADDRESSES_MAX = 10_000


class LoginThrottle:
    """`burst` failures may come at once, and `per_minute` from then on, per address and worker."""

    def __init__(self, burst: int, per_minute: float, now: Callable[[], float] = time.monotonic) -> None:
        self._burst, self._per_second, self._now = burst, per_minute / 60, now
        self._levels: dict[str, tuple[float, float]] = {}  # address → failures that still count, and when that was

    def is_braked(self, address: str) -> bool:
        return bool(self._levels) and self._level(_group(address)) + 1 > self._burst

    def fail(self, address: str, why: str) -> Exception:
        """Count a failure; what to raise for it."""
        metrics.refused.inc()
        group = _group(address)
        level = self._level(group)
        if level + 1 > self._burst:  # by a little as well, since time passes between any two
            self._levels[group] = self._levels.pop(group)
            seconds = (level + 1 - self._burst) / self._per_second
            return RateLimited(
                "too many requests with credentials that are not known came from this address", retry_after=seconds
            )
        self._levels.pop(group, None)
        if len(self._levels) >= _ADDRESSES_MAX:
            del self._levels[next(iter(self._levels))]  # the one that has been quiet for longest
        self._levels[group] = (level + 1, self._now())
        return Unauthenticated(why)

    def _level(self, group: str) -> float:
        level, at = self._levels.get(group, (0.0, 0.0))
        return max(0.0, level - (self._now() - at) * self._per_second)


def _group(address: str) -> str:
    """One IPv6 user has a whole /64. IPv4 users of a socket that takes both are told apart as such."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.ipv4_mapped or ipaddress.IPv6Network((int(parsed), 64), strict=False))
