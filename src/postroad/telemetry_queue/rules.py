"""Which events the telemetry queue has, and when unread ones count as dropped. Pure: no I/O, no clock."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from postroad.kernel.event import encoded_type
from postroad.kernel.matching import pattern_matches

RETENTION_MS = 14 * 86_400_000  # of `COMMANDS`
MARGIN_MS = 3_600_000  # unread frames are counted and removed from the queue so long before the engine removes them
UNCONSUMED_MS = 86_400_000  # older unread events are reported to the tenant once a day
STALLED_MS = RETENTION_MS // 2  # and to the operators
DROPPED = "snavio.telemetry.dropped"
UNCONSUMED, STREAM_FULL = (
    "queue_unconsumed",
    "stream_full",
)  # why unread events were dropped: their age, or the size of the stream
_BASE = "snavio.>"
_NAMES_MAX = 1000


class EventFilter:
    """The event types of a tenant's queue: `snavio.>`, and the patterns that its setting `telemetryEvents` adds; a pattern with
    a leading `!` removes types."""

    def __init__(self, changes: Sequence[str] = ()) -> None:
        self._added = [_BASE, *(one for one in changes if not one.startswith("!"))]
        self._removed = [one[1:] for one in changes if one.startswith("!")]
        self._known: dict[bytes, bool] = {}

    def includes(self, name: str) -> bool:
        is_added = any(pattern_matches(one, name) for one in self._added)
        return is_added and not any(pattern_matches(one, name) for one in self._removed)

    def select(self, lines: Iterable[bytes]) -> list[bytes]:
        """The lines whose types are included. The type is the first field of every event, so lines are not decoded."""
        return [line for line in lines if self._includes(line)]

    def _includes(self, line: bytes) -> bool:
        name = encoded_type(line)
        found = self._known.get(name)
        if found is None:
            found = self.includes(name.decode("utf-8", "replace"))
            if len(self._known) < _NAMES_MAX:
                self._known[name] = found
        return found


def count_dropped(lines: Sequence[bytes]) -> int:
    """The events that are reported as dropped: reports of dropped events are not."""
    return sum(1 for line in lines if encoded_type(line) != DROPPED.encode())


@dataclass(frozen=True, slots=True)
class Fill:
    """The size of `COMMANDS` and its largest one. Beyond that the engine removes the oldest frames without a count."""

    bytes: int
    bytes_max: int

    @property
    def is_over(self) -> bool:
        """Frames are removed from here on."""
        return self.bytes > 0.85 * self.bytes_max > 0

    @property
    def is_trimmed(self) -> bool:
        """Frames are removed up to here. The rest is for what arrives between two rounds."""
        return self.bytes <= 0.8 * self.bytes_max

    @property
    def is_urgent(self) -> bool:
        """Frames are removed although readers have leased some of them."""
        return self.bytes > 0.93 * self.bytes_max


def day_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()


def day_start_ms(day: str) -> int:
    return int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() * 1000)
