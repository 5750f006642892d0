"""Time in whole milliseconds since 1970 (UTC), and its text forms."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

Clock = Callable[[], int]

Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]  # in responses, as `rfc3339` writes it
AwareDatetime = Annotated[datetime, Meta(tz=True)]  # in requests: RFC 3339 with a time zone
LATEST_MS = 253_402_300_799_999  # the end of the year 9999; later times have no text form
EpochMs = Annotated[int, Meta(ge=0, le=LATEST_MS)]  # in stored records: a damaged one with another time cannot be decoded


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class EngineClock:
    """The engine's time, by a measured offset to the monotonic clock: steps of the system's clock have no effect.

    It is the system's time until the offset is measured, and monotonic between two measurements.
    """

    __slots__ = ("_system", "offset_ns")

    def __init__(self, system: Clock = now_ms) -> None:
        self._system = system
        self.offset_ns = system() * 1_000_000 - time.monotonic_ns()

    def __call__(self) -> int:
        return (time.monotonic_ns() + self.offset_ns) // 1_000_000

    @property
    def skew_seconds(self) -> float:
        """How far the system's clock is ahead of the engine's."""
        return (self._system() - self()) / 1000


def rfc3339(at_ms: int) -> str:
    """`2026-11-15T20:45:07.123Z`."""
    second, millis = divmod(at_ms, 1000)
    return f"{_seconds_text(second)}.{millis:03d}Z"


def epoch_ms(time: datetime | None) -> int | None:
    """A time of the year 9999 may be one of 10000 in UTC: then the latest that has a text form."""
    return None if time is None else min(int(time.timestamp() * 1000), LATEST_MS)


@lru_cache(maxsize=4096)
def _seconds_text(second: int) -> str:
    """Cached: most calls are for few distinct seconds (now, the arrival of a message, the end of its lease)."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
