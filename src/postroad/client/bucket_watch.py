"""A watch of a bucket: its position, the next request, and the changes in its response. Sends nothing itself."""

import random
import time
from collections.abc import Callable, Mapping

import msgspec

from postroad.api.buckets import BucketChange, BucketEntry
from postroad.client.calls import Call
from postroad.client.follower import EventParser
from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import PostroadError, Unreachable

_BACKOFF = Backoff(first_seconds=0.1, max_seconds=5.0, jitter=(0.5, 1.0))
_SHORT_SECONDS = 1.0  # a response that ends sooner is followed by a pause
_CHANGES = ("put", "delete", "expire")
_decode_entry = msgspec.json.Decoder(BucketEntry).decode


class BucketWatch:
    """One watch, which reconnects after its last event. For `follow` of the transports."""

    reads_events = True

    def __init__(self, call: Call[None], last_id: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._call, self._last_id, self._clock = call, last_id, clock
        self._parser = EventParser()
        self._failures, self._requested_at = 0, 0.0

    def has_ended(self) -> bool:
        return False

    def next_call(self) -> Call[None]:
        self._requested_at = self._clock()
        headers = {**self._call.headers, **({"Last-Event-ID": self._last_id} if self._last_id else {})}
        return msgspec.structs.replace(self._call, headers=headers)

    def on_open(self, headers: Mapping[str, str]) -> None:
        self._parser = EventParser()

    def on_data(self, piece: bytes) -> list[BucketChange]:
        """The changes that this piece completes. Raises Unreachable if it violates the protocol."""
        changes: list[BucketChange] = []
        for event in self._parser.feed(piece):
            try:
                entry = _decode_entry(event.data) if event.kind in _CHANGES else None
            except ValueError as exc:
                raise Unreachable(f"the response is not a watch of a bucket: {exc}") from exc
            changes.append(BucketChange(kind=event.kind, id=event.id, entry=entry))
            self._last_id = event.id or self._last_id
        self._last_id = self._parser.last_id or self._last_id
        return changes

    def pause_seconds(self) -> float:
        if self._clock() - self._requested_at >= _SHORT_SECONDS:
            self._failures = 0
            return 0.0
        return self._backoff()

    def pause_after(self, problem: PostroadError) -> float:
        """Raises the problem if a retry cannot help."""
        if not problem.retryable:
            raise problem
        return max(problem.retry_after or 0.0, self._backoff())

    def _backoff(self) -> float:
        self._failures += 1
        return _BACKOFF.delay(self._failures, random.random())  # noqa: S311  # spreads readers, no secret
