"""Jobs: the lifecycle of messages, computed from the events on `JOBS` into a file that can be rebuilt at any time."""
