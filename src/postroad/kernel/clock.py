"""Time as everyone here passes it: whole milliseconds since 1970, UTC."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

from msgspec import Meta

Clock = Callable[[], int]

Timestamp = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]  # as `rfc3339` writes it


def now_ms() -> int:
    return time.time_ns() // 1_000_000


_second = -1
_prefix = ""


def rfc3339(at_ms: int) -> str:
    """`2026-11-15T20:45:07.123Z`. The text of the current second is kept, since nearly every call is about now."""
    global _second, _prefix
    second, millis = divmod(at_ms, 1000)
    if second != _second:
        _prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _second = second
    return f"{_prefix}.{millis:03d}Z"
