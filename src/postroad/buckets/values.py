"""Values of buckets: read, write with preconditions, batches, lists, history."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from postroad.api.buckets import BucketKeyNotFound, BucketNotFound, BucketStats, BucketWrite, RevisionMismatch
from postroad.buckets import metrics, rules
from postroad.buckets.records import CONTENT_TYPE, TRACEPARENT, BucketRecord, StoredEntry, read_entry, stats_of
from postroad.buckets.rules import Content, Precondition
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.protocol import header_lines
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict
from postroad.kernel.ids import new_id
from postroad.kernel.json import at_field
from postroad.kernel.usage_counters import UsageCounters
from postroad.topics.hops import check_hops
from postroad.topics.rules import HOPS

_ATTEMPTS_MAX = 3  # of a write of an absent key, whose marker changed meanwhile
_READ_MIN, _READS_MAX = 100, 20  # entries of one read, reads of one page
_PAGE_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries in the order of their revisions. `next_revision`: where to continue; None at the end."""

    entries: Sequence[StoredEntry]
    next_revision: int | None


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of one key to store; without content, a deletion."""

    key: str
    content: Content | None
    ttl_seconds: int | None = None
    precondition: Precondition = rules.NONE


class BucketValues:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        usage: UsageCounters,
        tenant_settings: TenantSettingsStore,
    ) -> None:
        self._connection, self._committers = connection, committers
        self._usage, self._tenant_settings = usage, tenant_settings

    # Reads

    async def get(self, record: BucketRecord, key: str, revision: int | None = None) -> StoredEntry:
        """The value of a key, now or at a revision. Raises BucketKeyNotFound, EngineUnavailable."""
        subject = record.subject + key
        if revision is None:
            entry = await stream_reader.last(self._connection, record.stream, subject)
        else:
            entry = await stream_reader.at(self._connection, record.stream, revision)
        found = read_entry(record, entry) if entry is not None and entry.subject == subject else None
        if found is None or not found.is_value:
            at = "" if revision is None else f" at revision {revision}"
            raise BucketKeyNotFound(f"the bucket {record.name!r} has no value of {key!r}{at}")
        metrics.reads.add(record.tenant, 1)
        return found

    async def current(self, record: BucketRecord, prefix: str, start: int, limit: int) -> Slice:
        """Up to `limit` current values from a revision on, of keys with a prefix. Deleted keys are left out.

        Every key that has a value throughout is found: one that is written between two calls has a later revision then. One call
        reads some thousands of entries at most, so it may find less than there is. Raises EngineUnavailable.
        """
        found: list[StoredEntry] = []
        tokens, size = rules.prefix_pattern(prefix), 0
        pattern = record.subject + tokens if tokens != ">" else ">"  # all: then the server need not compare subjects
        end = await self._end(record, pattern)
        for _ in range(_READS_MAX):
            page = await stream_reader.read_to(
                self._connection, record.stream, pattern, start, end, max(_READ_MIN, limit - len(found))
            )
            for one in await self._newest(record, [read_entry(record, entry) for entry in page.entries], prefix):
                found.append(one)
                size += len(one.data)
                if len(found) >= limit or size >= _PAGE_BYTES_MAX:
                    return Slice(found, one.revision + 1)
            start = page.next_sequence
            if page.is_end:
                return Slice(found, None)
        return Slice(found, start)

    async def _newest(self, record: BucketRecord, entries: Sequence[StoredEntry], prefix: str) -> list[StoredEntry]:
        """The values among the entries that are the newest of their keys."""
        values = [one for one in entries if one.is_value and one.key.startswith(prefix) and rules.is_key(one.key)]
        if record.revisions_max == 1 or not values:
            return values
        subjects = sorted({record.subject + one.key for one in values})
        newest = await stream_reader.last_of_each(self._connection, record.stream, subjects)
        return [one for one in values if newest.get(record.subject + one.key, one.revision) <= one.revision]

    async def _end(self, record: BucketRecord, pattern: str) -> int:
        """The last sequence of a pattern, from the leader: a replica that answers a read may lag."""
        if not self._connection.settings.has_replicas:
            return 0
        newest = await stream_reader.last(self._connection, record.stream, pattern)
        return 0 if newest is None else newest.sequence

    async def changes(self, record: BucketRecord, start: int, end: int, limit: int) -> Slice:
        """All changes that are kept from a revision on, deletions included. The bucket has reached the revision `end`."""
        page = await stream_reader.read_to(self._connection, record.stream, ">", start, end, limit)
        entries = [read_entry(record, entry) for entry in page.entries]
        return Slice([one for one in entries if rules.is_key(one.key)], None if page.is_end else page.next_sequence)

    async def history(self, record: BucketRecord, key: str, start: int, limit: int) -> Slice:
        """The kept revisions of a key, deletions included, oldest first. Empty if the key never existed."""
        subject = record.subject + key
        end = await self._end(record, subject)
        page = await stream_reader.read_to(self._connection, record.stream, subject, start, end, limit)
        metrics.reads.add(record.tenant, len(page.entries))
        return Slice([read_entry(record, entry) for entry in page.entries], None if page.is_end else page.next_sequence)

    async def stats(self, record: BucketRecord) -> BucketStats:
        """Raises BucketNotFound if the bucket is being deleted, EngineUnavailable."""
        info = await stream_info(self._connection, record.stream)
        if info is None:
            raise BucketNotFound(f"the bucket {record.name!r} is being deleted")
        return stats_of(info.state)

    # Writes

    async def put(
        self,
        context: RequestContext,
        record: BucketRecord,
        key: str,
        content: Content,
        *,
        ttl_seconds: int | None = None,
        precondition: Precondition = rules.NONE,
        hops: int = 0,
    ) -> int:
        """Store a value; return its revision once it is durable. `hops`: the deliveries that led to this write.

        Raises LoopDetected, RevisionMismatch, TooLarge, InvalidParameter, EngineFull, StorageQuotaExceeded, Overloaded,
        EngineUnavailable.
        """
        rules.check_size(content.data, self.value_bytes_max(record))
        rules.check_ttl(ttl_seconds, record.key_ttl_min)
        [revision] = await self._store(context, record, [_Change(key, content, ttl_seconds, precondition)], hops)
        return revision

    async def delete(
        self,
        context: RequestContext,
        record: BucketRecord,
        key: str,
        precondition: Precondition = rules.NONE,
        *,
        hops: int = 0,
    ) -> int:
        """Delete a key, a missing one too; return the revision of the deletion.

        Raises LoopDetected, RevisionMismatch, EngineUnavailable.
        """
        [revision] = await self._store(context, record, [_Change(key, None, precondition=precondition)], hops)
        return revision

    async def write_batch(
        self, context: RequestContext, record: BucketRecord, writes: Sequence[BucketWrite], *, hops: int = 0
    ) -> list[int]:
        """Make all writes or none; return their revisions. Raises BodyInvalid, and like `put`."""
        rules.check_batch(writes)
        bytes_max = self.value_bytes_max(record)
        for index, one in enumerate(writes):
            with at_field(f"$.writes[{index}].ttlSeconds"):
                rules.check_ttl(one.ttl_seconds, record.key_ttl_min)
        changes = [
            _Change(
                one.key,
                rules.batch_content(one, bytes_max, f"$.writes[{index}]"),
                one.ttl_seconds,
                Precondition(one.if_revision, one.if_absent),
            )
            for index, one in enumerate(writes)
        ]
        return await self._store(context, record, changes, hops)

    def value_bytes_max(self, record: BucketRecord) -> int:
        tenant_max = self._tenant_settings.of(record.tenant).max_message_bytes
        return min(record.settings.max_value_bytes or tenant_max, tenant_max)

    async def _store(self, context: RequestContext, record: BucketRecord, changes: Sequence[_Change], hops: int) -> list[int]:
        check_hops(hops)
        committer = self._committers.of(record.stream)
        absent: dict[str, int] = dict.fromkeys((one.key for one in changes if one.precondition.is_absent), 0)
        is_release = all(one.content is None for one in changes)
        for attempt in itertools.count(1):
            messages = [_message(context, record, one, absent, hops) for one in changes]
            try:
                acks = await committer.append_together(messages, uses_reserve=is_release)
                break
            except Conflict as conflict:
                known = await self._absent_revisions(record, absent)
                if known == absent or attempt == _ATTEMPTS_MAX:
                    raise RevisionMismatch(await self._mismatch(record, changes)) from conflict
                absent = known
        metrics.writes.add(record.tenant, len(changes))
        counters = self._usage.of(record.tenant)
        counters.bucket_writes += len(changes)
        counters.bucket_bytes += sum(len(one.content.data) for one in changes if one.content is not None)
        return [ack.sequence for ack in acks]

    async def _mismatch(self, record: BucketRecord, changes: Sequence[_Change]) -> str:
        """The first key that has another revision than its precondition names, as far as it still has."""
        for one in changes:
            wanted = one.precondition.revision
            if wanted is None:
                continue
            entry = await stream_reader.last(self._connection, record.stream, record.subject + one.key)
            found = 0 if entry is None else entry.sequence
            if found != wanted:
                has = f"has revision {found}" if found else "was never written, or no revision of it is kept"
                return f"the key {one.key!r} {has}; the precondition names {wanted}"
        return "a key has another revision than the precondition names"

    async def _absent_revisions(self, record: BucketRecord, keys: dict[str, int]) -> dict[str, int]:
        """The last revisions of keys that must not exist: those of their deletions, or 0. Raises RevisionMismatch."""
        found: dict[str, int] = {}
        for key in keys:
            entry = await stream_reader.last(self._connection, record.stream, record.subject + key)
            if entry is not None and read_entry(record, entry).is_value:
                raise RevisionMismatch(f"the key {key!r} exists, with revision {entry.sequence}")
            found[key] = 0 if entry is None else entry.sequence
        return found


def _message(context: RequestContext, record: BucketRecord, change: _Change, absent: dict[str, int], hops: int) -> PendingMessage:
    headers: list[tuple[str, str]] = []
    if change.content is None:
        headers.append(("KV-Operation", "DEL"))
    else:
        headers.append((CONTENT_TYPE, change.content.content_type))
    if change.ttl_seconds is not None:
        headers.append(("Nats-TTL", f"{change.ttl_seconds}s"))
    if context.traceparent is not None:
        headers.append((TRACEPARENT, context.traceparent))
    if hops:
        headers.append((HOPS, str(hops)))
    expected = absent.get(change.key, change.precondition.revision)
    if expected is not None:
        headers.append(("Nats-Expected-Last-Subject-Sequence", str(expected)))
    payload = b"" if change.content is None else change.content.data
    return PendingMessage(
        record.subject + change.key, payload, new_id(), header_lines(headers), is_conditional=expected is not None
    )
