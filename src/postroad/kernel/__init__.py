"""Building blocks without knowledge of any capability: errors, ids, clock, names, JSON, backoff, tasks, metrics.

No network access and, except for the metrics that processes share, no files.
"""
