"""Metrics of the telemetry queue."""

from postroad.kernel.buffered_metrics import Counter, Gauge
from postroad.telemetry.metrics import TenantCounter

delivered = TenantCounter("postroad_telemetry_delivered_total", "Events delivered from telemetry queues, by tenant.")
acknowledged = TenantCounter("postroad_telemetry_acked_total", "Messages of telemetry queues acknowledged, by tenant.")
dropped = Counter(
    "postroad_telemetry_dropped_total", "Events of telemetry queues that were not read before they left the stream."
)
evicted = Counter(
    "postroad_telemetry_evicted_frames_total", "Frames of commands removed before their retention, for lack of room."
)
fill = Gauge(
    "postroad_telemetry_stream_fill_ratio",
    "Size of the stream of command events, as a part of its largest one.",
    multiprocess_mode="livemax",
)
