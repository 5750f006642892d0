"""Live reads of a stream: the reader's position, the next request, and the messages of its response. Sends nothing itself.

A `Follower` first catches up with ordinary reads, which preserve every byte and have the stream's content type, then reads
live. Its position is always an offset from the server: data of a connection that broke before the next offset is dropped and
read again.
"""

import logging
import random
import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from postroad.api.streams import Chunk, StreamMessage, is_json, media_type
from postroad.client.calls import Call
from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import PostroadError, Unreachable

Live = Literal["sse", "long-poll"]
M = TypeVar("M")

log = logging.getLogger("postroad.streams")

SILENCE_SECONDS = 45.0  # the server sends heartbeats: a connection without data for this time is dead
_LONG_POLL_SECONDS = 60.0  # longest wait of a server
_BACKOFF = Backoff(first_seconds=0.1, max_seconds=5.0, jitter=(0.5, 1.0))
_SHORT_SECONDS = 1.0  # a response without progress that ends sooner is followed by a pause


class Position:
    """The last offset from the server, and the number of messages after it to skip."""

    def __init__(self, offset: str, skip: int = 0) -> None:
        if skip < 0:
            raise ValueError("skip is 0 or more")
        self.offset, self._skip = offset, skip

    def advance_by(self, chunk: Chunk) -> list[StreamMessage]:
        """Messages of the chunk; moves the position to its end."""
        if not is_json(chunk.content_type):
            self._skip = 0  # only messages are counted
            return self.advance([chunk.data] if chunk.data else [], chunk.next_offset)
        return self.advance([bytes(raw) for raw in chunk.raw_messages], chunk.next_offset)

    def advance(self, pieces: list[bytes], next_offset: str) -> list[StreamMessage]:
        """Messages of the pieces; `next_offset` is the offset after the last one, the others have none of their own."""
        start, self.offset = self.offset, next_offset
        messages = [
            StreamMessage(offset=start, skip=number, data=piece)
            if number < len(pieces)
            else StreamMessage(offset=next_offset, skip=0, data=piece)
            for number, piece in enumerate(pieces, 1)
        ]
        skipped = min(self._skip, len(messages))
        self._skip -= skipped
        return messages[skipped:]


class Event(msgspec.Struct, frozen=True):
    kind: str
    data: bytes
    id: str = ""


class EventParser:
    """Parser of server-sent events, fed with pieces of any size."""

    _LINE_END = re.compile(rb"\r\n|\n|\r")

    def __init__(self) -> None:
        self._partial_line: list[bytes] = []
        self._after_cr = False
        self._kind, self._data = b"", list[bytes]()
        self._id = ""
        self.last_id = ""  # of the last complete event, also of one without data

    def feed(self, piece: bytes) -> Iterator[Event]:
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):  # the second half of a CR LF
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        first, *more = self._LINE_END.split(piece)
        self._partial_line.append(first)
        for line in more:
            event = self._parse_line(b"".join(self._partial_line))
            self._partial_line = [line]
            if event is not None:
                yield event

    def _parse_line(self, line: bytes) -> Event | None:
        if not line:
            kind = self._kind.decode("utf-8", "replace")
            self.last_id = self._id
            event = Event(kind, b"\n".join(self._data), self.last_id) if self._data else None
            self._kind, self._data = b"", []
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value
        elif name == b"data":
            self._data.append(value)
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        return None


class _Control(msgspec.Struct, frozen=True, rename="camel"):
    stream_next_offset: str
    stream_cursor: str | None = None
    up_to_date: bool = False
    stream_closed: bool = False


_decode_control = msgspec.json.Decoder(_Control).decode


