"""Pulls that wait for a message, over all workers."""

from collections.abc import Callable, Mapping

from postroad.jetstream.connection import Connection
from postroad.jetstream.process_counts import ProcessCounts


class WaitingPulls:
    """`local` returns the waiting pulls of this process by stream."""

    def __init__(self, connection: Connection, local: Callable[[], Mapping[str, int]]) -> None:
        self._counts = ProcessCounts(connection, "postroad.waiting", local, interval_seconds=0.5, expiry_seconds=3)
        self.run = self._counts.run

    def count(self, stream: str, open_requests: int | None) -> int:
        """Pulls that wait at a queue, for which JetStream has `open_requests`: one for all pulls of a worker. None: not known."""
        if open_requests is None:
            return self._counts.total(stream)
        return max(open_requests, self._counts.total(stream)) if open_requests else 0
