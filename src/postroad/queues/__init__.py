"""Work queues: publish, lease, settle."""
