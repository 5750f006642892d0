"""Durable streams: append-only, readable from any offset, once or live. A server of the Durable Streams protocol."""
