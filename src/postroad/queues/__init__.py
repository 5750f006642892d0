"""Queues: publish, pull, ack, nack, dead letters."""
