"""Metrics of queues in RabbitMQ."""

from postroad.kernel.buffered_metrics import Counter, Gauge

published = Counter("postroad_rabbitmq_published_total", "Messages that RabbitMQ has confirmed.")
leases = Gauge("postroad_rabbitmq_leases", "Deliveries of RabbitMQ that this process holds.", multiprocess_mode="livesum")
expired = Counter("postroad_rabbitmq_leases_expired_total", "Leases in RabbitMQ that ended without an ack or nack.")
forwarded = Counter("postroad_rabbitmq_forwarded_total", "Operations on leases in RabbitMQ that another worker owns.")
suppressed = Counter(
    "postroad_rabbitmq_suppressed_total", "Redelivered messages of RabbitMQ that were acknowledged or purged before."
)
strays = Counter(
    "postroad_rabbitmq_strays_total", "Deliveries of RabbitMQ that no pull waited for any more and that were returned."
)
failed_calls = Counter(
    "postroad_rabbitmq_failed_calls_total", "Calls of RabbitMQ that failed: unreachable, silent, blocked, without a leader."
)
dead_lettered = Counter("postroad_rabbitmq_dead_lettered_total", "Messages that RabbitMQ dead-lettered and that were moved.")
restored = Counter("postroad_rabbitmq_restored_total", "Queues that RabbitMQ did not have any more and that were declared again.")
