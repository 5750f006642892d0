"""Metrics of stream subscriptions."""

from postroad.kernel.buffered_metrics import Counter

wakes = Counter("postroad_stream_wakes_total", "Wakes sent to subscribers, by kind and outcome.", ["kind", "outcome"])
