"""Bucket lifecycle: create, look up, update, list, delete."""

import contextlib
from collections.abc import Callable

import msgspec
from msgspec import UNSET

from postroad.api.buckets import BucketNotFound, BucketSettings, BucketSettingsChange
from postroad.api.pages import Page
from postroad.buckets.events import BucketChanged
from postroad.buckets.mapping import ChangeStreamMappings
from postroad.buckets.records import BucketRecord, feeder_of
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, ensure_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import INCARNATION, RecordState, StreamLifecycle, refused_setting
from postroad.jetstream.tail import republish
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import AlreadyExists, Conflict, EngineFull, EngineRefused, Forbidden, InvalidParameter
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.kernel.matching import glob_matches
from postroad.kernel.names import BUCKET_CHARS_MAX, bucket_name, escape
from postroad.regions.placement import Placements, tags_of
from postroad.telemetry.outbox import Outbox
from postroad.topics.records import TopicRecord

BUCKETS_BUCKET = "postroad_buckets"
_SECOND = 1_000_000_000  # nanoseconds
_DEDUPE_SECONDS = 60  # Postroad's own retries rely on it


class BucketLifecycle:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[BucketRecord],
        outbox: Outbox,
        clock: Clock,
        *,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        committers: Committers,
        mappings: ChangeStreamMappings,
        placements: Placements,
    ) -> None:
        self._connection, self._outbox, self._clock = connection, outbox, clock
        self._tenant_settings, self._audit, self._committers = tenant_settings, audit, committers
        self._mappings, self._placements = mappings, placements
        self.table = table
        self._streams = StreamLifecycle(connection, table, clock, ensure=self._ensure_stream, release=mappings.release)
        self._known: dict[str, BucketRecord] = {}
        table.on_change(self._record_changed)

    def _record_changed(self, key: str, record: BucketRecord | None) -> None:
        """Fail the waiting writes of a deleted bucket."""
        before = self._known.get(key)
        is_ending = record is None or record.state is RecordState.DELETING
        if before is not None and (is_ending or (record is not None and record.incarnation != before.incarnation)):
            del self._known[key]
            self._committers.forget(before.stream, BucketNotFound("the bucket was deleted"))
        if record is not None and record.state is RecordState.READY:
            self._known[key] = record

    # Look-ups

    def cached(self, tenant: str, name: str) -> BucketRecord | None:
        """The bucket if this process knows it."""
        record = self.table.get(bucket_key(tenant, name)) if len(name) <= BUCKET_CHARS_MAX else None
        return record if record is not None and record.state is RecordState.READY else None

    async def find(self, tenant: str, name: str) -> BucketRecord:
        """Raises BucketNotFound, InvalidParameter."""
        record = self.cached(tenant, name) or await self._streams.await_ready(bucket_key(tenant, bucket_name(name)))
        if record is None:
            raise BucketNotFound(f"there is no bucket {name!r}")
        return record

    def page(self, caller: Caller, limit: int, after: str | None, name: str | None = None) -> Page[BucketRecord]:
        """The buckets that the caller may use and that match `name`, ordered by the tokens of their names, after `after`."""
        prefix = f"{caller.tenant}."
        start = prefix + escape(after) if after is not None else ""
        found = [record for key in self.table.keys_under(prefix) if key > start and (record := self.table.get(key)) is not None]
        records = [
            one
            for one in found
            if one.state is not RecordState.DELETING
            and caller.may_use("bucket", one.name)
            and (name is None or glob_matches(name, one.name))
        ]
        return Page(items=records[:limit], next_cursor=records[limit - 1].name if len(records) > limit else None)

    # Changes

    async def create(self, context: RequestContext, name: str, settings: BucketSettings) -> tuple[BucketRecord, bool]:
        """Create the bucket; return it and whether it is new: the same call may be repeated.

        Raises AlreadyExists if it exists with other settings, InvalidParameter, BodyInvalid, Forbidden, EngineUnavailable,
        EngineRefused.
        """

        def make(known: BucketSettings | None) -> BucketSettings:
            if known is not None and known != settings:
                raise AlreadyExists(f"there is a bucket {name!r} with other settings")
            return settings

        return await self._change(context, name, make, may_create=True)

    async def update(self, context: RequestContext, name: str, change: BucketSettingsChange) -> BucketRecord:
        """Change some settings; null restores the default. Raises BucketNotFound, and like `create`."""
        values, defaults = msgspec.structs.asdict(change), BucketSettings()
        given = {
            field: getattr(defaults, field) if value is None else value for field, value in values.items() if value is not UNSET
        }
        record, _ = await self._change(
            context, name, lambda known: msgspec.structs.replace(known or defaults, **given), may_create=False
        )
        return record

    async def _change(
        self,
        context: RequestContext,
        name: str,
        make: Callable[[BucketSettings | None], BucketSettings],
        *,
        may_create: bool,
    ) -> tuple[BucketRecord, bool]:
        """`make` returns the new settings, from the present ones or None."""
        if bucket_name(name).startswith("_"):
            raise InvalidParameter("names that start with '_' are reserved")
        key = bucket_key(context.tenant, name)
        wanted: BucketSettings | None = None

        async def apply(known: BucketRecord | None) -> BucketRecord:
            nonlocal wanted
            if known is None and not may_create:
                raise BucketNotFound(f"there is no bucket {name!r}")
            before = None if known is None else known.settings
            settings = make(before)
            if known is not None and settings == before:
                return known
            self._check_settings(context.tenant, name, settings)
            wanted = settings
            if known is None:
                return await self._create(key, context, name, settings)
            return await self._update(key, context, known, settings)

        try:
            record, before = await self._streams.create_or_change(key, apply)
        except (EngineRefused, EngineFull) as refusal:
            problem = None if wanted is None else refused_setting("bucket", refusal, wanted, max_bytes=wanted.max_bytes)
            if problem is None:
                raise
            raise problem from refusal
        if record is not before:
            self._outbox.record(context, _changed_event(record, "created" if before is None else "updated"))
        return record, before is None

    def _check_settings(self, tenant: str, name: str, settings: BucketSettings) -> None:
        """Raises BodyInvalid for settings that cannot be put into effect."""
        if settings.max_bytes:
            others = [one for key in self.table.keys_under(f"{tenant}.") if (one := self.table.get(key)) and one.name != name]
            reserved = sum(one.settings.max_bytes for one in others)
            quota = self._committers.storage.of_tenant(tenant).quota
            if reserved + settings.max_bytes > quota:
                raise invalid_field(
                    "$.maxBytes", f"the tenant's buckets reserve {reserved} bytes already, and its storage quota is {quota}"
                )

    async def _create(self, key: str, context: RequestContext, name: str, settings: BucketSettings) -> BucketRecord:
        count, limit = self.table.count_under(f"{context.tenant}."), self._tenant_settings.of(context.tenant).max_buckets
        if count >= limit:
            raise Forbidden(f"the tenant has {count} buckets; {limit} is the limit")
        placed = await self._placements.choose(settings)
        mapping, now = await self._mappings.change(context, name, None, settings), self._clock()
        record = BucketRecord(
            state=RecordState.CREATING,
            tenant=context.tenant,
            name=name,
            incarnation=new_id(),
            settings=settings,
            placement=placed.tags,
            replicas=placed.replicas,
            change_stream=mapping,
            created_at_ms=now,
            updated_at_ms=now,
        )
        return await self._streams.create(key, record, self._audit.change(context, "bucket.create", name, after=settings))

    async def _update(self, key: str, context: RequestContext, known: BucketRecord, settings: BucketSettings) -> BucketRecord:
        placed = await self._placements.choose(settings, known)
        changed = msgspec.structs.replace(
            known,
            settings=settings,
            placement=placed.tags,
            replicas=placed.replicas,
            change_stream=await self._mappings.change(context, known.name, known, settings),
            updated_at_ms=self._clock(),
        )
        audited = self._audit.change(context, "bucket.change", known.name, before=known.settings, after=settings)
        updated = await self._streams.update(key, changed, audited)
        if placed.tags != tags_of(known):
            await self._placements.start_move(context, "bucket", known.name, settings, placed.replicas)
        return updated

    async def _ensure_stream(self, record: BucketRecord) -> None:
        """Create or update the stream, in the layout of NATS KV. Idempotent."""
        settings, subjects = record.settings, f"{record.subject}>"
        dedupe_seconds = min(_DEDUPE_SECONDS, settings.ttl_seconds or _DEDUPE_SECONDS)
        options: dict[str, object] = {
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "discard": "new",
            "max_msgs_per_subject": record.revisions_max,
            "max_age": settings.ttl_seconds * _SECOND,
            "max_bytes": settings.max_bytes or -1,
            "subject_delete_marker_ttl": record.marker_seconds * _SECOND,
            "duplicate_window": dedupe_seconds * _SECOND,
            "republish": republish(subjects),
            "metadata": {INCARNATION: record.incarnation},
            **self._placements.options(tags_of(record), record.replicas),
        }
        await ensure_stream(self._connection, StreamSpec(record.stream, (subjects,), options))

    # Deletion

    async def delete(self, context: RequestContext, name: str) -> None:
        """Raises BucketNotFound, Conflict."""
        key = bucket_key(context.tenant, bucket_name(name))
        record = await self._streams.await_ready(key)
        if record is None:
            raise BucketNotFound(f"there is no bucket {name!r}")
        async with self._audit.change(context, "bucket.delete", name, before=record.settings):
            await self._delete(key, record)
        self._outbox.record(context, _changed_event(record, "deleted", at_ms=self._clock()))

    async def _delete(self, key: str, record: BucketRecord) -> None:
        """Delete the bucket as it was found, although its change stream may have moved on. Raises Conflict."""
        while True:
            found = await self._streams.await_ready(key)
            if found is None or (found.incarnation, found.settings) != (record.incarnation, record.settings):
                raise Conflict(f"{record.name!r} was changed at the same time")
            try:
                return await self._streams.delete(key, found, self.table.revision(key))
            except Conflict:
                if record.change_stream is None:
                    raise

    async def topic_deleted(self, topic: TopicRecord) -> None:
        """End the change stream that fed the topic. Idempotent."""
        name = (topic.fed_by or "").removeprefix("bucket/")
        key = bucket_key(topic.tenant, name)

        async def unmap(known: BucketRecord | None) -> BucketRecord:
            if known is None:
                raise BucketNotFound(f"there is no bucket {name!r}")
            if known.change_stream is None or known.change_stream.topic != topic.name:
                return known
            settings = msgspec.structs.replace(known.settings, change_stream_topic=None)
            return await self._streams.update(
                key, msgspec.structs.replace(known, settings=settings, change_stream=None), contextlib.nullcontext()
            )

        if topic.fed_by == feeder_of(name) and self.table.get(key) is not None:
            with contextlib.suppress(BucketNotFound):
                await self._streams.create_or_change(key, unmap)

    async def delete_all(self, tenant: str) -> None:
        """Delete all buckets of a tenant. May be repeated after an interruption."""
        await self._streams.delete_all(tenant)

    async def recover_all(self) -> int:
        """Finish interrupted creations and deletions; return how many there were. For the control role."""
        return await self._streams.recover_all()


def _changed_event(record: BucketRecord, change: str, at_ms: int | None = None) -> BucketChanged:
    at = rfc3339(record.updated_at_ms if at_ms is None else at_ms)
    return BucketChanged(timestamp=at, bucket=record.name, change=change, incarnation=record.incarnation)


def bucket_key(tenant: str, name: str) -> str:
    """Key of a bucket in the registry."""
    return f"{tenant}.{escape(name)}"
