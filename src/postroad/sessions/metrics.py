"""Metrics of sessions and fan-outs."""

from postroad.kernel.buffered_metrics import Counter, Gauge, Histogram
from postroad.telemetry.metrics import TenantCounter

events = Counter(
    "postroad_session_events_total", "Operations on sessions and publishes, by category and event.", ["category", "event"]
)
fanned_out = TenantCounter("postroad_fanout_writes_total", "Copies written to sessions' streams.")
fanout_seconds = Histogram(
    "postroad_fanout_seconds",
    "Seconds of an inline fan-out, up to the last copy.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 10),
)
fanout_conflicts = Counter("postroad_fanout_conflicts_total", "Batches of copies retried because of a concurrent change.")
cleanups = Counter("postroad_session_cleanups_total", "Requests to clean up a session, by outcome.", ["outcome"])
outstanding = Gauge(
    "postroad_fanout_outstanding_messages",
    "Messages not yet copied to all sessions at the last reconciliation.",
    multiprocess_mode="livemax",
)
breakers_open = Gauge(
    "postroad_fanout_breakers_open", "Streams whose circuit breaker is not closed.", multiprocess_mode="livesum"
)


def count(category: str, event: str, by: int = 1) -> None:
    events.labels(category, event).inc(by)
