"""Processes of an installation: supervisor, worker, embedded NATS server, private files."""
