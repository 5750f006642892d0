"""Metrics of tracing."""

from postroad.kernel.buffered_metrics import Counter

exported = Counter("postroad_tracing_exported_spans_total", "Spans that the collector has accepted.")
dropped = Counter(
    "postroad_tracing_dropped_spans_total",
    "Spans that were not exported, by reason: queue_full, unreachable, refused, rejected, stopped.",
    ["reason"],
)
