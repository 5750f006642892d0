"""Metrics of the pipeline and its results."""

from postroad.kernel.buffered_metrics import Counter, Gauge

unreadable = Counter(
    "postroad_insights_unreadable_total", "Results of the pipeline that could not be decoded, completely or in part."
)
lag = Gauge(
    "postroad_pipeline_lag_messages",
    "Messages of a stream that the pipeline has not read yet.",
    ["stream"],
    multiprocess_mode="livemostrecent",
)
freshness = Gauge(
    "postroad_pipeline_freshness_seconds",
    "Age of the newest events that may be missing in the published results.",
    multiprocess_mode="livemostrecent",
)
last_batch = Gauge(
    "postroad_pipeline_last_batch_timestamp_seconds",
    "Time of the pipeline's last batch; 0 if there was none.",
    multiprocess_mode="livemostrecent",
)
quarantined = Gauge(
    "postroad_pipeline_quarantined_lines",
    "Lines that are not valid events since the lake was created.",
    multiprocess_mode="livemostrecent",
)
