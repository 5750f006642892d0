"""Subscriptions: messages of topics are delivered to HTTP endpoints and queues."""
