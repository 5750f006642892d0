"""`client.streams`: durable streams (Durable Streams protocol). `project` is the tenant in the path; default: that of the key."""

from collections.abc import Sequence
from typing import Any

import httpx

from postroad.api.streams import Appended, Chunk, CreatedStream, StreamInfo, StreamMessage
from postroad.client.calls import AsyncNamespace, Call, Content, Pages, SyncNamespace, live, operation, pages
from postroad.client.encoding import Moment, given, moment
from postroad.client.follower import Follower, Live, Position
from postroad.client.generated.streams import StreamsCalls
from postroad.client.producer import AsyncProducer, Numbering, Producer
from postroad.client.stream_protocol import (
    JSON,
    append_call,
    content_of,
    content_of_messages,
    is_true,
    stream_path,
)

_HEAD_CODES = {404: "stream-not-found", 410: "stream-gone"}


class StreamCalls(StreamsCalls):
    @operation
    def create(
        self,
        stream: str,
        *,
        content_type: str = JSON,
        ttl_seconds: int | None = None,
        expires_at: Moment | None = None,
        closed: bool = False,
        public: bool = False,
        max_age_seconds: int | None = None,
        max_bytes: int | None = None,
        max_count: int | None = None,
        body: bytes | None = None,
        messages: Sequence[Any] | None = None,
        project: str | None = None,
    ) -> Call[CreatedStream]:
        """Create a stream. Does nothing if it exists with the same properties. Raises StreamExists if it exists with others.

        Its first data is a `body` of that content type or, for a JSON stream, `messages`. With `ttl_seconds` it expires after
        that time without reads and writes. Appends older than `max_age_seconds` are dropped, and the oldest ones beyond
        `max_bytes` or `max_count` appends. `closed` closes it after the first data. A `public` stream can be read without a key.
        """
        if body is not None and messages is not None:
            raise ValueError("pass `body` or `messages`, not both")
        content = Content(body or b"", content_type) if messages is None else content_of_messages(messages, content_type)
        flags = {"Stream-Closed": "true" if closed else None, "Stream-Public": "true" if public else None}
        limits = {"Stream-Max-Age": max_age_seconds, "Stream-Max-Bytes": max_bytes, "Stream-Max-Count": max_count}
        headers = _lifetime(ttl_seconds, expires_at) | given(**flags)
        headers |= {name: str(value) for name, value in limits.items() if value is not None}
        return Call(method="PUT", path=stream_path(stream, project), body=content, headers=headers, read=_created)

    @operation
    def fork(
        self,
        stream: str,
        source: str,
        *,
        offset: str | None = None,
        sub_offset: int | None = None,
        ttl_seconds: int | None = None,
        expires_at: Moment | None = None,
        project: str | None = None,
    ) -> Call[CreatedStream]:
        """Create a stream that starts with the data of `source` up to `offset`, or up to its end.

        `sub_offset` includes that many messages (or bytes) of the next append at `offset`. Without a lifetime of its own the fork
        has the source's. Raises StreamNotFound, StreamExists.
        """
        headers = {"Stream-Forked-From": stream_path(source, project)} | _lifetime(ttl_seconds, expires_at)
        sub = None if sub_offset is None else str(sub_offset)
        headers |= given(**{"Stream-Fork-Offset": offset, "Stream-Fork-Sub-Offset": sub})
        return Call(method="PUT", path=stream_path(stream, project), headers=headers, read=_created)

    @operation
    def append(
        self,
        stream: str,
        data: Any,
        *,
        content_type: str | None = None,
        seq: str | None = None,
        project: str | None = None,
    ) -> Call[Appended]:
        """Append, and return once the data is durable. Bytes are appended unchanged; other values are one message of a JSON
        stream.

        The content type of bytes is `application/octet-stream` unless `content_type` names another. `seq` must be greater than
        the last one, compared as text. Not repeated if the response is lost; appends of a `producer` are. Raises
        StreamNotFound, StreamClosed, ContentTypeMismatch, SequenceConflict.
        """
        headers = given(**{"Stream-Seq": seq})
        return append_call(stream_path(stream, project), content_of(data, content_type), headers, is_repeatable=False)

    @operation
    def append_many(
        self, stream: str, messages: Sequence[Any], *, seq: str | None = None, project: str | None = None
    ) -> Call[Appended]:
        """Append several messages of a JSON stream, all or none."""
        headers = given(**{"Stream-Seq": seq})
        return append_call(stream_path(stream, project), content_of_messages(messages), headers, is_repeatable=False)

    @operation
    def close(
        self, stream: str, data: Any = None, *, content_type: str | None = None, project: str | None = None
    ) -> Call[Appended]:
        """Close the stream: no more appends, and its readers end. `data` is a last append in the same step.

        Closing a closed stream has no effect. Raises StreamNotFound and, with `data`, StreamClosed.
        """
        content = None if data is None else content_of(data, content_type)
        return append_call(stream_path(stream, project), content, {}, closes=True, is_repeatable=data is None)

    @operation
    def info(self, stream: str, *, project: str | None = None) -> Call[StreamInfo]:
        """Show the properties and the end of the stream. Raises StreamNotFound, StreamGone."""
        return Call(method="HEAD", path=stream_path(stream, project), codes=_HEAD_CODES, read=_info)

    @operation
    def read(self, stream: str, offset: str | None = None, *, project: str | None = None) -> Call[Chunk]:
        """Read data after the offset (None: from the start; `"now"`: no data, only the current end), up to the server's limit.

        Continue at `next_offset` until `is_up_to_date`. Raises StreamNotFound, StreamGone, OffsetGone.
        """
        return _read(stream, offset, project)

    @pages
    def messages(
        self, stream: str, offset: str | None = None, *, skip: int = 0, project: str | None = None
    ) -> Pages[StreamMessage]:
        """Iterate over everything after the offset: messages of a JSON stream, or pieces of bytes of another stream."""
        position = Position(offset or "-1", skip)
        return Pages(
            call=_read(stream, offset, project),
            items=position.advance_by,
            cursor=lambda chunk: None if chunk.is_up_to_date else chunk.next_offset,
            cursor_name="offset",
        )

    @live
    def follow(
        self,
        stream: str,
        offset: str | None = None,
        *,
        skip: int = 0,
        live: Live | None = None,
        project: str | None = None,
    ) -> Follower:
        """Like `messages`, then new messages as they are appended, until the stream is closed. `"now"`: new messages only.

        Retries while no server responds; each message is returned once. To continue later without gaps and repetitions, save
        the `offset` and `skip` of the last processed message and pass both. `live` None uses server-sent events, except for text
        streams, whose line endings only `"long-poll"` preserves. Raises StreamNotFound, StreamGone, OffsetGone and other
        permanent errors.
        """
        return follower(stream, offset, skip, live, project)


