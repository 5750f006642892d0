"""Metrics of buckets."""

from postroad.kernel.buffered_metrics import Counter, Gauge
from postroad.telemetry.metrics import TenantCounter

writes = TenantCounter("postroad_bucket_writes_total", "Values written to buckets and deleted from them.")
reads = TenantCounter("postroad_bucket_reads_total", "Values of buckets returned by reads and lists.")
watchers = Gauge("postroad_bucket_watchers", "Open watches of buckets.", multiprocess_mode="livesum")
changes = TenantCounter("postroad_change_stream_changes_total", "Changes of buckets that were copied to topics.")
bridges = Gauge("postroad_change_streams", "Change streams that this installation copies.", multiprocess_mode="livesum")
bridge_lag_revisions = Gauge(
    "postroad_change_stream_lag_revisions",
    "Changes of buckets that were not copied to their topics yet, of all change streams.",
    multiprocess_mode="livesum",
)
bridge_lag_seconds = Gauge(
    "postroad_change_stream_lag_seconds",
    "Age of the oldest change of a bucket that was not copied to its topic yet.",
    multiprocess_mode="livemax",
)
bridge_restarts = Counter(
    "postroad_change_stream_restarts_total", "How often the copying of a change stream was interrupted and resumed."
)
