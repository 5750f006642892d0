"""Holds the writes of a process during maintenance, so that all streams have the state of one moment while they are copied."""

from collections.abc import Iterator
from contextlib import contextmanager

from postroad.kernel.errors import Maintenance


class WriteGate:
    """Admits writes unless they are held. `exempt` are streams whose writes are never held: they are not part of a backup.

    `admitted` counts the writes so far, `in_progress` those that `writing` covers and that have not ended.
    """

    __slots__ = ("_held_for", "_held_seconds", "admitted", "exempt", "in_progress")

    def __init__(self) -> None:
        self.exempt: frozenset[str] = frozenset()
        self.admitted = 0
        self.in_progress = 0
        self._held_for: str | None = None
        self._held_seconds = 1.0

    @property
    def is_held(self) -> bool:
        return self._held_for is not None

    def hold(self, reason: str, retry_after: float) -> None:
        self._held_for, self._held_seconds = reason, retry_after

    def release(self) -> None:
        self._held_for = None

    def admit(self, stream: str) -> None:
        """Count a write to the stream. Raises Maintenance while writes are held."""
        if stream in self.exempt:
            return
        if self._held_for is not None:
            raise Maintenance(f"writes are held: {self._held_for}", retry_after=self._held_seconds)
        self.admitted += 1

    @contextmanager
    def writing(self, stream: str) -> Iterator[None]:
        """A write to the stream that takes as long as the block. Raises Maintenance while writes are held."""
        self.begin(stream)
        try:
            yield
        finally:
            self.end()

    def begin(self, stream: str) -> None:
        """A write to the stream that takes until `end`. Raises Maintenance while writes are held."""
        self.admit(stream)
        self.in_progress += 1

    def end(self) -> None:
        self.in_progress -= 1
