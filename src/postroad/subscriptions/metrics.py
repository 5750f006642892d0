"""Metrics of subscriptions."""

from postroad.kernel.buffered_metrics import Counter, Histogram
from postroad.telemetry.metrics import TenantCounter

delivered = TenantCounter("postroad_deliveries_total", "Messages of topics that were delivered to an endpoint or a queue.")
attempts = Counter(
    "postroad_delivery_attempts_total",
    "Attempts to deliver messages of topics, by kind and outcome.",
    ["delivery_type", "outcome"],
)
dead = TenantCounter("postroad_deliveries_dead_total", "Messages of topics that became dead letters of a subscription.")
quarantined = TenantCounter(
    "postroad_deliveries_quarantined_total",
    "Messages of topics that became dead letters because they could not be compared with a filter, or not be encoded.",
)
suspected_loops = TenantCounter(
    "postroad_loops_suspected_total", "Keys of buckets that a receiver seems to change in response to their own changes."
)
takeovers = Counter("postroad_delivery_takeovers_total", "Subscriptions that a delivery process took over.")
fenced = Counter("postroad_delivery_fenced_total", "Stores of progress that failed because another process had taken over.")
removed = Counter("postroad_delivery_removed_total", "Messages that retention or a purge removed before they were delivered.")
latency = Histogram(
    "postroad_delivery_latency_seconds",
    "From the publication of a message to its first delivery, retries included.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 30, 120, 600, 3600),
)
