"""Postroad: queues, topics, durable streams, sessions, buckets and governed commands over HTTP, on NATS JetStream."""

__version__ = "0.1.0"
