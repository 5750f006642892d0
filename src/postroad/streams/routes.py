"""HTTP routes of durable streams: the Durable Streams protocol."""

from functools import partial
from typing import Any

from postroad.access.identity_cache import DEFAULT_TENANT
from postroad.api.streams import (
    ContentTypeMismatch,
    ListedStream,
    ListedStreamPage,
    OffsetGone,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
    StreamExists,
    StreamGone,
    StreamListQuery,
    StreamNotFound,
    StreamReadQuery,
    media_type,
)
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Handler, Respond, Route, Start
from postroad.http.security_headers import CONTENT, content_headers
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import (
    EngineFull,
    EngineUnavailable,
    Forbidden,
    InvalidParameter,
    MalformedJson,
    PreconditionFailed,
    StorageQuotaExceeded,
    TooLarge,
)
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.names import SESSION_PREFIX, stream_id
from postroad.kernel.spans import Span
from postroad.kernel.usage_counters import ANONYMOUS
from postroad.streams import listing, protocol_headers
from postroad.streams.content import is_text, join_payloads
from postroad.streams.cursors import cursor_after, parse_cursor
from postroad.streams.live_reads import DirectWrites, LiveReads
from postroad.streams.offsets import NOW, Position, offset_text, parse_position
from postroad.streams.reading import ReadResult
from postroad.streams.records import StreamRecord
from postroad.streams.rules import AppendOutcome, AppendRequest, start_of
from postroad.streams.service import Streams
from postroad.streams.store import StreamName
from postroad.tracing.messaging import appending, ending

_TAG = "Streams"
_MISSING = (StreamNotFound, StreamGone)
_PUBLIC = "A public stream can be read without credentials."
_SSE_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"), protocol_headers.RESOURCE_POLICY]
_CACHE_SECONDS_MAX = 60


