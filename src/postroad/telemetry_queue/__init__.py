"""The queue `_telemetry`: the events about a tenant's commands, leased like the messages of any queue."""
