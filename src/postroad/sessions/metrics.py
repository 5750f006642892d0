"""What sessions count, in the seed's categories."""

from postroad.kernel.buffered_metrics import Counter, Gauge, Histogram
from postroad.telemetry.metrics import TenantCounter

events = Counter(
    "postroad_session_events_total", "What happened to sessions and publishes, by category and event.", ["category", "event"]
)
fanned_out = TenantCounter("postroad_fanout_writes_total", "Copies written to sessions' streams.")
fanout_seconds = Histogram(
    "postroad_fanout_seconds", "From publish to the last copy, inline.", buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 10)
)
fanout_conflicts = Counter("postroad_fanout_conflicts_total", "Batches of copies tried again since something had changed.")
cleanups = Counter(
    "postroad_session_cleanups_total", "Requests to end sessions that may be over, by what became of the session.", ["outcome"]
)
outstanding = Gauge(
    "postroad_fanout_outstanding_messages",
    "Messages that some sessions still lack, as of the last sweep.",
    multiprocess_mode="livemax",
)
breakers_open = Gauge(
    "postroad_fanout_breakers_open", "Streams whose inline fan-out is switched off for now.", multiprocess_mode="livesum"
)


def count(category: str, event: str, by: int = 1) -> None:
    events.labels(category, event).inc(by)
