"""Processes of an installation: supervisor, watchdog, worker, embedded NATS server, store monitor, private files."""
