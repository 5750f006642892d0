"""Live reads of a tenant's events: position, next request, and the events of its response. Sends nothing itself."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from postroad.client.calls import Call
from postroad.client.follower import EventParser, LiveReader
from postroad.kernel.errors import Unreachable


class TelemetryFollower(LiveReader[dict[str, Any]]):
    """`last_event_id` is the position after the last complete frame: after an interruption within a frame, its events come
    again with the same `event_id`."""

    def __init__(
        self,
        query: Mapping[str, object],
        last_event_id: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._query, self.last_event_id = query, last_event_id
        self._parser = EventParser()

    def next_call(self) -> Call[Any]:
        self._begin_request()
        headers = {} if self.last_event_id is None else {"Last-Event-ID": self.last_event_id}
        return Call(method="GET", path="/v1/telemetry/stream", query=self._query, headers=headers)

    def on_open(self, headers: Mapping[str, str]) -> None:
        self._parser = EventParser()

    def on_data(self, piece: bytes) -> list[dict[str, Any]]:
        """Raises Unreachable if the response violates the protocol."""
        try:
            events: list[dict[str, Any]] = [msgspec.json.decode(event.data) for event in self._parser.feed(piece)]
        except ValueError as exc:
            raise Unreachable(f"the response is not a stream of events: {exc}") from exc
        if self._parser.last_id not in ("", self.last_event_id):
            self.last_event_id = self._parser.last_id
            self._on_success(has_moved=True)
        return events
