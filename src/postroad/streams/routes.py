"""The Durable Streams protocol over HTTP."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Handler, Route
from postroad.kernel.clock import Clock
from postroad.kernel.errors import (
    ContentTypeMismatch,
    EngineFull,
    EngineUnavailable,
    Forbidden,
    InvalidParameter,
    MalformedJson,
    PostroadError,
    PreconditionFailed,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamNotFound,
    TooLarge,
    Unauthenticated,
)
from postroad.kernel.identity import MISSING_CREDENTIALS_HINT, Caller, Scope
from postroad.kernel.names import stream_id
from postroad.streams import protocol_headers
from postroad.streams.content import is_text, joined, json_data
from postroad.streams.cursors import cursor_after, parse_cursor
from postroad.streams.live_reads import Live
from postroad.streams.offsets import NOW, Place, parse_place
from postroad.streams.reading import Chunk
from postroad.streams.records import media_type
from postroad.streams.rules import PRODUCER_CHARS_MAX, SAFE_INTEGER, SEQ_CHARS_MAX, AppendRequest, check_seq
from postroad.streams.service import Streams
from postroad.streams.store import Name

_TAG = "streams"
_MISSING = (StreamNotFound, StreamGone)
_PUBLIC = "Anyone may read a public one."
_OFFSET = r"^[0-9]{1,20}_[0-9]{1,20}$"
_WORD = r"^[!-~]([ -~]*[!-~])?$"  # what is left of a header's value, blanks at its ends being no part of it


class ReadQuery(msgspec.Struct, frozen=True):
    """The patterns are for readers of the description; `offsets` and `cursors` check."""

    offset: (
        Annotated[
            str,
            Meta(
                description="Where to begin: an offset, `-1` for the start, `now` for the end.",
                extra_json_schema={"pattern": f"^-1$|^now$|{_OFFSET}"},
            ),
        ]
        | None
    ) = None
    live: Annotated[Literal["long-poll", "sse"], Meta(description="Wait for what comes.")] | None = None
    cursor: (
        Annotated[
            str, Meta(description="The `Stream-Cursor` of the last answer.", extra_json_schema={"pattern": "^[0-9]{1,18}$"})
        ]
        | None
    ) = None


class StreamRoutes:
    def __init__(self, streams: Streams, live: Live, clock: Clock, public_url: str | None) -> None:
        self._streams, self._live, self._clock, self._public_url = streams, live, clock, public_url

    def table(self) -> list[Route]:
        return [route for root in ("/v1/stream/{stream}", "/v1/{project}/stream/{stream}") for route in self._at(root)]

    def _at(self, path: str) -> list[Route]:
        def route(method: str, handler: Handler, scope: Scope, summary: str, **more: object) -> Route:
            return Route(method, path, handler, scope, summary, _TAG, takes_jwt=True, takes_anyone=True, takes_rest=True, **more)  # type: ignore[arg-type]

        written = (*_MISSING, InvalidParameter, MalformedJson, TooLarge, EngineFull, EngineUnavailable)
        return [
            route(
                "PUT",
                self.create_stream,
                Scope.WRITE,
                "Create a stream, or make sure that it is there",
                takes_bytes=True,
                status=201,
                more_statuses=(200,),
                media="",
                headers=_CREATE_HEADERS,
                errors=(*written, StreamExists, ContentTypeMismatch, PreconditionFailed),
                description="The body is what it begins with. The same call again answers 200, another configuration 409.",
            ),
            route(
                "POST",
                self.append_to_stream,
                Scope.WRITE,
                "Append to a stream, close it, or both",
                takes_bytes=True,
                status=204,
                more_statuses=(200,),
                media="",
                headers=APPEND_HEADERS,
                errors=(
                    *written,
                    StreamClosed,
                    ContentTypeMismatch,
                    SequenceConflict,
                    ProducerGap,
                    ProducerFenced,
                ),
                description="With producer headers a new append answers 200 and one that was made before 204.",
            ),
            route(
                "GET",
                self.read_stream,
                Scope.READ,
                "Read a stream from an offset on, once or live",
                query=ReadQuery,
                media="*/*",
                more_statuses=(204, 304),
                headers=(("If-None-Match", str), ("Last-Event-ID", str)),
                errors=(*_MISSING, InvalidParameter, EngineUnavailable),
                resource="stream/{stream}",
                description=_PUBLIC,
            ),
            route(
                "HEAD",
                self.look_at_stream,
                Scope.READ,
                "What a stream is, and where it ends",
                media="",
                errors=(*_MISSING, EngineUnavailable),
                description=_PUBLIC,
            ),
            route(
                "DELETE", self.delete_stream, Scope.WRITE, "Delete a stream", status=204, errors=(*_MISSING, EngineUnavailable)
            ),
        ]

    # Writing

    async def create_stream(self, request: Request) -> Response:
        name = _name(request)
        wanted = protocol_headers.blueprint_of(request, name.tenant)
        if wanted.fork is not None:
            _check_may_fork(request.caller, wanted.fork.source)
        made = await self._streams.create(name, wanted, request.body, key_id=request.caller.key_id)
        headers = [protocol_headers.next_offset(made.tail)]
        if made.record.is_closed:
            headers.append(protocol_headers.CLOSED)
        if made.is_new:
            headers.append((b"location", (request.base_url(self._public_url) + request.path).encode("latin-1", "replace")))
        return Response(b"", 201 if made.is_new else 200, made.record.content_type.encode("latin-1"), headers)

    async def append_to_stream(self, request: Request) -> Response:
        wish = append_request_of(request)
        outcome = await self._streams.append(_name(request), wish, key_id=request.caller.key_id)
        is_new_data = wish.claim is not None and wish.data is not None and not outcome.is_duplicate
        return Response(b"", 200 if is_new_data else 204, b"text/plain", protocol_headers.outcome_headers(outcome))

    async def delete_stream(self, request: Request) -> Response:
        await self._streams.delete(_name(request), key_id=request.caller.key_id)
        return Response(status=204)

    # Reading

    async def look_at_stream(self, request: Request) -> Response:
        name = _name(request)
        await self._check_nobody(request, name)
        known = await self._streams.look(name)
        record = known.record
        if record is None:
            raise StreamNotFound
        headers = [protocol_headers.next_offset(known.tail), protocol_headers.NO_STORE, protocol_headers.RESOURCE_POLICY]
        if record.is_closed:
            headers.append(protocol_headers.CLOSED)
        if record.ttl_seconds is not None:
            headers.append((b"stream-ttl", str(record.ttl_seconds).encode()))
        if record.expires_at is not None:
            headers.append((b"stream-expires-at", record.expires_at.encode("latin-1")))
        return Response(b"", 200, record.content_type.encode("latin-1"), headers)

    async def read_stream(self, request: Request) -> Response:
        query: ReadQuery = request.query
        name = _name(request)
        place = parse_place(query.offset)
        cursor = parse_cursor(query.cursor)
        if query.live is None:
            return await self._catch_up(request, name, place)
        if query.offset is None:
            raise InvalidParameter("a live read needs `offset`: where to begin, `-1` for the start or `now` for the end")
        if query.live == "sse":
            return await self._events(request, name, place, cursor)
        return await self._long_poll(request, name, place, cursor)

    async def _catch_up(self, request: Request, name: Name, place: Place) -> Response:
        await self._check_nobody(request, name)
        chunk = await self._streams.read(name, place)
        headers = protocol_headers.chunk_headers(chunk)
        body = joined(chunk.payloads, is_json=chunk.record.is_json)
        media = chunk.record.content_type.encode("latin-1")
        if place is NOW:
            return Response(body, 200, media, [*headers, protocol_headers.NO_STORE])
        etag = protocol_headers.etag_of(chunk)
        headers += [(b"etag", etag.encode()), (b"cache-control", self._caching(chunk))]
        if protocol_headers.is_fresh(request.header(b"if-none-match"), etag):
            return Response(b"", 304, media, headers)
        return Response(body, 200, media, headers)

    async def _long_poll(self, request: Request, name: Name, place: Place, cursor: int | None) -> Response:
        await self._check_nobody(request, name)
        chunk = await request.cancel_on_disconnect(self._live.poll(name, place, request.draining))
        headers = protocol_headers.chunk_headers(chunk)
        headers.append((b"stream-cursor", str(cursor_after(cursor)).encode()))
        if not chunk.payloads:
            return Response(b"", 204, headers=[*headers, protocol_headers.NO_STORE])
        etag = protocol_headers.etag_of(chunk)
        headers += [(b"etag", etag.encode()), (b"cache-control", self._caching(chunk))]
        body = joined(chunk.payloads, is_json=chunk.record.is_json)
        return Response(body, 200, chunk.record.content_type.encode("latin-1"), headers)

    async def _events(self, request: Request, name: Name, place: Place, cursor: int | None) -> Response:
        await self._check_nobody(request, name)
        seen = request.header(b"last-event-id")  # a browser that comes back to where it was
        if seen is not None:
            place = parse_place(seen)
        known = await self._streams.look(name, touches=True)
        record = known.record
        if record is None:
            raise StreamNotFound
        headers = list(_LIVE_HEADERS)
        if not is_text(media_type(record.content_type)):
            headers.append((b"stream-sse-data-encoding", b"base64"))
        events = self._live.events(name, known, place, cursor, request.draining)
        return Response(events, media=b"text/event-stream", headers=headers)

    async def _check_nobody(self, request: Request, name: Name) -> None:
        """Who showed no credential may read what is public, and does not learn what else there is."""
        if Scope.READ in request.caller.scopes:
            return
        try:
            known = await self._streams.look(name)
        except (StreamNotFound, StreamGone) as missing:
            raise Unauthenticated(MISSING_CREDENTIALS_HINT) from missing
        if known.record is None or not known.record.is_public:
            raise Unauthenticated(MISSING_CREDENTIALS_HINT)

    def _caching(self, chunk: Chunk) -> bytes:
        """What lies before the end never changes. At the end, a cache must ask: 304 is cheap."""
        visibility = "public" if chunk.record.is_public else "private"
        if chunk.is_end and not chunk.is_closed:
            return f"{visibility}, no-cache".encode()
        record, seconds = chunk.record, 60
        if record.ttl_seconds is not None:
            seconds = min(seconds, record.ttl_seconds)
        if record.expires_at_ms is not None:
            seconds = min(seconds, max(0, (record.expires_at_ms - self._clock()) // 1000))
        return f"{visibility}, max-age={seconds}, stale-while-revalidate={5 * seconds}".encode()


def _name(request: Request) -> Name:
    return Name(request.caller.tenant, stream_id(request.parameters["stream"]))


def _check_may_fork(caller: Caller, source: str) -> None:
    """Who may write only must not read either, and a fork that is public would let it. Raises Forbidden."""
    if Scope.READ not in caller.scopes:
        raise Forbidden(f"the key lacks the scope {str(Scope.READ)!r}, which a fork needs")
    if not caller.may_use("stream", source):
        raise Forbidden(f"the key may not use the stream {source[:100]!r}")


def append_request_of(request: Request) -> AppendRequest:
    body: bytes = request.body
    claim, seq = protocol_headers.claim_of(request), check_seq(request.header(b"stream-seq"))
    closes = protocol_headers.is_true(request, b"stream-closed")
    if not body:
        return AppendRequest(None, None, claim, seq, closes)
    content_type = protocol_headers.content_type_of(request)
    fault: PostroadError | None = None
    if content_type is not None and media_type(content_type) == "application/json":
        try:
            body = json_data(body)
        except (MalformedJson, InvalidParameter) as problem:
            fault = problem
    return AppendRequest(body, content_type, claim, seq, closes, fault)


_LIVE_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"), protocol_headers.RESOURCE_POLICY]
_TIMES_MAX = 9_999_999_999_999_999  # as many digits as are read
_CREATE_HEADERS = (
    (
        "Stream-TTL",
        Annotated[int, Meta(ge=0, le=protocol_headers.TTL_SECONDS_MAX, description="Seconds that it lives without being used.")],
    ),
    ("Stream-Expires-At", Annotated[datetime, Meta(tz=True, description="When it ends, RFC 3339.")]),
    ("Stream-Closed", Annotated[str, Meta(description="`true`: it is complete with this body.")]),
    ("Stream-Public", Annotated[str, Meta(description="`true`: anyone may read it.")]),
    (
        "Stream-Forked-From",
        Annotated[str, Meta(description="The path of the stream that it continues; needs the scope `read` too.")],
    ),
    ("Stream-Fork-Offset", Annotated[str, Meta(pattern=_OFFSET, description="From where on; the source's end if left out.")]),
    (
        "Stream-Fork-Sub-Offset",
        Annotated[int, Meta(ge=0, le=_TIMES_MAX, description="How much of the next append to take along.")],
    ),
)
APPEND_HEADERS = (
    ("Stream-Closed", Annotated[str, Meta(description="`true`: nothing comes after this.")]),
    (
        "Stream-Seq",
        Annotated[str, Meta(pattern=_WORD, max_length=SEQ_CHARS_MAX, description="Must be greater than the last, byte by byte.")],
    ),
    (
        "Producer-Id",
        Annotated[
            str,
            Meta(
                pattern=_WORD,
                max_length=PRODUCER_CHARS_MAX,
                description="With the next two: this append is made once, however often it is sent.",
            ),
        ],
    ),
    ("Producer-Epoch", Annotated[int, Meta(ge=0, le=SAFE_INTEGER, description="Rises when the producer starts anew.")]),
    ("Producer-Seq", Annotated[int, Meta(ge=0, le=SAFE_INTEGER, description="Counts the producer's appends from 0.")]),
)
