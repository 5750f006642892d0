"""Following a stream: where a reader is, what to ask for next, and what came of it. Nothing here sends anything.

A `Follower` first catches up by ordinary reads, which are exact to the byte and tell the stream's type, and then goes live. It
moves on only with an offset that the server gave: what came over a line that broke before that is dropped, and comes again.
"""

import logging
import random
import re
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from postroad.api.streams import Chunk, StreamMessage, is_json, media_type
from postroad.client.calls import Call
from postroad.kernel.errors import PostroadError, Unreachable

Live = Literal["sse", "long-poll"]

log = logging.getLogger("postroad.streams")

SILENCE_SECONDS = 45.0  # a live line on which nothing at all is heard for so long is dead
_LONG_POLL_SECONDS = 60.0  # a server may keep a poll waiting for so long
_PAUSES = (0.1, 5.0)
_SHORT_SECONDS = 1.0  # who comes back sooner, and with nothing, pauses


class Position:
    """The last offset that the server gave, and how many messages after it are not wanted again."""

    def __init__(self, offset: str, skip: int = 0) -> None:
        if skip < 0:
            raise ValueError("skip is 0 or more")
        self.offset, self._skip = offset, skip

    def take(self, chunk: Chunk) -> list[StreamMessage]:
        """What the chunk has; the position is after it then."""
        if not is_json(chunk.content_type):
            self._skip = 0  # it counts messages
            return self.advance([chunk.data] if chunk.data else [], chunk.next_offset)
        return self.advance([bytes(raw) for raw in chunk.raw_messages], chunk.next_offset)

    def advance(self, pieces: list[bytes], following: str) -> list[StreamMessage]:
        """`following` is the offset after the last piece; those before have none of their own."""
        start, self.offset = self.offset, following
        messages = [
            StreamMessage(offset=start, skip=number, data=piece)
            if number < len(pieces)
            else StreamMessage(offset=following, skip=0, data=piece)
            for number, piece in enumerate(pieces, 1)
        ]
        left_out = min(self._skip, len(messages))
        self._skip -= left_out
        return messages[left_out:]


class Event(msgspec.Struct, frozen=True):
    kind: str
    data: bytes


class EventParser:
    """Server-sent events out of the pieces that a line brings, wherever it cuts them."""

    _LINE_END = re.compile(rb"\r\n|\n|\r")

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._after_cr = False
        self._kind, self._data = b"", list[bytes]()

    def feed(self, piece: bytes) -> Iterator[Event]:
        if not piece:
            return
        if self._after_cr and piece.startswith(b"\n"):  # the other half of a line's end
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        first, *more = self._LINE_END.split(piece)
        self._begun.append(first)
        for line in more:
            event = self._line(b"".join(self._begun))
            self._begun = [line]
            if event is not None:
                yield event

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._kind.decode("utf-8", "replace"), b"\n".join(self._data)) if self._data else None
            self._kind, self._data = b"", []
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value
        elif name == b"data":
            self._data.append(value)
        return None


class _Control(msgspec.Struct, frozen=True, rename="camel"):
    stream_next_offset: str
    stream_cursor: str | None = None
    up_to_date: bool = False
    stream_closed: bool = False


_control = msgspec.json.Decoder(_Control).decode


