"""How durable streams begin and end: creating, forking, deleting, expiring.

A fork has its source's data by reference, so a source that is deleted while forks read from it is only hidden; it goes when the
last of them does. Sources count their forks in their record, in the same atomic batch that makes or ends the fork.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import structlog

from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.conflict_retry import retry_on_conflict
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import (
    Conflict,
    ContentTypeMismatch,
    InvalidParameter,
    PreconditionFailed,
    StreamExists,
    StreamGone,
)
from postroad.streams import metrics
from postroad.streams.content import json_elements, split_json
from postroad.streams.events import StreamClosed, StreamCreated, StreamDeleted
from postroad.streams.reading import CHUNK_BYTES_MAX, Reading
from postroad.streams.records import Origin, Segment, State, StreamRecord, media_type, resolved
from postroad.streams.rules import StreamSnapshot, found, is_expired
from postroad.streams.store import Name, Store, data_draft, precondition, record_draft
from postroad.telemetry.outbox import Outbox

DEFAULT_TYPE = "application/octet-stream"
_CHAIN_MAX = 64

log = structlog.get_logger("postroad.streams")


@dataclass(frozen=True, slots=True)
class ForkOf:
    """`offset` None: at the source's end."""

    source: str
    offset: int | None = None
    sub_offset: int = 0


@dataclass(frozen=True, slots=True)
class CreateStream:
    """The stream that somebody wants to be there. `content_type` None: the default, or the source's."""

    content_type: str | None = None
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    expires_at: str | None = None
    is_closed: bool = False
    is_public: bool | None = None
    fork: ForkOf | None = None


@dataclass(frozen=True, slots=True)
class CreateResult:
    record: StreamRecord
    tail: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """What a fork is made of; `prefix` is the part of an append that it takes along."""

    name: Name
    known: StreamSnapshot
    record: StreamRecord
    origin: Origin
    prefix: bytes | None


