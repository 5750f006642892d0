"""Lifecycle of durable streams: create, fork, delete, expire.

A fork reads the data of its source by reference. A source that is deleted while it has forks is soft-deleted, and is removed with
its last fork. Each source counts its forks in its record, in the same atomic batch that creates or deletes the fork.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from postroad.api.streams import ContentTypeMismatch, StreamExists, StreamGone, media_type
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.conflict_retry import retry_on_conflict
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, InvalidParameter, PreconditionFailed
from postroad.streams import events, metrics
from postroad.streams.content import json_elements, split_json
from postroad.streams.directory import added_message, removed_message
from postroad.streams.reading import CHUNK_BYTES_MAX, StreamReader
from postroad.streams.records import Origin, Retention, Segment, State, StreamRecord, resolve
from postroad.streams.retention import marker_message
from postroad.streams.rules import StreamSnapshot, existing_record, is_expired
from postroad.streams.store import StreamName, StreamStore, data_message, precondition, record_message
from postroad.telemetry.outbox import Outbox

DEFAULT_CONTENT_TYPE = "application/octet-stream"
_SEGMENTS_MAX = 64


@dataclass(frozen=True, slots=True)
class ForkOf:
    """Source of a fork. `offset` None: at the end of the source."""

    source: str
    offset: int | None = None
    sub_offset: int = 0


@dataclass(frozen=True, slots=True)
class CreateStream:
    """Requested properties of a stream. `content_type` None: the default, or the source's."""

    content_type: str | None = None
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    expires_at: str | None = None
    is_closed: bool = False
    is_public: bool | None = None
    fork: ForkOf | None = None
    retention: Retention | None = None


@dataclass(frozen=True, slots=True)
class CreateResult:
    record: StreamRecord
    tail: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """Source of a new fork. `prefix` is the part of its next append that the fork includes."""

    name: StreamName
    snapshot: StreamSnapshot
    record: StreamRecord
    origin: Origin
    prefix: bytes | None


@dataclass(frozen=True, slots=True)
class _Release:
    """Changes of the sources of a deleted fork: their new records, the streams to purge, and those that turned out to be
    expired."""

    messages: Sequence[PendingMessage]
    purged: Sequence[StreamName]
    expired: Sequence[StreamRecord]


