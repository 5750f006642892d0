"""Topic lifecycle: create, look up, update, list, delete."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from postroad.api.pages import Page
from postroad.api.topics import StrictTopicSettings, TopicInUse, TopicNotFound, TopicSettingsChange
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, ensure_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.storage_budget import StorageBudgets
from postroad.jetstream.stream_lifecycle import INCARNATION, RecordState, StreamLifecycle, refused_setting
from postroad.jetstream.tail import republish
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import AlreadyExists, EngineFull, EngineRefused, Forbidden, InvalidParameter
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.kernel.matching import glob_matches
from postroad.kernel.names import TOPIC_CHARS_MAX, escape, topic_name
from postroad.queues.schemas import Schemas
from postroad.regions.placement import Placements, tags_of
from postroad.telemetry.outbox import Outbox
from postroad.topics.events import TopicChanged
from postroad.topics.records import TopicRecord

TOPICS_BUCKET = "postroad_topics"
FED_RETENTION_MS_MIN = 3_600_000  # the feeder reads from the topic how far it is
_MS = 1_000_000  # nanoseconds


@dataclass(frozen=True, slots=True)
class Dependent:
    """A kind of resources that belong to topics, such as `subscriptions`: a topic that has some is only deleted with them.

    `count` is the number that a topic has. `remove` deletes all of a topic that is being deleted; it must be idempotent, since
    an interrupted deletion is repeated, by another process perhaps.
    """

    name: str
    count: Callable[[TopicRecord], Awaitable[int]]
    remove: Callable[[TopicRecord], Awaitable[None]]


class TopicLifecycle:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[TopicRecord],
        outbox: Outbox,
        clock: Clock,
        *,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        storage: StorageBudgets,
        schemas: Schemas,
        placements: Placements,
    ) -> None:
        self._connection, self._outbox, self._clock = connection, outbox, clock
        self._tenant_settings, self._audit, self._storage = tenant_settings, audit, storage
        self._schemas, self._placements = schemas, placements
        self.table = table
        self._streams = StreamLifecycle(connection, table, clock, ensure=self._ensure_stream, release=self._remove_dependents)
        self._dependents: list[Dependent] = []
        self._known: dict[str, TopicRecord] = {}
        self._end_listeners: list[Callable[[TopicRecord], None]] = []
        table.on_change(self._record_changed)

    # For other capabilities

    def add_dependent(self, dependent: Dependent) -> None:
        self._dependents.append(dependent)

    def on_end(self, listener: Callable[[TopicRecord], None]) -> None:
        """Call `listener` with the record of each topic that is being deleted, once, in every process.

        A topic that was deleted and created again has another incarnation: its sequences start at 1 again.
        """
        self._end_listeners.append(listener)

    def _record_changed(self, key: str, record: TopicRecord | None) -> None:
        before = self._known.get(key)
        is_ending = record is None or record.state is RecordState.DELETING
        if before is not None and (is_ending or (record is not None and record.incarnation != before.incarnation)):
            del self._known[key]
            for listener in self._end_listeners:
                listener(before)
        if record is not None and record.state is RecordState.READY:
            self._known[key] = record

    # Look-ups

    def cached(self, tenant: str, name: str) -> TopicRecord | None:
        """The topic if this process knows it, which is nearly always. Cheaper than `find`, for the hot paths."""
        record = self.table.get(topic_key(tenant, name)) if len(name) <= TOPIC_CHARS_MAX else None
        return record if record is not None and record.state is RecordState.READY else None

    async def find(self, tenant: str, name: str) -> TopicRecord:
        """Raises TopicNotFound, InvalidParameter."""
        record = await self._streams.await_ready(topic_key(tenant, topic_name(name)))
        if record is None:
            raise TopicNotFound(f"there is no topic {name!r}")
        return record

    async def find_or_create(self, context: RequestContext, name: str) -> TopicRecord:
        """Like `find`, but create a missing topic with default settings if the tenant's `autoCreateTopics` is on."""
        try:
            return await self.find(context.tenant, name)
        except TopicNotFound:
            if name.startswith("_") or not self._tenant_settings.of(context.tenant).auto_create_topics:
                raise
        record, _ = await self.put(context, name, None)
        return record

    def page(self, caller: Caller, limit: int, after: str | None, name: str | None = None) -> Page[TopicRecord]:
        """The topics that the caller may use and that match `name`, ordered by the tokens of their names, after `after`."""
        prefix = f"{caller.tenant}."
        start = prefix + escape(after) if after is not None else ""
        found = [record for key in self.table.keys_under(prefix) if key > start and (record := self.table.get(key)) is not None]
        records = [
            one
            for one in found
            if one.state is not RecordState.DELETING
            and caller.may_use("topic", one.name)
            and (name is None or glob_matches(name, one.name))
        ]
        return Page(items=records[:limit], next_cursor=records[limit - 1].name if len(records) > limit else None)

    # Changes

    async def put(self, context: RequestContext, name: str, settings: StrictTopicSettings | None) -> tuple[TopicRecord, bool]:
        """Create the topic or replace its settings; return the topic and whether it is new.

        Without settings an existing topic is not changed. Raises InvalidParameter, BodyInvalid, Forbidden, Overloaded,
        EngineUnavailable, EngineRefused.
        """
        return await self._change(context, name, lambda known: settings or _settings_of(known), may_create=True)

    async def update(self, context: RequestContext, name: str, change: TopicSettingsChange) -> TopicRecord:
        """Change some settings of a topic; null restores the default. Raises TopicNotFound, and like `put`."""
        values, defaults = msgspec.structs.asdict(change), StrictTopicSettings()
        given = {
            field: getattr(defaults, field) if value is None else value for field, value in values.items() if value is not UNSET
        }
        record, _ = await self._change(
            context, name, lambda known: msgspec.structs.replace(_settings_of(known), **given), may_create=False
        )
        return record

    async def modify(
        self, context: RequestContext, name: str, make: Callable[[TopicRecord | None], StrictTopicSettings]
    ) -> TopicRecord:
        """Set the settings that `make` returns for the present record, or for None if there is no topic: then it is created.

        Exceptions of `make` are passed on. Raises like `put`.
        """
        record, _ = await self._change(context, name, make, may_create=True)
        return record

    async def claim(self, context: RequestContext, name: str, settings: StrictTopicSettings, feeder: str) -> TopicRecord:
        """A topic that only the resource `feeder` publishes to: a new one, or the one that it has already.

        Raises AlreadyExists if the topic exists for other use, and like `put`.
        """

        def make(known: TopicRecord | None) -> StrictTopicSettings:
            if known is not None and known.fed_by != feeder:
                raise AlreadyExists(f"there is a topic {name!r} that is not fed by {feeder}; choose another, or delete it first")
            return settings if known is None else known.settings

        record, _ = await self._change(context, name, make, may_create=True, feeder=feeder)
        return record

    async def set_feeder(self, tenant: str, name: str, feeder: str | None) -> TopicRecord:
        """Let only the resource `feeder` publish to the topic; None: every caller. Raises TopicNotFound."""
        changed = await self.table.change(topic_key(tenant, name), lambda now: msgspec.structs.replace(now, fed_by=feeder))
        if changed is None:
            raise TopicNotFound(f"there is no topic {name!r}")
        return changed[1]

    async def _change(
        self,
        context: RequestContext,
        name: str,
        make: Callable[[TopicRecord | None], StrictTopicSettings],
        *,
        may_create: bool,
        feeder: str | None = None,
    ) -> tuple[TopicRecord, bool]:
        """`make` returns the new settings, for the present record or None. `feeder` is that of a new topic."""
        if topic_name(name).startswith("_"):
            raise InvalidParameter("names that start with '_' are reserved")
        key = topic_key(context.tenant, name)
        wanted: StrictTopicSettings | None = None

        async def apply(known: TopicRecord | None) -> TopicRecord:
            nonlocal wanted
            if known is None and not may_create:
                raise TopicNotFound(f"there is no topic {name!r}")
            settings = make(known)
            if known is not None and settings == known.settings:
                return known
            await self._check_settings(context.tenant, name, settings, known)
            wanted = settings
            if known is None:
                return await self._create(key, context, name, settings, feeder)
            return await self._update(key, context, known, settings)

        try:
            record, before = await self._streams.create_or_change(key, apply)
        except (EngineRefused, EngineFull) as refusal:
            problem = None if wanted is None else refused_setting("topic", refusal, wanted, max_bytes=wanted.max_bytes)
            if problem is None:
                raise
            raise problem from refusal
        if record is not before:
            self._outbox.record(context, _changed_event(record, "created" if before is None else "updated"))
        return record, before is None

    async def _check_settings(self, tenant: str, name: str, settings: StrictTopicSettings, known: TopicRecord | None) -> None:
        """Raises BodyInvalid for settings that cannot be put into effect."""
        if settings.schema is not None and (known is None or settings.schema != known.settings.schema):
            await self._schemas.check_schema(tenant, settings.schema)
        if known is not None and known.fed_by is not None and 0 < settings.retention_ms < FED_RETENTION_MS_MIN:
            raise invalid_field("$.retentionMs", f"is at least {FED_RETENTION_MS_MIN}, an hour: {known.fed_by} feeds the topic")
        if settings.max_bytes:
            others = [one for key in self.table.keys_under(f"{tenant}.") if (one := self.table.get(key)) and one.name != name]
            reserved = sum(one.settings.max_bytes for one in others)
            quota = self._storage.of_tenant(tenant).quota
            if reserved + settings.max_bytes > quota:
                raise invalid_field(
                    "$.maxBytes", f"the tenant's topics reserve {reserved} bytes already, and its storage quota is {quota}"
                )

    async def _create(
        self, key: str, context: RequestContext, name: str, settings: StrictTopicSettings, feeder: str | None
    ) -> TopicRecord:
        self._check_count(context.tenant)
        placed, now = await self._placements.choose(settings), self._clock()
        record = TopicRecord(
            state=RecordState.CREATING,
            tenant=context.tenant,
            name=name,
            incarnation=new_id(),
            settings=settings,
            placement=placed.tags,
            replicas=placed.replicas,
            fed_by=feeder,
            created_at_ms=now,
            updated_at_ms=now,
        )
        return await self._streams.create(key, record, self._audit.change(context, "topic.create", name, after=settings))

    async def _update(self, key: str, context: RequestContext, known: TopicRecord, settings: StrictTopicSettings) -> TopicRecord:
        placed = await self._placements.choose(settings, known)
        changed = msgspec.structs.replace(
            known, settings=settings, placement=placed.tags, replicas=placed.replicas, updated_at_ms=self._clock()
        )
        audited = self._audit.change(context, "topic.change", known.name, before=known.settings, after=settings)
        updated = await self._streams.update(key, changed, audited)
        if placed.tags != tags_of(known):
            await self._placements.start_move(context, "topic", known.name, settings, placed.replicas)
        return updated

    def _check_count(self, tenant: str) -> None:
        count = self.table.count_under(f"{tenant}.")
        limit = self._tenant_settings.of(tenant).max_topics
        if count >= limit:
            raise Forbidden(f"the tenant has {count} topics; {limit} is the limit")

    async def _ensure_stream(self, record: TopicRecord) -> None:
        """Create or update the stream. Idempotent. It contains nothing but messages, so tails find no gaps."""
        settings, subjects = record.settings, f"{record.subject}.>"
        options: dict[str, object] = {
            "allow_atomic": True,
            "max_age": record.retention_ms * _MS,
            "max_msgs": settings.max_messages or -1,
            "max_bytes": settings.max_bytes or -1,
            "discard": "new" if settings.on_full == "refuse" else "old",
            "duplicate_window": record.dedupe_window_ms * _MS,
            "republish": republish(subjects),
            "metadata": {INCARNATION: record.incarnation},
            **self._placements.options(tags_of(record), record.replicas),
        }
        await ensure_stream(self._connection, StreamSpec(record.stream, (subjects,), options))

    # Deletion

    async def delete(self, context: RequestContext, name: str, *, cascade: bool = False) -> None:
        """Raises TopicNotFound, Conflict, and TopicInUse if resources belong to the topic and `cascade` is false."""
        key = topic_key(context.tenant, name)
        record = await self.find(context.tenant, name)
        revision = self.table.revision(key)  # of this record: it may change while the audit entry is written
        if not cascade:
            await self._check_unused(record)
        async with self._audit.change(context, "topic.delete", name, before=record.settings):
            await self._streams.delete(key, record, revision)
        self._outbox.record(context, _changed_event(record, "deleted", at_ms=self._clock()))

    async def _check_unused(self, record: TopicRecord) -> None:
        found = [(await dependent.count(record), dependent.name) for dependent in self._dependents]
        used = [f"{count} {noun}" for count, noun in found if count]
        if record.fed_by is not None:
            used.append(record.fed_by)
        if used:
            raise TopicInUse(
                f"the topic {record.name!r} is used by {', '.join(used)}; add ?cascade=true to delete it all the same"
            )

    async def _remove_dependents(self, record: TopicRecord) -> None:
        for dependent in self._dependents:
            await dependent.remove(record)

    async def delete_all(self, tenant: str) -> None:
        """Delete all topics of a tenant. May be repeated after an interruption."""
        await self._streams.delete_all(tenant)

    async def recover_all(self) -> int:
        """Finish interrupted creations and deletions; return how many there were. For the control role."""
        return await self._streams.recover_all()


def _changed_event(record: TopicRecord, change: str, at_ms: int | None = None) -> TopicChanged:
    at = rfc3339(record.updated_at_ms if at_ms is None else at_ms)
    return TopicChanged(timestamp=at, topic=record.name, change=change, incarnation=record.incarnation)


def _settings_of(record: TopicRecord | None) -> StrictTopicSettings:
    return StrictTopicSettings() if record is None else record.settings


def topic_key(tenant: str, name: str) -> str:
    """Key of a topic in the registry."""
    return f"{tenant}.{escape(name)}"
