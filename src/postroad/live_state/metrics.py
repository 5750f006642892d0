"""Metrics of live state."""

from postroad.kernel.buffered_metrics import Gauge, Histogram

streams = Gauge("postroad_live_state_streams", "Open streams of live state.", multiprocess_mode="livesum")
refresh_seconds = Histogram("postroad_live_state_refresh_seconds", "Time to read the watched sections of a tenant.")
