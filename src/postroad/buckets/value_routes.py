"""HTTP routes of the values of a bucket: read, write, delete, batch, list, history, watch."""

from collections.abc import Sequence

from postroad.api.buckets import (
    BucketBatch,
    BucketBatchResult,
    BucketEntryPage,
    BucketHistoryQuery,
    BucketKeyNotFound,
    BucketKeysQuery,
    BucketNotFound,
    BucketWatchQuery,
    GetValueQuery,
    IfMatch,
    IfNoneMatch,
    PutValueQuery,
    RevisionMismatch,
    WrittenValue,
)
from postroad.api.topics import LoopDetected
from postroad.buckets import rules
from postroad.buckets.lifecycle import BucketLifecycle
from postroad.buckets.records import BucketRecord, entry_of
from postroad.buckets.rules import Content
from postroad.buckets.values import BucketValues, Slice
from postroad.buckets.watching import BucketWatches
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.security_headers import content_headers
from postroad.http.sse import event_stream
from postroad.kernel.errors import EngineFull, EngineUnavailable, Forbidden, InvalidParameter, StorageQuotaExceeded
from postroad.kernel.identity import Scope
from postroad.topics.hops import HOPS_HEADER, request_hops

_TAG = "Buckets"
_ONE = "/v1/buckets/{bucket}"
_KEY = f"{_ONE}/keys/{{bucket_key}}"
_WRITE_ERRORS = (BucketNotFound, RevisionMismatch, LoopDetected, EngineFull, StorageQuotaExceeded, EngineUnavailable)
_CONDITIONS = (("If-Match", IfMatch), ("If-None-Match", IfNoneMatch), HOPS_HEADER)