def follower(stream: str, offset: str | None, skip: int, live: Live | None, project: str | None) -> Follower:
    return Follower(_read(stream, None, project), Position(offset or "-1", skip), live)


def _read(stream: str, offset: str | None, project: str | None) -> Call[Chunk]:
    return Call(method="GET", path=stream_path(stream, project), query={"offset": offset}, read=_chunk)


def _lifetime(ttl_seconds: int | None, expires_at: Moment | None) -> dict[str, str]:
    ttl = None if ttl_seconds is None else str(ttl_seconds)
    return given(**{"Stream-TTL": ttl, "Stream-Expires-At": moment(expires_at)})


def _created(response: httpx.Response) -> CreatedStream:
    return CreatedStream(
        content_type=response.headers.get("content-type", ""),
        offset=response.headers.get("stream-next-offset", ""),
        is_closed=is_true(response, "stream-closed"),
        is_new=response.status_code == 201,
    )


def _info(response: httpx.Response) -> StreamInfo:
    ttl = response.headers.get("stream-ttl", "")
    return StreamInfo(
        content_type=response.headers.get("content-type", ""),
        offset=response.headers.get("stream-next-offset", ""),
        is_closed=is_true(response, "stream-closed"),
        ttl_seconds=int(ttl) if ttl.isdecimal() else None,
        expires_at=response.headers.get("stream-expires-at"),
        start_offset=response.headers.get("stream-start-offset"),
        max_age_seconds=_integer(response, "stream-max-age"),
        max_bytes=_integer(response, "stream-max-bytes"),
        max_count=_integer(response, "stream-max-count"),
    )


def _integer(response: httpx.Response, header: str) -> int | None:
    text = response.headers.get(header, "")
    return int(text) if text.isdecimal() else None


def _chunk(response: httpx.Response) -> Chunk:
    return Chunk(
        content_type=response.headers.get("content-type", ""),
        data=response.content,
        next_offset=response.headers["stream-next-offset"],
        is_up_to_date=is_true(response, "stream-up-to-date"),
        is_closed=is_true(response, "stream-closed"),
        cursor=response.headers.get("stream-cursor"),
    )


class Streams(StreamCalls, SyncNamespace):
    def producer(
        self, stream: str, producer_id: str, epoch: int = 0, *, next_seq: int = 0, project: str | None = None
    ) -> Producer:
        """Return a producer, whose appends are stored once even if they are sent repeatedly. Sends nothing."""
        return Producer(self._transport, Numbering(stream_path(stream, project), producer_id, epoch, next_seq))


class AsyncStreams(StreamCalls, AsyncNamespace):
    def producer(
        self, stream: str, producer_id: str, epoch: int = 0, *, next_seq: int = 0, project: str | None = None
    ) -> AsyncProducer:
        """Return a producer, whose appends are stored once even if they are sent repeatedly. Sends nothing."""
        return AsyncProducer(self._transport, Numbering(stream_path(stream, project), producer_id, epoch, next_seq))