class StreamLifecycle:
    def __init__(self, store: StreamStore, reader: StreamReader, outbox: Outbox, clock: Clock) -> None:
        self._store, self._reader, self._outbox, self._clock = store, reader, outbox, clock

    # Create

    @retry_on_conflict("the stream")
    async def create(self, context: RequestContext | None, name: StreamName, wanted: CreateStream, body: bytes) -> CreateResult:
        """Create the stream, or return it if it exists with the same properties.

        Raises StreamExists, InvalidParameter, MalformedJson; for a fork also StreamNotFound and PreconditionFailed.
        """
        snapshot = await self._store.snapshot(name)
        record = snapshot.record
        if record is not None and record.state is State.SOFT_DELETED:
            raise StreamExists(f"the stream {name.id!r} was deleted, and forks still read from it")
        if record is not None and record.state is State.LIVE:
            if not is_expired(record, snapshot.used_at_ms, self._clock()):
                return _check_same(snapshot, record, wanted)
            if record.forks:
                raise StreamExists(f"the stream {name.id!r} has expired, and forks still read from it")
            await self.delete_if_expired(name)
            raise Conflict("an expired stream of this name was deleted")
        return await self._create_new(context, name, snapshot, wanted, body)

    async def _create_new(
        self, context: RequestContext | None, name: StreamName, snapshot: StreamSnapshot, wanted: CreateStream, body: bytes
    ) -> CreateResult:
        source = None if wanted.fork is None else await self._source_of(name, wanted.fork)
        record = self._new_record(name, wanted, source)
        first = _first_data(record, body)
        payloads = [source.prefix] if source is not None and source.prefix else []
        if first is not None:
            payloads.append(first)
        messages = [record_message(name, record, precondition(name.record, snapshot.record_at))]
        messages += [data_message(name, data, None, None) for data in payloads]
        messages.append(added_message(name.tenant, name.id))
        if record.retention is not None:
            messages.append(marker_message(name))
        if source is not None:
            messages.append(_count_fork(source))
        stored = await self._store.committer(name).append_together(messages)
        incarnation = stored[0].sequence
        self._record_created(context, name, record)
        if snapshot.last:
            await self._store.purge(name, incarnation)
        metrics.created.add(name.tenant)
        record = resolve(record, incarnation)
        return CreateResult(record, stored[len(payloads)].sequence if payloads else record.base, is_new=True)

    def _new_record(self, name: StreamName, wanted: CreateStream, source: _Source | None) -> StreamRecord:
        ttl, expires_ms, expires = wanted.ttl_seconds, wanted.expires_at_ms, wanted.expires_at
        content_type = wanted.content_type or DEFAULT_CONTENT_TYPE
        if source is not None:
            parent = source.record
            if ttl is None and expires_ms is None:
                ttl, expires_ms, expires = parent.ttl_seconds, parent.expires_at_ms, parent.expires_at
            content_type = wanted.content_type or parent.content_type
            if media_type(content_type) != media_type(parent.content_type):
                raise ContentTypeMismatch(f"the content type of the source {parent.id!r} is {parent.content_type!r}")
        return StreamRecord(
            id=name.id,
            content_type=content_type,
            created_at_ms=self._clock(),
            ttl_seconds=ttl,
            expires_at_ms=expires_ms,
            expires_at=expires,
            is_closed=wanted.is_closed,
            is_public=bool(wanted.is_public),
            origin=None if source is None else source.origin,
            retention=wanted.retention,
            trimmed_to=0 if source is None else source.record.trimmed_to,
        )

    async def _source_of(self, name: StreamName, fork: ForkOf) -> _Source:
        """Raises StreamNotFound, PreconditionFailed, InvalidParameter."""
        source = StreamName(name.tenant, fork.source)
        if source == name:
            raise InvalidParameter("a stream cannot be forked from itself")
        snapshot = await self._store.snapshot(source)
        try:
            record = existing_record(snapshot, self._clock())
        except StreamGone as gone:
            raise PreconditionFailed(f"the source {source.id!r} was deleted") from gone
        until = snapshot.tail if fork.offset is None else fork.offset
        if until > snapshot.tail:
            raise InvalidParameter("Stream-Fork-Offset is beyond the end of the source")
        if until < record.trimmed_to:
            raise InvalidParameter("Stream-Fork-Offset is before the start of the source")
        segments = [*(record.origin.segments if record.origin else ()), Segment(source.id, record.incarnation, until)]
        segments = [msgspec.structs.replace(one, until=min(one.until, until)) for one in segments]
        if len(segments) > _SEGMENTS_MAX:
            raise InvalidParameter(f"a fork has at most {_SEGMENTS_MAX} ancestors")
        prefix = await self._prefix(source, record, until, fork.sub_offset)
        origin = Origin(source.id, record.incarnation, until, fork.sub_offset, tuple(segments))
        return _Source(source, snapshot, record, origin, prefix)

    async def _prefix(self, source: StreamName, record: StreamRecord, until: int, sub_offset: int) -> bytes | None:
        """The part of the source's next append that the sub-offset includes. Raises InvalidParameter."""
        if sub_offset == 0:
            return None
        following, _ = await self._reader.entries(source, record, until, 1, CHUNK_BYTES_MAX)
        data = following[0].payload if following else b""
        parts: Sequence[bytes] = split_json(data) if record.is_json and data else ()
        length = len(parts) if record.is_json else len(data)
        if sub_offset > length:
            raise InvalidParameter("Stream-Fork-Sub-Offset is beyond the next append")
        return b",".join(parts[:sub_offset]) if record.is_json else data[:sub_offset]

    # Delete

    @retry_on_conflict("the stream")
    async def delete(self, context: RequestContext | None, name: StreamName) -> None:
        """Raises StreamNotFound, StreamGone."""
        snapshot = await self._store.snapshot(name)
        record = existing_record(snapshot, self._clock())
        condition = precondition(name.record, snapshot.record_at)  # concurrent appends are deleted too
        event = events.StreamDeleted(tenant=name.tenant, stream_id=name.id)
        if record.forks:
            soft_deleted = msgspec.structs.replace(record, state=State.SOFT_DELETED)
            messages = [record_message(name, soft_deleted, condition), removed_message(name.tenant, name.id)]
            await self._store.committer(name).append_together(messages, uses_reserve=True)
            self._record_deleted(context, record, event)
        else:
            await self._delete(context, name, record, condition, event)
        metrics.deleted.add(name.tenant)

    async def delete_if_expired(self, name: StreamName) -> bool:
        """Delete an expired stream; returns whether it did. A stream with forks is kept."""
        snapshot = await self._store.snapshot(name)
        record = snapshot.record
        if record is None or record.state is not State.LIVE or record.forks:
            return False
        if not is_expired(record, snapshot.used_at_ms, self._clock()):
            return False
        condition = precondition(name.data_and_record, snapshot.last)  # a concurrent write keeps it alive
        try:
            await self._delete(None, name, record, condition, _expired_event(name.tenant, name.id))
        except Conflict:
            return False
        metrics.deleted.add(name.tenant)
        return True

    async def _delete(
        self,
        context: RequestContext | None,
        name: StreamName,
        record: StreamRecord,
        condition: str,
        event: events.StreamDeleted,
    ) -> None:
        """Store a deleted record first, then purge: after a crash in between, the stream does not exist for readers."""
        deleted = msgspec.structs.replace(record, state=State.DELETED)
        release = await self._release_sources(name.tenant, record.origin)
        removed = removed_message(name.tenant, name.id, *(source.id for source in release.expired))
        messages = [record_message(name, deleted, condition), removed, *release.messages]
        stored = await self._store.committer(name).append_together(messages, uses_reserve=True)
        self._record_deleted(context, record, event)
        for source in release.expired:
            self._record_deleted(None, source, _expired_event(name.tenant, source.id))
        for one in (name, *release.purged):
            await self._store.purge(one, stored[-1].sequence + 1)

    async def _release_sources(self, tenant: str, origin: Origin | None) -> _Release:
        """Release the sources of a fork that is being deleted, up to the first one that stays."""
        messages: list[PendingMessage] = []
        expired: list[StreamRecord] = []
        purged: list[StreamName] = []
        while origin is not None:
            source = StreamName(tenant, origin.source)
            snapshot = await self._store.snapshot(source)
            parent = snapshot.record
            if parent is None or parent.state is State.DELETED or parent.incarnation != origin.source_incarnation:
                break
            # Writing the record of an expired stream counts as use; its state must not become live again by that.
            has_ended = parent.state is State.SOFT_DELETED or is_expired(parent, snapshot.used_at_ms, self._clock())
            if has_ended and parent.state is State.LIVE:
                expired.append(parent)
            is_last = has_ended and parent.forks <= 1
            state = State.DELETED if is_last else State.SOFT_DELETED if has_ended else parent.state
            changed = msgspec.structs.replace(parent, forks=max(0, parent.forks - 1), state=state)
            messages.append(record_message(source, changed, precondition(source.record, snapshot.record_at)))
            if not is_last:
                break
            purged.append(source)
            origin = parent.origin
        return _Release(messages, purged, expired)

    # Events

    def _record_created(self, context: RequestContext | None, name: StreamName, record: StreamRecord) -> None:
        created = events.StreamCreated(
            tenant=name.tenant,
            timestamp=rfc3339(record.created_at_ms),
            stream_id=record.id,
            content_type=record.content_type,
            forked_from=None if record.origin is None else record.origin.source,
        )
        self._outbox.record(context, created)
        if record.is_closed:
            self._outbox.record(context, events.StreamClosed(tenant=name.tenant, stream_id=name.id))

    def _record_deleted(self, context: RequestContext | None, record: StreamRecord, event: events.StreamDeleted) -> None:
        """The end of a session's stream is recorded as the end of the session."""
        if not record.is_session_stream:
            self._outbox.record(context, event)


