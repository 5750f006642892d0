"""Time as everyone here passes it: whole milliseconds since 1970, UTC."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

from msgspec import Meta

Clock = Callable[[], int]

Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]  # as `rfc3339` writes it


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def rfc3339(at_ms: int) -> str:
    """`2026-11-15T20:45:07.123Z`."""
    second, millis = divmod(at_ms, 1000)
    return f"{_seconds_text(second)}.{millis:03d}Z"


@lru_cache(maxsize=4096)
def _seconds_text(second: int) -> str:
    """Kept, since most calls are about few seconds: now, when a message came, when its lease ends."""
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
