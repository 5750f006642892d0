"""Everything that happens, as typed events in durable frames, and as metrics."""
