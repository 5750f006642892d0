"""Metrics of durable streams."""

from postroad.kernel.buffered_metrics import Counter, Gauge
from postroad.telemetry.metrics import TenantCounter

appended = TenantCounter("postroad_stream_appends_total", "Appends to durable streams.")
read_bytes = TenantCounter("postroad_stream_read_bytes_total", "Bytes read from durable streams.")
created = TenantCounter("postroad_streams_created_total", "Durable streams created, forks included.")
deleted = TenantCounter("postroad_streams_deleted_total", "Durable streams deleted or expired.")
trimmed = TenantCounter("postroad_stream_trimmed_appends_total", "Appends dropped by the retention of their streams.")
append_conflicts = Counter("postroad_stream_append_conflicts_total", "Appends retried because of a concurrent write.")
slow_readers = Counter("postroad_stream_slow_readers_total", "Live readers disconnected because they were too slow.")
directory_compactions = Counter("postroad_stream_directory_compactions_total", "Compactions of directories of streams.")
followed = Gauge("postroad_streams_followed", "Streams with live readers in this process.", multiprocess_mode="livesum")