class StreamRoutes:
    def __init__(self, streams: Streams, live: LiveReads, clock: Clock, public_url: str | None) -> None:
        self._streams, self._live, self._clock, self._public_url = streams, live, clock, public_url

    def table(self) -> list[Route]:
        roots = ("/v1", "/v1/{project}")
        return [
            *(route for root in roots for route in self._routes(f"{root}/stream/{{stream}}")),
            *(self._list_route(f"{root}/streams") for root in roots),
        ]

    def _list_route(self, path: str) -> Route:
        return Route(
            "GET",
            path,
            self.list_streams,
            Scope.READ,
            "List streams",
            _TAG,
            query=StreamListQuery,
            response=ListedStreamPage,
            errors=(InvalidParameter, EngineUnavailable),
            accepts_jwt=True,
            allows_admin=True,
            description="In the order of their ids. A key that is restricted to some streams sees those. A page may have fewer "
            "items than `limit`; the list ends where `nextCursor` is missing.",
            sdk="streams.list",
            cli=Command("streams list", ("id", "content_type", "appends", "last_activity_at", "next_offset", "is_closed")),
        )

    def _routes(self, path: str) -> list[Route]:
        def route(method: str, handler: Handler, scope: Scope, summary: str, **more: Any) -> Route:
            return Route(
                method, path, handler, scope, summary, _TAG, accepts_jwt=True, allows_anonymous=True, matches_rest=True, **more
            )

        write_errors = (*_MISSING, InvalidParameter, MalformedJson, TooLarge, EngineFull, StorageQuotaExceeded, EngineUnavailable)
        append_errors = (StreamClosed, ContentTypeMismatch, SequenceConflict, ProducerGap, ProducerFenced)
        return [
            route(
                "PUT",
                self.create_stream,
                Scope.WRITE,
                "Create a stream or a fork",
                raw_body=True,
                status=201,
                other_statuses=(200,),
                media="",
                headers=protocol_headers.CREATE_HEADERS,
                errors=(*write_errors, StreamExists, ContentTypeMismatch, PreconditionFailed),
                description="The body is the first data of the stream. If the stream exists with the same properties, the "
                "response is 200; with other properties it is 409.",
            ),
            route(
                "POST",
                self.append_to_stream,
                Scope.WRITE,
                "Append to a stream, close it, or both",
                raw_body=True,
                status=204,
                other_statuses=(200,),
                media="",
                headers=protocol_headers.APPEND_HEADERS,
                prepare=self.prepare_append,
                errors=(*write_errors, *append_errors),
                description="With producer headers, the response is 200 for a new append and 204 for a repeated one.",
            ),
            route(
                "GET",
                self.read_stream,
                Scope.READ,
                "Read a stream from an offset, once or live",
                query=StreamReadQuery,
                media="*/*",
                other_statuses=(204, 304),
                headers=(("If-None-Match", str), ("Last-Event-ID", str)),
                errors=(*_MISSING, OffsetGone, InvalidParameter, EngineUnavailable),
                resource="stream/{stream}",
                description=_PUBLIC,
            ),
            route(
                "HEAD",
                self.get_stream_info,
                Scope.READ,
                "Show the properties and the end of a stream",
                media="",
                errors=(*_MISSING, EngineUnavailable),
                description=_PUBLIC,
            ),
            route(
                "DELETE",
                self.delete_stream,
                Scope.WRITE,
                "Delete a stream",
                status=204,
                errors=(*_MISSING, EngineUnavailable),
                description="Its forks keep the data they share with it.",
                sdk="streams.delete",
                cli=Command("streams delete", confirm="Delete {stream}?", done="deleted {stream}"),
            ),
        ]

    async def list_streams(self, request: Request) -> Response:
        query: StreamListQuery = request.query
        caller = request.caller
        page = await self._streams.listing.page(
            caller.tenant, query.prefix or "", query.cursor, query.limit, lambda stream: caller.may_use("stream", stream)
        )
        return Response(ListedStreamPage(items=[_listed(one) for one in page.items], next_cursor=page.next_cursor))

    # Writes

    async def create_stream(self, request: Request) -> Response:
        name = _name(request)
        wanted = protocol_headers.parse_create(request, name.tenant, self._clock())
        if wanted.fork is not None:
            _check_may_fork(request.caller, wanted.fork.source)
        created = await self._streams.create(request.context, name, wanted, request.body)
        headers = [protocol_headers.next_offset(created.tail)]
        if created.record.is_closed:
            headers.append(protocol_headers.CLOSED)
        if created.is_new:
            headers.append((b"location", request.url(self._public_url).encode("latin-1", "replace")))
        return _content(b"", created.record, headers, status=201 if created.is_new else 200)

    async def append_to_stream(self, request: Request) -> Response:
        append = protocol_headers.parse_append(request)
        return _append_response(append, await self._streams.append(request.context, _name(request), append))

    def prepare_append(self, request: Request) -> Start | None:
        append = protocol_headers.parse_append(request)
        if append.closes:
            return None
        self._streams.check_size(append)
        return partial(self._start_append, request.span, _name(request), append)

    def _start_append(self, parent: Span | None, name: StreamName, append: AppendRequest, respond: Respond) -> None:
        if parent is not None:
            respond = ending(appending(parent, name.tenant, name.id), respond)
        self._streams.start_append(
            name,
            append,
            lambda outcome: respond(outcome if isinstance(outcome, Exception) else _append_response(append, outcome)),
        )

    async def delete_stream(self, request: Request) -> Response:
        await self._streams.delete(request.context, _name(request))
        return Response(status=204, security=CONTENT)

    # Reads

    async def get_stream_info(self, request: Request) -> Response:
        name = _name(request)
        await self._check_may_read(request, name)
        snapshot = await self._streams.snapshot(name)
        record = snapshot.existing
        headers = [protocol_headers.next_offset(snapshot.tail), protocol_headers.NO_STORE, protocol_headers.RESOURCE_POLICY]
        if record.is_closed:
            headers.append(protocol_headers.CLOSED)
        if record.ttl_seconds is not None:
            headers.append((b"stream-ttl", str(record.ttl_seconds).encode()))
        expires_at = _expiry_text(record)
        if expires_at is not None:
            headers.append((b"stream-expires-at", expires_at.encode("latin-1")))
        headers += protocol_headers.retention_headers(record)
        return _content(b"", record, headers)

    async def read_stream(self, request: Request) -> Response:
        query: StreamReadQuery = request.query
        name = _name(request)
        position = parse_position(query.offset)
        cursor = parse_cursor(query.cursor)
        if query.live is None:
            return await self._read_once(request, name, position)
        if query.offset is None and not name.id.startswith(SESSION_PREFIX):
            raise InvalidParameter("a live read needs `offset`: where to begin, `-1` for the start or `now` for the end")
        if query.live == "sse":
            return await self._stream_events(request, name, position, cursor)
        return await self._long_poll(request, name, position, cursor)

    async def _read_once(self, request: Request, name: StreamName, position: Position) -> Response:
        await self._check_may_read(request, name)
        result = await self._streams.read(name, position)
        headers = protocol_headers.read_headers(result)
        body = join_payloads(result.payloads, is_json=result.record.is_json)
        if position is NOW:
            return _content(body, result.record, [*headers, protocol_headers.NO_STORE])
        etag = protocol_headers.etag_of(result)
        headers += [(b"etag", etag.encode()), (b"cache-control", self._cache_control(result))]
        if protocol_headers.matches_etag(request.header(b"if-none-match"), etag):
            return _content(b"", result.record, headers, status=304)
        return _content(body, result.record, headers)

    async def _long_poll(self, request: Request, name: StreamName, position: Position, cursor: int | None) -> Response:
        await self._check_may_read(request, name)
        result = await request.cancel_on_disconnect(self._live.poll(name, position, request.draining))
        headers = protocol_headers.read_headers(result)
        headers.append((b"stream-cursor", str(cursor_after(cursor)).encode()))
        if not result.payloads:
            return Response(b"", 204, headers=[*headers, protocol_headers.NO_STORE], security=CONTENT)
        headers += [(b"etag", protocol_headers.etag_of(result).encode()), (b"cache-control", self._cache_control(result))]
        body = join_payloads(result.payloads, is_json=result.record.is_json)
        return _content(body, result.record, headers)

    async def _stream_events(self, request: Request, name: StreamName, position: Position, cursor: int | None) -> Response:
        await self._check_may_read(request, name)
        last_event_id = request.header(b"last-event-id")  # sent by a browser that reconnects
        if last_event_id is not None:
            position = parse_position(last_event_id)
        snapshot = await self._streams.snapshot(name, is_use=True)
        headers = list(_SSE_HEADERS)
        if not is_text(media_type(snapshot.existing.content_type)):
            headers.append((b"stream-sse-data-encoding", b"base64"))
        start = start_of(snapshot.existing, position, snapshot.tail)
        direct = DirectWrites()
        events = self._live.events(name, snapshot, start, cursor, request.draining, direct)
        return Response(events, media=b"text/event-stream", headers=headers, security=CONTENT, attach=direct.attach)

    async def _check_may_read(self, request: Request, name: StreamName) -> None:
        """Callers without credentials may read public streams. Others are refused with the same error after the same lookups,
        whether the stream and the tenant exist or not."""
        if Scope.READ in request.caller.scopes:
            return
        is_known = name.tenant != ANONYMOUS
        looked_up = name if is_known else StreamName(DEFAULT_TENANT, name.id)
        try:
            is_public = await self._streams.has_streams(looked_up.tenant) and (
                (await self._streams.snapshot(looked_up)).existing.is_public
            )
        except (StreamNotFound, StreamGone) as missing:
            raise request.refusal() from missing
        if not (is_public and is_known):
            raise request.refusal()

    def _cache_control(self, result: ReadResult) -> bytes:
        """Data before the end never changes. A response that reaches the end must be revalidated."""
        visibility = "public" if result.record.is_public else "private"
        if result.is_end and not result.is_closed:
            return f"{visibility}, no-cache".encode()
        record, seconds = result.record, _CACHE_SECONDS_MAX
        if record.ttl_seconds is not None:
            seconds = min(seconds, record.ttl_seconds)
        if record.expires_at_ms is not None:
            seconds = min(seconds, max(0, (record.expires_at_ms - self._clock()) // 1000))
        return f"{visibility}, max-age={seconds}, stale-while-revalidate={5 * seconds}".encode()


def _append_response(append: AppendRequest, outcome: AppendOutcome) -> Response:
    is_new_data = append.claim is not None and append.data is not None and not outcome.is_duplicate
    return Response(b"", 200 if is_new_data else 204, b"text/plain", protocol_headers.outcome_headers(outcome), CONTENT)


def _name(request: Request) -> StreamName:
    return StreamName(request.caller.tenant, stream_id(request.parameters["stream"]))


def _listed(one: listing.ListedStream) -> ListedStream:
    record = one.snapshot.existing
    return ListedStream(
        id=record.id,
        content_type=record.content_type,
        created_at=rfc3339(record.created_at_ms),
        next_offset=offset_text(one.snapshot.tail),
        appends=one.appends,
        last_activity_at=rfc3339(one.snapshot.used_at_ms),
        is_closed=record.is_closed,
        is_public=record.is_public,
        ttl_seconds=record.ttl_seconds,
        expires_at=_expiry_text(record),
        forked_from=None if record.origin is None else record.origin.source,
    )


def _expiry_text(record: StreamRecord) -> str | None:
    return record.expires_at or (None if record.expires_at_ms is None else rfc3339(record.expires_at_ms))


def _content(body: bytes, record: StreamRecord, headers: protocol_headers.Headers, *, status: int = 200) -> Response:
    """A response with the content type of the stream, which its writer chose."""
    media = record.content_type.encode("latin-1")
    return Response(body, status, media, headers, content_headers(media))


def _check_may_fork(caller: Caller, source: str) -> None:
    """A fork copies data, so it needs the right to read the source. Raises Forbidden."""
    if Scope.READ not in caller.scopes:
        raise Forbidden(f"the key lacks the scope {str(Scope.READ)!r}, which a fork needs")
    if not caller.may_use("stream", source):
        raise Forbidden(f"the key may not use the stream {source[:100]!r}")
