"""Metrics of buckets."""

from prometheus_client import Gauge

from postroad.telemetry.metrics import TenantCounter

writes = TenantCounter("postroad_bucket_writes_total", "Values written to buckets and deleted from them.")
reads = TenantCounter("postroad_bucket_reads_total", "Values of buckets returned by reads and lists.")
watchers = Gauge("postroad_bucket_watchers", "Open watches of buckets.")
