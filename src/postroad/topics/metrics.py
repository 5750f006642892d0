"""Metrics of topics."""

from postroad.telemetry.metrics import TenantCounter

published = TenantCounter("postroad_topic_messages_published_total", "Messages published to topics.")
replayed = TenantCounter("postroad_topic_messages_replayed_total", "Messages of topics returned by replays.")
