"""What can be counted of subscriptions."""

from postroad.kernel.buffered_metrics import Counter

wakes = Counter("postroad_stream_wakes_total", "Subscribers that were woken, by how and what came of it.", ["kind", "outcome"])