class LiveReader(Generic[M]):
    """A reader that requests the rest after every end of a response, with pauses after failures. Sends nothing itself."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._has_ended = self._has_warned = self._has_moved = False
        self._failures = 0
        self._requested_at = 0.0

    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def reads_events(self) -> bool:
        """True if the next response is an event stream, for `on_open` and `on_data`; otherwise it is a chunk, for `on_chunk`."""
        return True

    def next_call(self) -> Call[Any]:
        raise NotImplementedError

    def on_chunk(self, chunk: Chunk) -> list[M]:
        raise NotImplementedError

    def on_open(self, headers: Mapping[str, str]) -> None:
        """An event stream begins."""
        raise NotImplementedError

    def on_data(self, piece: bytes) -> list[M]:
        """The complete messages after this piece of an event stream."""
        raise NotImplementedError

    def _begin_request(self) -> None:
        self._requested_at, self._has_moved = self._clock(), False

    def _on_success(self, *, has_moved: bool) -> None:
        self._has_moved = self._has_moved or has_moved
        if self._has_warned:
            log.warning("reading the stream works again")
            self._has_warned = False

    def pause_seconds(self) -> float:
        """Pause before the next request after a successful one: none, unless it ended at once without progress."""
        if self._has_ended or self._has_moved or self._clock() - self._requested_at >= _SHORT_SECONDS:
            self._failures = 0
            return 0.0
        return self._backoff()

    def pause_after(self, problem: PostroadError) -> float:
        """Pause before the next request after a failed one. Raises the problem if a retry cannot help."""
        if not problem.retryable:
            raise problem
        if self._has_moved:
            self._failures = 0
        if not self._has_warned:
            log.warning("the stream cannot be read, retrying: %s", problem)
            self._has_warned = True
        return max(problem.retry_after or 0.0, self._backoff())

    def _backoff(self) -> float:
        self._failures += 1
        return _BACKOFF.delay(self._failures, random.random())  # noqa: S311  # spreads readers, no secret


class Follower(LiveReader[StreamMessage]):
    """One reader of one stream, from an offset until the stream is closed.

    `live` None chooses server-sent events, except for text streams: events do not preserve line endings, so text is polled.
    """

    def __init__(
        self, read: Call[Chunk], position: Position, live: Live | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._read, self._position, self._live = read, position, live
        self._content_type: str | None = None
        self._is_behind = True
        self._cursor: str | None = None
        self._parser, self._pieces, self._is_base64 = EventParser(), list[bytes](), False

    @property
    def reads_events(self) -> bool:
        return not self._is_behind and self._live == "sse"

    def next_call(self) -> Call[Chunk]:
        self._begin_request()
        query: dict[str, Any] = {**self._read.query, "offset": self._position.offset}
        if self._is_behind:
            return msgspec.structs.replace(self._read, query=query)
        query |= {"live": self._live, "cursor": self._cursor}
        wait_seconds = 0.0 if self._live == "sse" else _LONG_POLL_SECONDS
        return msgspec.structs.replace(self._read, query=query, wait_seconds=wait_seconds)

    def on_chunk(self, chunk: Chunk) -> list[StreamMessage]:
        if self._content_type is None:
            self._content_type = chunk.content_type
            self._live = self._live or ("long-poll" if media_type(chunk.content_type).startswith("text/") else "sse")
        chunk = msgspec.structs.replace(chunk, content_type=self._content_type)  # an empty response may lack it
        before, has_caught_up = self._position.offset, self._is_behind and chunk.is_up_to_date
        messages = self._position.advance_by(chunk)
        self._is_behind = self._is_behind and not has_caught_up
        self._update(chunk.cursor, is_closed=chunk.is_closed, has_moved=has_caught_up or self._position.offset != before)
        return messages

    def on_open(self, headers: Mapping[str, str]) -> None:
        """An event stream begins."""
        self._parser, self._pieces = EventParser(), []
        self._is_base64 = headers.get("stream-sse-data-encoding", "").lower() == "base64"

    def on_data(self, piece: bytes) -> list[StreamMessage]:
        """Messages whose offset is known after this piece of an event stream. Raises Unreachable if it violates the protocol."""
        messages: list[StreamMessage] = []
        for event in self._parser.feed(piece):
            try:
                if event.kind == "data":
                    self._pieces += self._decode_data(event.data)
                elif event.kind == "control":
                    messages += self._on_control(_decode_control(event.data))
            except ValueError as exc:  # of msgspec and base64
                raise Unreachable(f"the response is not an event stream of the protocol: {exc}") from exc
            if self._has_ended:
                break
        return messages

    def _decode_data(self, data: bytes) -> list[bytes]:
        if is_json(self._content_type or ""):
            return [bytes(raw) for raw in msgspec.json.decode(data, type=list[msgspec.Raw])]
        return [b64decode(data, validate=True) if self._is_base64 else data]

    def _on_control(self, control: _Control) -> list[StreamMessage]:
        pieces, self._pieces = self._pieces, []
        if not is_json(self._content_type or ""):
            pieces = [b"".join(pieces)] if pieces else []
        before = self._position.offset
        messages = self._position.advance(pieces, control.stream_next_offset)
        self._update(control.stream_cursor, is_closed=control.stream_closed, has_moved=self._position.offset != before)
        return messages

    def _update(self, cursor: str | None, *, is_closed: bool, has_moved: bool) -> None:
        self._cursor = cursor or self._cursor
        self._has_ended = self._has_ended or is_closed
        self._on_success(has_moved=has_moved)
