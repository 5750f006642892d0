"""Durable streams: append-only, readable from any offset, live or not. A server of the Durable Streams protocol."""
