"""Events in durable frames, samples of processes and storage, and the live stream of events."""
