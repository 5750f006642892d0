"""Metrics of topics."""

from postroad.kernel.buffered_metrics import Counter, Gauge
from postroad.telemetry.metrics import TenantCounter

published = TenantCounter("postroad_topic_messages_published_total", "Messages published to topics.")
replayed = TenantCounter("postroad_topic_messages_replayed_total", "Messages of topics returned by replays.")
live_readers = Gauge("postroad_topic_live_readers", "Open live reads of topics.", multiprocess_mode="livesum")
live_messages = TenantCounter("postroad_topic_live_messages_total", "Messages of topics sent to live readers.")
live_slow_readers = Counter("postroad_topic_live_slow_readers_total", "Live readers disconnected because they were too slow.")
live_gaps = Counter("postroad_topic_live_gaps_total", "Gaps reported to live readers: messages removed before they were read.")
live_catch_ups = Counter("postroad_topic_live_catch_ups_total", "Live readers that read older messages before they were live.")