def _check_same(snapshot: StreamSnapshot, record: StreamRecord, wanted: CreateStream) -> CreateResult:
    """Compare an existing stream with the request. Raises StreamExists."""
    content_type = wanted.content_type or (DEFAULT_CONTENT_TYPE if wanted.fork is None else record.content_type)
    origin, fork = record.origin, wanted.fork
    is_same = (
        media_type(content_type) == media_type(record.content_type)
        and wanted.is_closed == record.is_closed
        and (wanted.is_public is None or wanted.is_public == record.is_public)
        and (fork is None) == (origin is None)
        and wanted.retention == record.retention
    )
    if fork is None or wanted.ttl_seconds is not None or wanted.expires_at_ms is not None:
        is_same = is_same and (wanted.ttl_seconds, wanted.expires_at_ms) == (record.ttl_seconds, record.expires_at_ms)
    if fork is not None and origin is not None:
        is_same = is_same and fork.source == origin.source and fork.sub_offset == origin.sub_offset
        is_same = is_same and fork.offset in (None, origin.until)
    if not is_same:
        raise StreamExists(f"the stream {record.id!r} exists with other properties")
    return CreateResult(record, snapshot.tail, is_new=False)


def _first_data(record: StreamRecord, body: bytes) -> bytes | None:
    """Stored form of the body of a create request. Raises MalformedJson."""
    if not body:
        return None
    if not record.is_json:
        return body
    return b",".join(json_elements(body)) or None


def _count_fork(source: _Source) -> PendingMessage:
    """The source's record with one more fork."""
    record = msgspec.structs.replace(source.record, forks=source.record.forks + 1)
    return record_message(source.name, record, precondition(source.name.record, source.snapshot.record_at))


def _expired_event(tenant: str, stream: str) -> events.StreamDeleted:
    return events.StreamDeleted(tenant=tenant, stream_id=stream, is_expired=True)
