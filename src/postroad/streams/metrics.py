"""What streams count."""

from postroad.kernel.buffered_metrics import Counter, Gauge
from postroad.telemetry.metrics import TenantCounter

appended = TenantCounter("postroad_stream_appends_total", "Appends to durable streams.")
read_bytes = TenantCounter("postroad_stream_read_bytes_total", "Bytes read from durable streams.")
created = TenantCounter("postroad_streams_created_total", "Durable streams created, forks included.")
deleted = TenantCounter("postroad_streams_deleted_total", "Durable streams deleted or expired.")
append_conflicts = Counter("postroad_stream_append_conflicts_total", "Appends tried again since somebody else had written first.")
slow_readers = Counter("postroad_stream_slow_readers_total", "Live readers sent away since they were too slow.")
followed = Gauge("postroad_streams_followed", "Streams that have live readers here.", multiprocess_mode="livesum")
