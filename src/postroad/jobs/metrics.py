"""What the jobs' projection counts."""

from postroad.kernel.buffered_metrics import Counter, Gauge, Histogram

events = Counter("postroad_jobs_events_total", "Job events that were folded into jobs.")
unreadable = Counter("postroad_jobs_unreadable_total", "Frames, or events in frames, that could not be read and were left out.")
missed = Counter("postroad_jobs_missed_frames_total", "Frames that JOBS no longer had when they were to be read.")
behind_frames = Gauge("postroad_jobs_behind_frames", "Frames that are stored and not folded yet.", multiprocess_mode="livesum")
behind_seconds = Gauge(
    "postroad_jobs_behind_seconds", "Age of the newest folded frame, while there are more.", multiprocess_mode="livemax"
)
batch_seconds = Histogram(
    "postroad_jobs_batch_seconds", "To fold and store a batch of frames.", buckets=(0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 5)
)
pruned = Counter("postroad_jobs_pruned_total", "Jobs that ended long ago and were forgotten.")
rebuilds = Counter("postroad_jobs_rebuilds_total", "Files made anew of the whole stream.")
history_unreadable = Counter(
    "postroad_jobs_history_unreadable_total", "Chunks of the archive of jobs that could not be read, in all or in part."
)
history_failures = Counter("postroad_jobs_history_failures_total", "Lists of jobs that had to do without the archive.")
failures = Counter("postroad_jobs_failures_total", "Times that the file had to be opened again.")
