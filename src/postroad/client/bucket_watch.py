"""A watch of a bucket: its position, the next request, and the changes in its response. Sends nothing itself."""

import time
from collections.abc import Callable, Mapping

import msgspec

from postroad.api.buckets import BucketChange, BucketEntry
from postroad.client.calls import Call
from postroad.client.follower import EventParser, LiveReader
from postroad.kernel.errors import Unreachable

_CHANGES = ("put", "delete", "expire")
_decode_entry = msgspec.json.Decoder(BucketEntry).decode


class BucketWatch(LiveReader[BucketChange]):
    """One watch, which reconnects after its last event. For `follow` of the transports."""

    def __init__(self, call: Call[None], last_id: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._call, self._last_id = call, last_id
        self._parser = EventParser()

    def next_call(self) -> Call[None]:
        self._begin_request()
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
        self._on_success(has_moved=False)
        return changes
