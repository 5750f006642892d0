"""Sessions: publish once to a stream, and every subscriber has a durable stream of its own to read."""
