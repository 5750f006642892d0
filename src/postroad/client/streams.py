"""`client.streams`: durable streams, by the Durable Streams protocol. Every call is defined once for both clients.

`project` names the tenant in the path; without it, it is the caller's own.
"""

from collections.abc import Sequence
from typing import Any

import httpx

from postroad.api.streams import Appended, Chunk, CreatedStream, StreamInfo, StreamMessage
from postroad.client.calls import AsyncNamespace, Call, Content, Pages, SyncNamespace, live, operation, pages
from postroad.client.encoding import Moment, given, moment
from postroad.client.follower import Follower, Live, Position
from postroad.client.producer import AsyncProducer, Numbering, Producer
from postroad.client.stream_protocol import (
    JSON,
    append_call,
    content_of,
    content_of_messages,
    is_marked,
    stream_path,
)

_NOT_THERE = {404: "stream-not-found", 410: "stream-gone"}


class StreamCalls:
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
        body: bytes | None = None,
        messages: Sequence[Any] | None = None,
        project: str | None = None,
    ) -> Call[CreatedStream]:
        """Make the stream; if it is there already, just so, nothing is done. Raises StreamExists if it is another.

        What it begins with is a `body` of that content type or, for a JSON stream, `messages`. With `ttl_seconds` it expires when
        it was neither read nor written for so long. With `closed` what it begins with is all there will be. A `public` one may
        be read by anyone, without a key.
        """
        if body is not None and messages is not None:
            raise ValueError("a stream begins with a body or with messages, not with both")
        content = Content(body or b"", content_type) if messages is None else content_of_messages(messages, content_type)
        marks = {"Stream-Closed": "true" if closed else None, "Stream-Public": "true" if public else None}
        headers = _lifetime(ttl_seconds, expires_at) | given(**marks)
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
        """Make a stream that begins with what `source` has, up to `offset` or its end, and goes its own way from there.

        `sub_offset` takes so many more messages (or bytes) of the append that comes next at `offset`. Without a lifetime of its
        own it has the source's. Raises StreamNotFound, StreamExists.
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
        """Return once it is stored durably. Bytes are appended as they are; anything else is one message of a JSON stream.

        Bytes are said to be `application/octet-stream` unless `content_type` says what the stream is. `seq` must be greater than
        the last one, compared as text. Not sent again when its answer is lost: a `producer`'s appends are. Raises StreamNotFound,
        StreamClosed, ContentTypeMismatch, SequenceConflict.
        """
        headers = given(**{"Stream-Seq": seq})
        return append_call(stream_path(stream, project), content_of(data, content_type), headers, is_repeatable=False)

    @operation
    def append_many(
        self, stream: str, messages: Sequence[Any], *, seq: str | None = None, project: str | None = None
    ) -> Call[Appended]:
        """Several messages of a JSON stream, all or none."""
        headers = given(**{"Stream-Seq": seq})
        return append_call(stream_path(stream, project), content_of_messages(messages), headers, is_repeatable=False)

    @operation
    def close(
        self, stream: str, data: Any = None, *, content_type: str | None = None, project: str | None = None
    ) -> Call[Appended]:
        """Nothing can be appended from now on; readers come to an end. With `data`, as the last append, in one step.

        To close a closed stream is fine. Raises StreamNotFound and, with `data`, StreamClosed.
        """
        content = None if data is None else content_of(data, content_type)
        return append_call(stream_path(stream, project), content, {}, closes=True, is_repeatable=data is None)

    @operation
    def info(self, stream: str, *, project: str | None = None) -> Call[StreamInfo]:
        """What the stream is and where it ends. Raises StreamNotFound, StreamGone."""
        return Call(method="HEAD", path=stream_path(stream, project), codes=_NOT_THERE, read=_info)

    @operation
    def read(self, stream: str, offset: str | None = None, *, project: str | None = None) -> Call[Chunk]:
        """What follows the offset (None: from the start; `"now"`: nothing, but where the end is), as much as the server likes.

        Go on from `next_offset` until it `is_up_to_date`. Raises StreamNotFound, StreamGone.
        """
        return _read(stream, offset, project)

    @pages
    def messages(
        self, stream: str, offset: str | None = None, *, skip: int = 0, project: str | None = None
    ) -> Pages[StreamMessage]:
        """All that the stream has now after the offset: a JSON stream's messages, another one's bytes as they come."""
        position = Position(offset or "-1", skip)
        return Pages(
            call=_read(stream, offset, project),
            items=position.take,
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
        """As `messages`, and then what is appended, as it comes, until the stream is closed. `"now"`: only what is to come.

        While no server answers it keeps trying; each message comes once. To go on later without a gap or a repetition, save a
        message's `offset` and `skip` when it is done with, and pass both. `live` None is by server-sent events, except for
        text, whose line ends only `"long-poll"` keeps. Raises StreamNotFound, StreamGone, and what else asking again cannot help.
        """
        return follower(stream, offset, skip, live, project)

    @operation
    def delete(self, stream: str, *, project: str | None = None) -> Call[None]:
        """Forks keep what they have of it. Raises StreamNotFound, also when a repeated try finds it gone already, StreamGone."""
        return Call(method="DELETE", path=stream_path(stream, project))


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
        is_closed=is_marked(response, "stream-closed"),
        is_new=response.status_code == 201,
    )


def _info(response: httpx.Response) -> StreamInfo:
    ttl = response.headers.get("stream-ttl", "")
    return StreamInfo(
        content_type=response.headers.get("content-type", ""),
        offset=response.headers.get("stream-next-offset", ""),
        is_closed=is_marked(response, "stream-closed"),
        ttl_seconds=int(ttl) if ttl.isdigit() else None,
        expires_at=response.headers.get("stream-expires-at"),
    )


def _chunk(response: httpx.Response) -> Chunk:
    return Chunk(
        content_type=response.headers.get("content-type", ""),
        data=response.content,
        next_offset=response.headers["stream-next-offset"],
        is_up_to_date=is_marked(response, "stream-up-to-date"),
        is_closed=is_marked(response, "stream-closed"),
        cursor=response.headers.get("stream-cursor"),
    )


class Streams(StreamCalls, SyncNamespace):
    def producer(
        self, stream: str, producer_id: str, epoch: int = 0, *, next_seq: int = 0, project: str | None = None
    ) -> Producer:
        """Appends that are stored once each, however often they are sent. Nothing is sent yet."""
        return Producer(self._transport, Numbering(stream_path(stream, project), producer_id, epoch, next_seq))


class AsyncStreams(StreamCalls, AsyncNamespace):
    def producer(
        self, stream: str, producer_id: str, epoch: int = 0, *, next_seq: int = 0, project: str | None = None
    ) -> AsyncProducer:
        """Appends that are stored once each, however often they are sent. Nothing is sent yet."""
        return AsyncProducer(self._transport, Numbering(stream_path(stream, project), producer_id, epoch, next_seq))
