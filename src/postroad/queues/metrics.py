"""Metrics of queues."""

from postroad.kernel.buffered_metrics import Counter, Gauge, Histogram
from postroad.telemetry.metrics import TenantCounter

published = TenantCounter("postroad_messages_published_total", "Messages published to queues.")
leased = TenantCounter("postroad_messages_leased_total", "Messages leased to consumers.")
acked = TenantCounter("postroad_messages_acked_total", "Messages acknowledged.")
nacked = TenantCounter("postroad_messages_nacked_total", "Messages requeued or retried by consumers.")
dead = TenantCounter("postroad_messages_dead_total", "Messages that became dead letters.")
redriven = TenantCounter("postroad_messages_redriven_total", "Dead letters moved back to a queue.")
cancelled = TenantCounter("postroad_messages_cancelled_total", "Messages taken out of their queue by a cancellation.")
expired = TenantCounter("postroad_messages_expired_total", "Messages that expired before they were done.")
promoted = TenantCounter(
    "postroad_messages_promoted_total", "Delayed or retrying messages that were made ready before their time."
)
validator_ends = Counter(
    "postroad_schema_validator_ends_total", "Validator processes that ended, mostly because a validation exceeded its budget."
)
group_conflicts = Counter(
    "postroad_group_conflicts_total", "Writes of group records that met a change by another dispatcher, and were repeated."
)
deferred = TenantCounter("postroad_messages_deferred_total", "Messages of groups with more than their share, held back.")
moved_back = TenantCounter("postroad_messages_moved_back_total", "Deferred messages that were moved back to the ready ones.")
move_conflicts = Counter(
    "postroad_move_conflicts_total", "Moves of deferred messages that met a change by another process, and were repeated."
)
queue_wait = Histogram(
    "postroad_queue_wait_seconds", "From publish to first lease.", buckets=(0.005, 0.025, 0.1, 0.5, 2.5, 10, 60, 300, 1800, 7200)
)
lease_states = Gauge(
    "postroad_lease_states",
    "Deliveries whose state this process knows: leased, waiting for a retry, overdue, nacked.",
    multiprocess_mode="livemax",
)