class BucketValueRoutes:
    def __init__(self, lifecycle: BucketLifecycle, values: BucketValues, watches: BucketWatches) -> None:
        self._lifecycle, self._values, self._watches = lifecycle, values, watches

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "PUT",
                _KEY,
                self.put_bucket_value,
                Scope.WRITE,
                "Write a value",
                _TAG,
                raw_body=True,
                matches_rest=True,
                query=PutValueQuery,
                response=WrittenValue,
                headers=_CONDITIONS,
                errors=_WRITE_ERRORS,
                description="The value is the body, with its content type. `ETag` of the response is the new revision. The "
                "precondition may also name the revision of a deletion.",
            ),
            Route(
                "GET",
                _KEY,
                self.get_bucket_value,
                Scope.READ,
                "Read a value",
                _TAG,
                matches_rest=True,
                query=GetValueQuery,
                media="*/*",
                other_statuses=(304,),
                headers=(("If-None-Match", IfNoneMatch),),
                errors=(BucketNotFound, BucketKeyNotFound, EngineUnavailable),
                description="The response is the value with its content type; `ETag` is its revision.",
            ),
            Route(
                "DELETE",
                _KEY,
                self.delete_bucket_value,
                Scope.WRITE,
                "Delete a value",
                _TAG,
                matches_rest=True,
                response=WrittenValue,
                headers=(_CONDITIONS[0], HOPS_HEADER),
                errors=_WRITE_ERRORS,
                description="Deleting a missing key has no other effect than a revision.",
            ),
            Route(
                "POST",
                f"{_ONE}/batch",
                self.write_bucket_batch,
                Scope.WRITE,
                "Write several values, all or none",
                _TAG,
                body=BucketBatch,
                response=BucketBatchResult,
                headers=(HOPS_HEADER,),
                errors=_WRITE_ERRORS,
            ),
            Route(
                "GET",
                f"{_ONE}/keys",
                self.list_bucket_keys,
                Scope.READ,
                "List keys, with their values if requested",
                _TAG,
                query=BucketKeysQuery,
                response=BucketEntryPage,
                errors=(BucketNotFound, EngineUnavailable),
                description="In the order of their revisions, without deleted keys. A page may have fewer entries than `limit`; "
                "the list ends where `nextCursor` is missing. A key that is written meanwhile may come again, none is left out.",
            ),
            Route(
                "GET",
                f"{_ONE}/history/{{bucket_key}}",
                self.read_bucket_history,
                Scope.READ,
                "Read the kept revisions of a key",
                _TAG,
                matches_rest=True,
                query=BucketHistoryQuery,
                response=BucketEntryPage,
                errors=(BucketNotFound, EngineUnavailable),
                description="Oldest first, with deletions. Empty if the key never had a value.",
            ),
            Route(
                "GET",
                f"{_ONE}/watch",
                self.watch_bucket,
                Scope.READ,
                "Follow the values of a bucket",
                _TAG,
                query=BucketWatchQuery,
                media="text/event-stream",
                resource="bucket/{bucket}",
                errors=(BucketNotFound, EngineUnavailable),
                description="Server-sent events: the current values, `ready`, then each change as `put`, `delete` or `expire`. "
                "`Last-Event-ID` resumes; if that is not possible any more, `reset` and all current values follow.",
            ),
        ]

    async def put_bucket_value(self, request: Request) -> Response:
        query: PutValueQuery = request.query
        key, record = rules.check_key(request.parameters["bucket_key"]), await self._record(request)
        content = Content(request.body, rules.check_content_type(request.header(b"content-type")))
        revision = await self._values.put(
            request.context,
            record,
            key,
            content,
            ttl_seconds=query.ttl_seconds,
            precondition=rules.precondition_of(request.header(b"if-match"), request.header(b"if-none-match")),
            hops=request_hops(request),
        )
        return _written(key, revision)

    async def get_bucket_value(self, request: Request) -> Response:
        query: GetValueQuery = request.query
        key, record = rules.check_key(request.parameters["bucket_key"]), await self._record(request)
        found = await self._values.get(record, key, query.revision)
        media = found.content_type.encode("latin-1")
        headers = [(b"etag", rules.etag(found.revision).encode()), (b"cache-control", b"private, no-cache")]
        if rules.matches_etag(request.header(b"if-none-match"), found.revision):
            return Response(b"", 304, media, headers, content_headers(media))
        return Response(found.data, 200, media, headers, content_headers(media))

    async def delete_bucket_value(self, request: Request) -> Response:
        key, record = rules.check_key(request.parameters["bucket_key"]), await self._record(request)
        if request.header(b"if-none-match") is not None:
            raise InvalidParameter("If-None-Match has no meaning for a deletion; send If-Match")
        precondition = rules.precondition_of(request.header(b"if-match"), None)
        hops = request_hops(request)
        return _written(key, await self._values.delete(request.context, record, key, precondition, hops=hops))

    async def write_bucket_batch(self, request: Request) -> Response:
        batch: BucketBatch = request.body
        record = await self._record(request)
        revisions = await self._values.write_batch(request.context, record, batch.writes, hops=request_hops(request))
        pairs = zip(batch.writes, revisions, strict=True)
        return Response(BucketBatchResult(results=[WrittenValue(key=one.key, revision=revision) for one, revision in pairs]))

    async def list_bucket_keys(self, request: Request) -> Response:
        query: BucketKeysQuery = request.query
        prefix, record = rules.check_prefix(query.prefix), await self._record(request)
        found = await self._values.current(record, prefix, _start(record, query.cursor), query.limit)
        return _page(record, found, with_value=query.values)

    async def read_bucket_history(self, request: Request) -> Response:
        query: BucketHistoryQuery = request.query
        key, record = rules.check_key(request.parameters["bucket_key"]), await self._record(request)
        found = await self._values.history(record, key, _start(record, query.cursor), query.limit)
        return _page(record, found, with_value=True)

    async def watch_bucket(self, request: Request) -> Response:
        query: BucketWatchQuery = request.query
        prefix = rules.check_prefix(query.prefix or request.caller.key_prefix or None)
        if not prefix.startswith(request.caller.key_prefix):
            raise Forbidden(f"the token is for keys that start with {request.caller.key_prefix!r}")
        record = await self._record(request)
        last_event_id = request.header(b"last-event-id") or query.last_event_id
        if last_event_id is not None:
            rules.parse_event_id(last_event_id)
        return event_stream(request, self._watches.frames(record, prefix, last_event_id))

    async def _record(self, request: Request) -> BucketRecord:
        return await self._lifecycle.find(request.caller.tenant, request.parameters["bucket"])


def _written(key: str, revision: int) -> Response:
    return Response(WrittenValue(key=key, revision=revision), headers=[(b"etag", rules.etag(revision).encode())])


def _page(record: BucketRecord, found: Slice, *, with_value: bool) -> Response:
    cursor = None if found.next_revision is None else f"{record.incarnation[-12:]}.{found.next_revision}"
    entries = [entry_of(one, with_value=with_value) for one in found.entries]
    return Response(BucketEntryPage(items=entries, next_cursor=cursor), list_field="items")


def _start(record: BucketRecord, cursor: str | None) -> int:
    """Raises InvalidParameter if the cursor is of an earlier bucket with this name."""
    if cursor is None:
        return 1
    incarnation, _, revision = cursor.partition(".")
    if incarnation != record.incarnation[-12:]:
        raise InvalidParameter("query parameter: the cursor is of a bucket that was deleted; start again without one")
    return max(1, int(revision))
