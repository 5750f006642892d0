"""Metrics of the JetStream layer."""

from postroad.kernel.buffered_metrics import Counter, Gauge, Histogram

commit_messages = Counter("postroad_commit_messages_total", "Messages stored, by how they were sent.", ["way"])
commit_batch_size = Histogram(
    "postroad_commit_batch_size", "Messages per atomic batch.", buckets=(8, 16, 32, 64, 128, 256, 512, 1000)
)
commit_retries = Counter("postroad_commit_retries_total", "Sends repeated because the engine did not answer.")
commit_rejected_batches = Counter("postroad_commit_rejected_batches_total", "Batches refused as a whole and sent again in parts.")
commit_separate_writes = Counter(
    "postroad_commit_separate_writes_total", "Writes of refused batches that were sent again one by one."
)
sync_seconds = Histogram(
    "postroad_store_sync_seconds",
    "Duration of a group sync of the embedded server's store.",
    buckets=(0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5),
)
sync_callers = Histogram(
    "postroad_store_sync_callers", "Callers that shared a group sync.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)
)
filesystem_sync_seconds = Histogram(
    "postroad_store_filesystem_sync_seconds",
    "Duration of a sync of the store's whole filesystem, after a change of streams or consumers.",
    buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 30),
)
writes_refused = Counter(
    "postroad_writes_refused_total", "Writes refused for want of storage, by limit: quota, store.", ["limit"]
)
tail_gaps = Counter("postroad_tail_gaps_total", "Gaps in live tails that were filled from the log.")
clock_skew = Gauge(
    "postroad_clock_skew_seconds",
    "Seconds that the system's clock is ahead of the engine's; negative if it is behind.",
    multiprocess_mode="livemostrecent",
)
registry_age = Gauge(
    "postroad_registry_age_seconds", "Time since the registry was last known to be complete.", multiprocess_mode="livemax"
)
server_changes = Counter(
    "postroad_engine_server_changes_total", "Moves to another NATS server because the engine did not answer."
)
stored_alone = commit_messages.labels("single")
stored_in_batch = commit_messages.labels("batch")
refused_by_quota = writes_refused.labels("quota")
refused_by_store = writes_refused.labels("store")
