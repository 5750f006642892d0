"""Regions: where servers are, and where the streams of queues, topics and buckets are placed."""
