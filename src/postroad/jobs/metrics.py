"""Metrics of the job index."""

from postroad.kernel.buffered_metrics import Counter, Gauge, Histogram

events = Counter("postroad_jobs_events_total", "Job events added to the job index.")
unreadable = Counter("postroad_jobs_unreadable_total", "Frames, or events in frames, that could not be decoded.")
missed = Counter("postroad_jobs_missed_frames_total", "Frames that were removed from JOBS before they were read.")
behind_frames = Gauge("postroad_jobs_behind_frames", "Stored frames that were not read yet.", multiprocess_mode="livesum")
behind_seconds = Gauge(
    "postroad_jobs_behind_seconds", "Age of the newest frame that was read, while there are more.", multiprocess_mode="livemax"
)
batch_seconds = Histogram(
    "postroad_jobs_batch_seconds", "Time to apply a batch of frames.", buckets=(0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 5)
)
pruned = Counter("postroad_jobs_pruned_total", "Jobs removed from the index after the retention period.")
reconciled = Counter(
    "postroad_jobs_reconciled_total", "Jobs that were ended because their message had left its queue without an event."
)
trimmed = Counter("postroad_frames_trimmed_total", "Frames of events removed because every reader has stored them.")
rebuilds = Counter("postroad_jobs_rebuilds_total", "Rebuilds of the job index from the whole stream.")
history_unreadable = Counter(
    "postroad_jobs_history_unreadable_total", "Chunks of the job archive that could not be decoded, completely or in part."
)
history_failures = Counter(
    "postroad_jobs_history_failures_total", "Lists of jobs without the archive, because it did not answer."
)
failures = Counter("postroad_jobs_failures_total", "Times that the index file was opened again.")
