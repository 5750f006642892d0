"""Live reads of a topic: the reader's position, the next request, and the messages of its response. Sends nothing itself."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from postroad.api.topics import TopicGap, TopicMessage, TopicReady, TopicReset
from postroad.client.calls import Call
from postroad.client.follower import Event, EventParser, LiveReader
from postroad.kernel.errors import Unreachable

Notice = TopicReady | TopicGap | TopicReset
OnNotice = Callable[[Notice], None]

log = logging.getLogger("postroad.topics")

_decode_message = msgspec.json.Decoder(TopicMessage).decode
_NOTICES: dict[str, Callable[[bytes], Notice]] = {
    "ready": msgspec.json.Decoder(TopicReady).decode,
    "gap": msgspec.json.Decoder(TopicGap).decode,
    "reset": msgspec.json.Decoder(TopicReset).decode,
}


class TopicFollower(LiveReader[TopicMessage]):
    """One reader of one topic. `last_event_id` is the position after the last complete event."""

    def __init__(
        self,
        path: str,
        query: Mapping[str, object],
        last_event_id: str | None,
        on_notice: OnNotice | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock)
        self._path, self._query, self._on_notice = path, query, on_notice or _log_notice
        self.last_event_id = last_event_id
        self._parser = EventParser()

    def next_call(self) -> Call[Any]:
        self._begin_request()
        headers = {} if self.last_event_id is None else {"Last-Event-ID": self.last_event_id}
        return Call(method="GET", path=self._path, query=self._query, headers=headers)

    def on_open(self, headers: Mapping[str, str]) -> None:
        self._parser = EventParser()

    def on_data(self, piece: bytes) -> list[TopicMessage]:
        """Raises Unreachable if the response violates the protocol."""
        messages: list[TopicMessage] = []
        for event in self._parser.feed(piece):
            try:
                messages += self._on_event(event)
            except ValueError as exc:
                raise Unreachable(f"the response is not an event stream of a topic: {exc}") from exc
        if self._parser.last_id not in ("", self.last_event_id):
            self.last_event_id = self._parser.last_id
            self._on_success(has_moved=True)
        return messages

    def _on_event(self, event: Event) -> list[TopicMessage]:
        if event.kind in ("", "message"):
            return [_decode_message(event.data)]
        decode = _NOTICES.get(event.kind)
        if decode is not None:
            self._on_notice(decode(event.data))
        return []


def _log_notice(notice: Notice) -> None:
    if isinstance(notice, TopicGap):
        log.warning("messages %d to %d of %s were removed unread", notice.from_sequence, notice.to_sequence, notice.topic)
    elif isinstance(notice, TopicReset):
        log.warning("the topic %s was reset; it is read from message %d on", notice.topic, notice.sequence)
