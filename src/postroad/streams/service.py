"""Operations on durable streams, and the feed of appends for subscriptions."""

from collections.abc import AsyncIterator, Awaitable, Callable

from postroad.governance.audit import Audit
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, follow
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import TooLarge
from postroad.kernel.names import streams_store, unescape
from postroad.kernel.spans import NO_SPAN
from postroad.kernel.usage_counters import UsageCounters
from postroad.streams.appender import OnAppended, StreamAppenders
from postroad.streams.directory import StreamDirectory, live_ids
from postroad.streams.events import StreamClosed
from postroad.streams.lifecycle import CreateResult, CreateStream, StreamLifecycle
from postroad.streams.listing import StreamListing
from postroad.streams.offsets import Position, offset_text
from postroad.streams.reading import ReadResult, StreamReader
from postroad.streams.records import State, StreamRecord
from postroad.streams.retention import RetentionEnforcer
from postroad.streams.rules import AppendOutcome, AppendRequest, StreamSnapshot
from postroad.streams.store import StreamName, StreamStore
from postroad.telemetry.outbox import Outbox
from postroad.tracing.messaging import appending

EndSession = Callable[[str, str], Awaitable[bool]]

_HEADER_BYTES_MAX = 4096  # of a stored message


class Streams:
    """`context` is None for writes without a request, which are not audited. `audit` is None where there are none with one."""

    def __init__(
        self, store: StreamStore, outbox: Outbox, usage: UsageCounters, clock: Clock, audit: Audit | None = None
    ) -> None:
        self.store, self._outbox, self._audit = store, outbox, audit
        self.end_session: EndSession | None = None  # set by sessions: deleting the stream of one ends it
        self._reader = StreamReader(store, clock)
        self._lifecycle = StreamLifecycle(store, self._reader, outbox, clock)
        self._appenders = StreamAppenders(store, usage, clock)
        self.directory = StreamDirectory(store)
        self.listing = StreamListing(store, self.directory, clock)
        self.retention = RetentionEnforcer(store, clock)

    async def create(
        self, context: RequestContext | None, name: StreamName, wanted: CreateStream, body: bytes = b""
    ) -> CreateResult:
        """Create the stream, or return it if it exists with the same properties.

        Raises StreamExists, InvalidParameter, MalformedJson; for a fork also StreamNotFound and PreconditionFailed.
        """
        return await self._lifecycle.create(context, name, wanted, body)

    async def append(self, context: RequestContext | None, name: StreamName, request: AppendRequest) -> AppendOutcome:
        """Append, close, or both. Returns once the write would survive a crash. Raises the errors of `rules.decide`, TooLarge,
        EngineUnavailable."""
        self.check_size(request)
        span = None if context is None or context.span is None else appending(context.span, name.tenant, name.id)
        with span or NO_SPAN:
            outcome = await self._appenders.of(name).submit(request)
        if request.closes and not outcome.is_duplicate:
            self._outbox.record(context, StreamClosed(tenant=name.tenant, stream_id=name.id))
        return outcome

    def check_size(self, request: AppendRequest) -> None:
        """Raises TooLarge."""
        if request.data is not None and len(request.data) + _HEADER_BYTES_MAX > self.store.connection.max_payload:
            raise TooLarge(f"an append has at most {self.store.connection.max_payload - _HEADER_BYTES_MAX} bytes")

    def start_append(self, name: StreamName, request: AppendRequest, on_outcome: OnAppended) -> None:
        """Like `append`, for a request that does not close the stream and was checked with `check_size`, but calls `on_outcome`.

        Raises StorageQuotaExceeded, EngineFull, Overloaded: then nothing is stored.
        """
        self._appenders.of(name).submit_callback(request, on_outcome)

    async def snapshot(self, name: StreamName, *, is_use: bool = False) -> StreamSnapshot:
        """Current state of a stream; `is_use` prolongs its TTL. Raises StreamNotFound, StreamGone."""
        return await self._reader.snapshot(name, is_use=is_use)

    async def read(self, name: StreamName, position: Position) -> ReadResult:
        """Data after a position, up to the limits of one response. Prolongs the TTL.

        Raises StreamNotFound, StreamGone, OffsetGone.
        """
        return await self._reader.read(name, position)

    async def continue_read(self, name: StreamName, record: StreamRecord, position: int) -> ReadResult:
        """Like `read`, for a live read in progress. Returns no data if this incarnation of the stream was deleted, or data
        after the position was dropped."""
        result = await self._reader.read_after(name, record, position)
        current = await self.store.record(name)
        is_same = current is not None and current.incarnation == record.incarnation
        if current is None or not is_same or position < current.trimmed_to:  # of another incarnation, or with a gap
            return ReadResult(record, (), position, position, is_end=False, is_closed=False)
        return result

    async def delete(self, context: RequestContext | None, name: StreamName) -> None:
        """Delete a stream. That of a session ends the session. Raises StreamNotFound, StreamGone."""
        record = (await self._reader.snapshot(name)).existing
        if context is None or self._audit is None:
            await self._delete(context, name, record)
            return
        before = {"contentType": record.content_type, "createdAt": rfc3339(record.created_at_ms), "forks": record.forks}
        async with self._audit.change(context, "stream.delete", name.id, before=before):
            await self._delete(context, name, record)

    async def _delete(self, context: RequestContext | None, name: StreamName, record: StreamRecord) -> None:
        end_session = self.end_session if record.is_session_stream else None
        if end_session is None or not await end_session(name.tenant, name.id):
            await self._lifecycle.delete(context, name)

    async def delete_all(self, tenant: str) -> None:
        self._appenders.forget(tenant)
        self.directory.forget(tenant)
        await self.store.delete_all(tenant)

    async def delete_expired(self, tenant: str) -> int:
        """Delete the expired streams of the tenant; returns their number."""
        deleted = 0
        for stream in await self.paths(tenant):
            deleted += await self._lifecycle.delete_if_expired(StreamName(tenant, stream))
        return deleted

    # For services that follow all streams of a tenant

    async def has_streams(self, tenant: str) -> bool:
        """False if the tenant never created a stream; then reading one would create its storage."""
        return await self.store.exists(tenant)

    async def paths(self, tenant: str) -> list[str]:
        """Ids of the tenant's streams, including expired ones that are not deleted yet."""
        return await live_ids(self.store, tenant) if await self.store.exists(tenant) else []

    async def tail(self, tenant: str, path: str) -> str | None:
        """Offset of the end of a stream; None if there is no such stream."""
        snapshot = await self.store.snapshot(StreamName(tenant, path))
        if snapshot.record is None or snapshot.record.state is not State.LIVE:
            return None
        return offset_text(snapshot.tail)

    async def append_json(self, tenant: str, path: str, element: bytes) -> None:
        """Append one JSON value. Raises like `append`."""
        await self.append(None, StreamName(tenant, path), AppendRequest(element, "application/json"))

    async def appends(self, tenant: str) -> AsyncIterator[tuple[str, str]]:
        """Path and new end of each stream of the tenant, on every write from now on."""
        await self.store.ensure(tenant)
        source = Source(streams_store(tenant), f"s.{tenant}.>")
        async for entry in follow(self.store.connection, source, await self.store.last_sequence(tenant)):
            yield _path_of(entry), offset_text(entry.sequence)


def _path_of(entry: Entry) -> str:
    return unescape(entry.subject.split(".")[2])