class Follower:
    """One reader of one stream, from an offset until the stream is closed.

    `live` None is by server-sent events, except for text: those do not keep which line ends it has, so that is polled for.
    """

    def __init__(
        self, read: Call[Chunk], position: Position, live: Live | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read, self._position, self._live, self._clock = read, position, live, clock
        self._content_type: str | None = None
        self._is_behind, self._is_over = True, False
        self._cursor: str | None = None
        self._failures = 0
        self._has_complained = self._has_moved = False
        self._asked_at = 0.0
        self._parser, self._pieces, self._is_base64 = EventParser(), list[bytes](), False

    def is_over(self) -> bool:
        return self._is_over

    @property
    def listens(self) -> bool:
        """Whether the next call's answer is a line of events to `hear`; otherwise it is a chunk to `take`."""
        return not self._is_behind and self._live == "sse"

    def call(self) -> Call[Chunk]:
        """What to ask for next."""
        self._asked_at, self._has_moved = self._clock(), False
        query: dict[str, Any] = {**self._read.query, "offset": self._position.offset}
        if self._is_behind:
            return msgspec.structs.replace(self._read, query=query)
        query |= {"live": self._live, "cursor": self._cursor}
        wait_seconds = 0.0 if self._live == "sse" else _LONG_POLL_SECONDS
        return msgspec.structs.replace(self._read, query=query, wait_seconds=wait_seconds)

    def take(self, chunk: Chunk) -> list[StreamMessage]:
        if self._content_type is None:
            self._content_type = chunk.content_type
            self._live = self._live or ("long-poll" if media_type(chunk.content_type).startswith("text/") else "sse")
        chunk = msgspec.structs.replace(chunk, content_type=self._content_type)  # an empty answer need not say it
        before, has_caught_up = self._position.offset, self._is_behind and chunk.is_up_to_date
        messages = self._position.take(chunk)
        self._is_behind = self._is_behind and not has_caught_up
        self._heard(chunk.cursor, is_closed=chunk.is_closed, has_moved=has_caught_up or self._position.offset != before)
        return messages

    def opened(self, headers: Mapping[str, str]) -> None:
        """A line of events begins."""
        self._parser, self._pieces = EventParser(), []
        self._is_base64 = headers.get("stream-sse-data-encoding", "").lower() == "base64"

    def hear(self, piece: bytes) -> list[StreamMessage]:
        """What the line brought, as far as its offset is known. Raises Unreachable for what is not the protocol's."""
        messages: list[StreamMessage] = []
        for event in self._parser.feed(piece):
            try:
                if event.kind == "data":
                    self._pieces += self._unpacked(event.data)
                elif event.kind == "control":
                    messages += self._reached(_control(event.data))
            except ValueError as exc:  # msgspec's, and base64's
                raise Unreachable(f"what came is not an event of a stream: {exc}") from exc
            if self._is_over:
                break
        return messages

    def _unpacked(self, data: bytes) -> list[bytes]:
        if is_json(self._content_type or ""):
            return [bytes(raw) for raw in msgspec.json.decode(data, type=list[msgspec.Raw])]
        return [b64decode(data, validate=True) if self._is_base64 else data]

    def _reached(self, control: _Control) -> list[StreamMessage]:
        pieces, self._pieces = self._pieces, []
        if not is_json(self._content_type or ""):
            pieces = [b"".join(pieces)] if pieces else []
        before = self._position.offset
        messages = self._position.advance(pieces, control.stream_next_offset)
        self._heard(control.stream_cursor, is_closed=control.stream_closed, has_moved=self._position.offset != before)
        return messages

    def _heard(self, cursor: str | None, *, is_closed: bool, has_moved: bool) -> None:
        self._cursor = cursor or self._cursor
        self._is_over = self._is_over or is_closed
        self._has_moved = self._has_moved or has_moved
        if self._has_complained:
            log.warning("the stream can be read again")
            self._has_complained = False

    def rest(self) -> float:
        """How long to pause before the next call, when one has ended well: not at all, unless it ended at once with nothing."""
        if self._is_over or self._has_moved or self._clock() - self._asked_at >= _SHORT_SECONDS:
            self._failures = 0
            return 0.0
        return self._pause()

    def rest_after(self, problem: PostroadError) -> float:
        """As `rest`, when it did not go well. Raises the problem if asking again cannot help."""
        if not problem.retryable:
            raise problem
        if self._has_moved:
            self._failures = 0
        if not self._has_complained:
            log.warning("the stream cannot be read just now: %s", problem)
            self._has_complained = True
        return max(problem.retry_after or 0.0, self._pause())

    def _pause(self) -> float:
        first, longest = _PAUSES
        pause = min(first * 2.0 ** min(self._failures, 10), longest)
        self._failures += 1
        return pause * random.uniform(0.5, 1.0)  # noqa: S311  # spreads readers, guards nothing
