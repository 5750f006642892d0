"""Metrics of schedules."""

from postroad.kernel.buffered_metrics import Counter, Histogram
from postroad.telemetry.metrics import TenantCounter

fired = TenantCounter("postroad_schedule_ticks_fired_total", "Ticks of schedules whose message was published.")
missed = TenantCounter("postroad_schedule_ticks_missed_total", "Ticks of schedules that were skipped.")
failures = Counter("postroad_schedule_failures_total", "Failed attempts to publish the message of a tick, by error.", ["code"])
lag = Histogram(
    "postroad_schedule_lag_seconds",
    "From the time of a tick to its message.",
    buckets=(0.01, 0.05, 0.25, 1, 5, 15, 60, 600, 7200),
)
