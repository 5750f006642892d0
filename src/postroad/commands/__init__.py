"""Governed commands between services: signed by the sender, allowed by the receiver, delivered to its queue."""