class StreamLifecycle:
    def __init__(self, store: Store, reading: Reading, outbox: Outbox, clock: Clock) -> None:
        self._store, self._reading, self._outbox, self._clock = store, reading, outbox, clock

    # Beginning

    @retry_on_conflict("the stream")
    async def create(self, name: Name, wanted: CreateStream, body: bytes, key_id: str) -> CreateResult:
        """The stream as it is wanted, new or found as such. Raises StreamExists, StreamNotFound and NotNow for a fork's source,
        InvalidParameter, MalformedJson."""
        known = await self._store.known(name)
        record = known.record
        if record is not None and record.state is State.HIDDEN:
            raise StreamExists("a deleted stream has this name, and forks still read from it")
        has_expired = record is not None and is_expired(record, known.touched_at_ms, self._clock())
        if record is not None and record.state is State.LIVE and not has_expired:
            return self._compared(known, record, wanted)
        if has_expired and record is not None and record.state is State.LIVE:
            if record.forks:
                raise StreamExists("an expired stream has this name, and forks still read from it")
            await self.end_if_expired(name)
            raise Conflict("an expired stream of this name was removed")
        return await self._make(name, known, wanted, body, key_id)

    def _compared(self, known: StreamSnapshot, record: StreamRecord, wanted: CreateStream) -> CreateResult:
        """What is there, if it is what is wanted."""
        asked = wanted.content_type or (DEFAULT_TYPE if wanted.fork is None else record.content_type)
        origin, fork = record.origin, wanted.fork
        is_same = (
            media_type(asked) == media_type(record.content_type)
            and wanted.is_closed == record.is_closed
            and (wanted.is_public is None or wanted.is_public == record.is_public)
            and (fork is None) == (origin is None)
        )
        if fork is None or wanted.ttl_seconds is not None or wanted.expires_at_ms is not None:
            is_same = is_same and (wanted.ttl_seconds, wanted.expires_at_ms) == (record.ttl_seconds, record.expires_at_ms)
        if fork is not None and origin is not None:
            is_same = is_same and fork.source == origin.source and fork.sub_offset == origin.sub_offset
            is_same = is_same and fork.offset in (None, origin.until)
        if not is_same:
            raise StreamExists("there is a stream of this name with another configuration")
        return CreateResult(record, known.tail, is_new=False)

    async def _make(self, name: Name, known: StreamSnapshot, wanted: CreateStream, body: bytes, key_id: str) -> CreateResult:
        source = None if wanted.fork is None else await self._source(name, wanted)
        record = self._new_record(name, wanted, source)
        first = _first_data(record, body)
        before = [source.prefix] if source is not None and source.prefix else []
        own = [*before, *([first] if first is not None else [])]
        drafts = [record_draft(name, record, precondition(name.record, known.record_at))]
        drafts += [data_draft(name, data, None, None) for data in own]
        if source is not None:
            drafts.append(_counted(source))
        stored = await self._store.committer(name).append_together(drafts)
        born = stored[0].sequence
        self._record_created(name, record, key_id)
        if known.last:
            await self._store.purge(name, born)
        metrics.created.add(name.tenant)
        record = resolved(record, born)
        return CreateResult(record, stored[len(own)].sequence if own else record.base, is_new=True)

    def _new_record(self, name: Name, wanted: CreateStream, source: "_Source | None") -> StreamRecord:
        ttl, expires_ms, expires = wanted.ttl_seconds, wanted.expires_at_ms, wanted.expires_at
        content_type = wanted.content_type or DEFAULT_TYPE
        if source is not None:
            parent = source.record
            if ttl is None and expires_ms is None:
                ttl, expires_ms, expires = parent.ttl_seconds, parent.expires_at_ms, parent.expires_at
            content_type = wanted.content_type or parent.content_type
            if media_type(content_type) != media_type(parent.content_type):
                raise ContentTypeMismatch(f"the source is of {parent.content_type!r}")
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
        )

    async def _source(self, name: Name, wanted: CreateStream) -> "_Source":
        """What the fork is made of. Raises StreamNotFound, NotNow, InvalidParameter."""
        fork = wanted.fork
        if fork is None:
            raise ValueError("not a fork")
        source = Name(name.tenant, fork.source)
        if source == name:
            raise InvalidParameter("a stream cannot be forked from itself")
        known = await self._store.known(source)
        try:
            record = found(known, self._clock())
        except StreamGone as gone:
            raise PreconditionFailed("the source was deleted") from gone
        until = known.tail if fork.offset is None else fork.offset
        if until > known.tail:
            raise InvalidParameter("Stream-Fork-Offset is beyond the source's end")
        segments = [*(record.origin.segments if record.origin else ()), Segment(source.id, record.born, until)]
        segments = [msgspec.structs.replace(one, until=min(one.until, until)) for one in segments]
        if len(segments) > _CHAIN_MAX:
            raise InvalidParameter(f"a fork has at most {_CHAIN_MAX} streams before it")
        prefix = await self._prefix(source, record, until, fork.sub_offset)
        origin = Origin(source.id, record.born, until, fork.sub_offset, tuple(segments))
        return _Source(source, known, record, origin, prefix)

    async def _prefix(self, source: Name, record: StreamRecord, until: int, sub_offset: int) -> bytes | None:
        """The part of the source's next append that a sub-offset takes along."""
        if sub_offset == 0:
            return None
        following = await self._reading.entries(source, record, until, 1, CHUNK_BYTES_MAX)
        data = following[0][0].payload if following[0] else b""
        parts: Sequence[bytes] = split_json(data) if record.is_json and data else ()
        length = len(parts) if record.is_json else len(data)
        if sub_offset > length:
            raise InvalidParameter("Stream-Fork-Sub-Offset is beyond the append that follows")
        return b",".join(parts[:sub_offset]) if record.is_json else data[:sub_offset]

    # Ending

    @retry_on_conflict("the stream")
    async def delete(self, name: Name, key_id: str) -> None:
        """Raises StreamNotFound, StreamGone."""
        known = await self._store.known(name)
        record = found(known, self._clock())
        condition = precondition(name.record, known.record_at)  # whatever is appended meanwhile goes too
        event = StreamDeleted(tenant=name.tenant, stream_id=name.id, key_id=key_id)
        if record.forks:
            hidden = msgspec.structs.replace(record, state=State.HIDDEN)
            await self._store.committer(name).append(record_draft(name, hidden, condition))
            self._record_deleted(record, event)
        else:
            await self._end(name, record, condition, event)
        metrics.deleted.add(name.tenant)

    async def end_if_expired(self, name: Name) -> bool:
        """Whether it had expired, and is gone now. One that forks read from stays."""
        known = await self._store.known(name)
        record = known.record
        if record is None or record.state is not State.LIVE or record.forks:
            return False
        if not is_expired(record, known.touched_at_ms, self._clock()):
            return False
        try:
            event = _expired(name.tenant, name.id)
            await self._end(name, record, precondition(name.everything, known.last), event)  # unless somebody uses it meanwhile
        except Conflict:
            return False
        metrics.deleted.add(name.tenant)
        return True

    async def _end(self, name: Name, record: StreamRecord, condition: str, event: StreamDeleted) -> None:
        """First a record that says so is durable, then everything goes: a crash between the two leaves nothing that is seen."""
        ended = msgspec.structs.replace(record, state=State.DELETED)
        releases, gone, over = await self._releases(name.tenant, record.origin)
        drafts = [record_draft(name, ended, condition), *releases]
        stored = await self._store.committer(name).append_together(drafts)
        self._record_deleted(record, event)
        for source in over:
            self._record_deleted(source, _expired(name.tenant, source.id))
        for one in (name, *gone):
            await self._store.purge(one, stored[-1].sequence + 1)

    def _record_created(self, name: Name, record: StreamRecord, key_id: str) -> None:
        created = StreamCreated(
            tenant=name.tenant,
            timestamp=rfc3339(record.created_at_ms),
            stream_id=record.id,
            content_type=record.content_type,
            forked_from=None if record.origin is None else record.origin.source,
            key_id=key_id,
        )
        self._outbox.record(None, created)
        if record.is_closed:
            self._outbox.record(None, StreamClosed(tenant=name.tenant, stream_id=name.id, key_id=key_id))

    def _record_deleted(self, record: StreamRecord, event: StreamDeleted) -> None:
        """The end of a session's stream is recorded as the end of the session."""
        if not record.is_session_stream:
            self._outbox.record(None, event)

    async def _releases(self, tenant: str, origin: Origin | None) -> tuple[list[PendingMessage], list[Name], list[StreamRecord]]:
        """What it takes to let go of the stream that a fork was made of, now that the fork ends; which streams go with it; and
        which turn out to have expired, as nobody had noticed."""
        drafts: list[PendingMessage] = []
        over: list[StreamRecord] = []
        gone: list[Name] = []
        while origin is not None:
            source = Name(tenant, origin.source)
            known = await self._store.known(source)
            parent = known.record
            if parent is None or parent.state is State.DELETED or parent.born != origin.source_born:
                break
            # To write the record of one that has expired would be to use it: it must not come back by that.
            is_over = parent.state is State.HIDDEN or is_expired(parent, known.touched_at_ms, self._clock())
            if is_over and parent.state is State.LIVE:
                over.append(parent)
            is_last = is_over and parent.forks <= 1
            state = State.DELETED if is_last else State.HIDDEN if is_over else parent.state
            changed = msgspec.structs.replace(parent, forks=max(0, parent.forks - 1), state=state)
            drafts.append(record_draft(source, changed, precondition(source.record, known.record_at)))
            if not is_last:
                break
            gone.append(source)
            origin = parent.origin
        return drafts, gone, over


def _first_data(record: StreamRecord, body: bytes) -> bytes | None:
    """What a new stream begins with. Raises MalformedJson."""
    if not body:
        return None
    if not record.is_json:
        return body
    return b",".join(json_elements(body)) or None


def _counted(source: _Source) -> PendingMessage:
    """The source's record, with one fork more."""
    record = msgspec.structs.replace(source.record, forks=source.record.forks + 1)
    return record_draft(source.name, record, precondition(source.name.record, source.known.record_at))


def _expired(tenant: str, stream: str) -> StreamDeleted:
    return StreamDeleted(tenant=tenant, stream_id=stream, is_expired=True)
