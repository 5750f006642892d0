"""AsyncAPI: a description of a tenant's queues, topics, durable streams and events."""
