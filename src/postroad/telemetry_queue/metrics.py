"""Metrics of the telemetry queue."""

from postroad.kernel.buffered_metrics import Counter
from postroad.telemetry.metrics import TenantCounter

delivered = TenantCounter("postroad_telemetry_delivered_total", "Events delivered from telemetry queues, by tenant.")
acknowledged = TenantCounter("postroad_telemetry_acked_total", "Messages of telemetry queues acknowledged, by tenant.")
dropped = Counter("postroad_telemetry_dropped_total", "Events of telemetry queues that were not read within the retention.")
