"""Queue lifecycle: create, look up, update, pause, list, delete."""

import contextlib
from collections.abc import Callable, Container, Iterator

import msgspec
from msgspec import UNSET

from postroad.api.queues import ENGINE, Backend, Priority, QueueNotFound, StrictQueueSettings
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream, stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState, StreamLifecycle, refused_setting
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineRefused, Forbidden, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.kernel.names import QUEUE_CHARS_MAX, escape, queue_name
from postroad.queues.backends import Backends
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.events import QueueChanged, QueueDeleted, QueuePurged
from postroad.queues.new_queues import NewQueues
from postroad.queues.records import DEFERRED, PRIORITY, QueueRecord
from postroad.queues.rules import consumer_lease_ms
from postroad.queues.schemas import Schemas
from postroad.regions.placement import Placements, tags_of
from postroad.telemetry.outbox import Outbox

QUEUES_BUCKET = "postroad_queues"


class QueueLifecycle:
    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[QueueRecord],
        outbox: Outbox,
        clock: Clock,
        *,
        backend: Backends,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        dead_letters: DeadLetters,
        schemas: Schemas,
        placements: Placements,
        new_queues: NewQueues,
    ) -> None:
        self._connection, self._table, self._outbox, self._clock = connection, table, outbox, clock
        self._backend, self._tenant_settings, self._audit = backend, tenant_settings, audit
        self._dead_letters, self._schemas, self._placements = dead_letters, schemas, placements
        self._new_queues = new_queues
        self.reserved: Container[str] = ()  # names of queues that other capabilities serve
        dead_letters.find_queue = self.cached
        self._streams = StreamLifecycle(connection, table, clock, ensure=self._ensure_streams, release=self._release)

    def cached(self, tenant: str, name: str) -> QueueRecord | None:
        """The queue if this process knows it, which is nearly always. Cheaper than `find`, for the hot paths."""
        record = self._table.get(_key(tenant, name)) if len(name) <= QUEUE_CHARS_MAX else None
        return record if record is not None and record.state is RecordState.READY else None

    async def find(self, tenant: str, name: str) -> QueueRecord:
        """Raises QueueNotFound, InvalidParameter, and Forbidden for a reserved queue."""
        self._check_reserved(name)
        record = await self._streams.await_ready(_key(tenant, queue_name(name)))
        if record is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        return record

    def _check_reserved(self, name: str) -> None:
        if name in self.reserved:
            raise Forbidden(f"the queue {name!r} is read-only: only pull, ack, nack and extend are allowed")

    async def find_or_create(self, context: RequestContext, name: str) -> QueueRecord:
        """Like `find`, but create a missing queue with default settings if the tenant's `autoCreateQueues` is on."""
        try:
            return await self.find(context.tenant, name)
        except QueueNotFound:
            if name.startswith("_") or not self._tenant_settings.of(context.tenant).auto_create_queues:
                raise
        record, _ = await self.put(context, name, None)
        return record

    async def put(self, context: RequestContext, name: str, settings: StrictQueueSettings | None) -> tuple[QueueRecord, bool]:
        """Create the queue or replace its settings; return the queue and whether it is new.

        Without settings an existing queue is not changed. Raises InvalidParameter, BodyInvalid, Forbidden, Overloaded,
        EngineUnavailable, EngineRefused.
        """
        self._check_reserved(name)
        if settings is not None:
            await self._check_settings(context, settings)
        if queue_name(name).startswith("_"):
            raise InvalidParameter("names that start with '_' are reserved")

        def make(known: QueueRecord | None) -> StrictQueueSettings:
            if settings is None and known is not None:
                return known.settings
            return self._with_defaults(context.tenant, settings)

        return await self._apply(context, name, make)

    async def change(self, context: RequestContext, name: str, change: msgspec.Struct) -> QueueRecord:
        """Change some settings of a queue; null restores the default. Raises QueueNotFound, and like `put`."""
        self._check_reserved(name)
        values = msgspec.structs.asdict(change)
        given = {field: value for field, value in values.items() if value is not UNSET}
        defaults = self._with_defaults(context.tenant, None)
        given = {field: getattr(defaults, field) if value is None else value for field, value in given.items()}
        await self._check_settings(context, msgspec.structs.replace(defaults, **given))

        def make(known: QueueRecord | None) -> StrictQueueSettings:
            if known is None:
                raise QueueNotFound(f"there is no queue {name!r}")
            return msgspec.structs.replace(known.settings, **given)

        queue_name(name)
        record, _ = await self._apply(context, name, make)
        return record

    async def modify(
        self, context: RequestContext, name: str, make: Callable[[QueueRecord | None], StrictQueueSettings]
    ) -> tuple[QueueRecord, bool]:
        """Create the queue or change its settings to `make(record)`, which may raise; the queue and whether it is new.

        The record is the present one: if another process changes it meanwhile, `make` is called again. Raises like `put`.
        """
        if queue_name(name).startswith("_"):
            raise InvalidParameter("names that start with '_' are reserved")
        return await self._apply(context, name, make)

    async def _check_settings(self, context: RequestContext, settings: StrictQueueSettings) -> None:
        """Raises BodyInvalid for settings that cannot be put into effect."""
        if settings.ordered and settings.max_in_flight:
            raise invalid_field("$.maxInFlight", "an ordered queue has no such limit; leave it out")
        if settings.dead_letter_queue is not None:
            await self._check_dead_letter_queue(context, settings.dead_letter_queue)
        if settings.schema is not None:
            await self._schemas.check_schema(context.tenant, settings.schema)

    async def _check_dead_letter_queue(self, context: RequestContext, name: str) -> None:
        if context.caller.may_use("queue", name):
            with contextlib.suppress(QueueNotFound):
                check_readable_dead_letters(await self.find(context.tenant, name))
                return
        raise invalid_field("$.deadLetterQueue", f"there is no queue {name[:100]!r}")

    async def _apply(
        self, context: RequestContext, name: str, make: Callable[[QueueRecord | None], StrictQueueSettings]
    ) -> tuple[QueueRecord, bool]:
        """Create the queue or change its settings to `make(record)`; return the queue and whether it is new."""
        key = _key(context.tenant, name)
        wanted: StrictQueueSettings | None = None

        async def apply(known: QueueRecord | None) -> QueueRecord:
            nonlocal wanted
            wanted = make(known)
            backend = self._new_queues.backend_of(wanted, known)
            self._new_queues.check(backend, wanted)
            long_lease_ms = await self._backend.long_lease_ms_of(backend) if known is None else known.long_lease_ms
            self._new_queues.check_lease(backend, wanted.visibility_timeout_ms, long_lease_ms)
            wanted = msgspec.structs.replace(wanted, backend=UNSET)  # the record has it
            if wanted.dead_letter_queue == name:
                raise invalid_field("$.deadLetterQueue", "a queue cannot be its own dead-letter queue")
            if known is None:
                return await self._create(key, context, name, wanted, backend, long_lease_ms)
            return known if wanted == known.settings else await self._update(key, context, known, wanted)

        try:
            record, before = await self._streams.create_or_change(key, apply)
        except EngineRefused as refusal:
            problem = None if wanted is None else refused_setting("queue", refusal, wanted)
            if problem is None:
                raise
            raise problem from refusal
        if record is not before:
            self._outbox.record(context, _changed_event(record, is_new=before is None))
        return record, before is None

    def check_lease(self, record: QueueRecord, lease_ms: int | None, held_ms: int = 0) -> None:
        """Raises BodyInvalid for a lease that is too long for the backend of the queue. `held_ms`: how long it has lasted."""
        self._new_queues.check_lease(record.backend, lease_ms, record.long_lease_ms, held_ms)

    def _with_defaults(self, tenant: str, settings: StrictQueueSettings | None) -> StrictQueueSettings:
        settings = settings or StrictQueueSettings()
        if settings.visibility_timeout_ms is not None:
            return settings
        return msgspec.structs.replace(settings, visibility_timeout_ms=self._tenant_settings.of(tenant).visibility_timeout_ms)

    async def _create(
        self, key: str, context: RequestContext, name: str, settings: StrictQueueSettings, backend: Backend, long_lease_ms: int
    ) -> QueueRecord:
        self._check_count(context.tenant)
        placed, now = await self._placements.choose(settings), self._clock()
        record = QueueRecord(
            state=RecordState.CREATING,
            tenant=context.tenant,
            name=name,
            incarnation=new_id(),
            settings=settings,
            placement=placed.tags,
            replicas=placed.replicas,
            consumer_lease_ms=consumer_lease_ms(settings) if backend == ENGINE else 0,
            backend=backend,
            long_lease_ms=long_lease_ms,
            created_at_ms=now,
            updated_at_ms=now,
        )
        await self._backend.prepare(record)
        after = msgspec.structs.replace(settings, backend=backend)
        return await self._streams.create(key, record, self._audit.change(context, "queue.create", name, after=after))

    async def _update(self, key: str, context: RequestContext, known: QueueRecord, settings: StrictQueueSettings) -> QueueRecord:
        if settings.ordered != known.settings.ordered:
            raise PreconditionFailed(
                f"`ordered` of the queue {known.name!r} is {str(known.settings.ordered).lower()} and cannot be changed"
            )
        placed = await self._placements.choose(settings, known)
        changed = msgspec.structs.replace(
            known, settings=settings, placement=placed.tags, replicas=placed.replicas, updated_at_ms=self._clock()
        )
        _check_in_flight(changed)
        audited = self._audit.change(context, "queue.change", known.name, before=known.settings, after=settings)
        updated = await self._streams.update(key, changed, audited)
        if placed.tags != tags_of(known):
            await self._placements.start_move(context, "queue", known.name, settings, placed.replicas)
        if updated.is_readable and settings.retention_ms > 0 and not 0 < known.settings.retention_ms <= settings.retention_ms:
            await self._purge_older(updated)
        return updated

    async def _purge_older(self, record: QueueRecord) -> None:
        """Delete the messages that a shorter retention leaves out. Those that it ends later are not delivered any more."""
        since = self._clock() - record.settings.retention_ms
        for subject in (*record.deferred_subjects, *record.ready_subjects):
            info = await stream_info(self._connection, record.stream)
            kept = await stream_reader.read_since(self._connection, record.stream, subject, since, 1)
            before = kept.entries[0].sequence if kept.entries else info.state.last_seq + 1 if info is not None else 1
            await purge_stream(self._connection, record.stream, subject, before=before)

    def _check_count(self, tenant: str) -> None:
        count = self._table.count_under(f"{tenant}.")
        limit = self._tenant_settings.of(tenant).max_queues
        if count >= limit:
            raise Forbidden(f"the tenant has {count} queues; {limit} is the limit")

    async def _ensure_streams(self, record: QueueRecord) -> None:
        """Create or update the stream of the queue, and what else its backend needs. Idempotent."""
        await self._dead_letters.ensure_stream(record.tenant)
        await self._backend.create(record)

    async def _release(self, record: QueueRecord) -> None:
        await self._backend.delete(record)
        await self._dead_letters.remove_queue(record)

    async def with_feature(self, record: QueueRecord, feature: str) -> QueueRecord:
        """The queue, prepared for messages that use this feature. Raises QueueNotFound, BodyInvalid, EngineUnavailable."""

        def added(now: QueueRecord) -> QueueRecord:
            wanted = msgspec.structs.replace(now, features=tuple(sorted({*now.features, feature})))
            _check_in_flight(wanted)
            return wanted

        if feature in record.features:
            return record
        # A feature changes no consumer that another one changes: processes can add different ones at the same time.
        prepared: tuple[Priority, ...] = ("high", "low") if feature == PRIORITY else ("normal",)
        if feature == DEFERRED:  # streams of earlier versions do not replace records
            await self._ensure_streams(record)
        else:
            for priority in prepared:
                await self._backend.engine.ensure_consumer(added(record), priority)
        changed = await self._table.change(_key(record.tenant, record.name), added)
        if changed is None or changed[1].incarnation != record.incarnation:
            raise QueueNotFound(f"there is no queue {record.name!r}")
        if feature == PRIORITY and changed[1].is_paused:
            await self._backend.pause(changed[1], prepared, is_paused=True)
        return changed[1]

    async def delete(self, context: RequestContext, name: str) -> None:
        """Raises QueueNotFound, Conflict."""
        key = _key(context.tenant, name)
        record = await self.find(context.tenant, name)
        revision = self._table.revision(key)  # of this record: it may change while the audit entry is written
        async with self._audit.change(context, "queue.delete", name, before=record.settings):
            await self._streams.delete(key, record, revision)
        self._outbox.record(context, QueuePurged(queue=name, count=0, is_deleted=True))
        self._outbox.record(context, QueueDeleted(queue=name))

    async def delete_all(self, tenant: str) -> None:
        """Delete all queues of a tenant. May be repeated after an interruption."""
        await self._streams.delete_all(tenant)

    def records(self, caller: Caller, prefix: str = "", after: str | None = None) -> Iterator[QueueRecord]:
        """The queues that the caller may use whose names start with `prefix`, ordered by the tokens of their names, after the
        queue `after`. The cost is that of those that are taken."""
        keys = self._table.keys_under(_key(caller.tenant, prefix), _key(caller.tenant, after) if after is not None else "")
        found = (record for key in keys if (record := self._table.get(key)) is not None)
        return (one for one in found if one.state is not RecordState.DELETING and caller.may_use("queue", one.name))

    def count(self, caller: Caller, prefix: str = "") -> int:
        """The number of these queues, without reading them if the caller may use all."""
        if caller.is_restricted("queue"):
            return sum(1 for _ in self.records(caller, prefix))
        return self._table.count_under(_key(caller.tenant, prefix))

    async def set_paused(self, context: RequestContext, name: str, *, is_paused: bool, reason: str | None = None) -> QueueRecord:
        """Pause or resume deliveries on all workers. Publishing and acknowledging continue. A paused queue can be paused again
        with another reason. Raises QueueNotFound."""
        record = await self.find(context.tenant, name)
        if record.is_paused == is_paused and record.pause_reason == reason:
            return record
        action = "queue.pause" if is_paused else "queue.resume"
        async with self._audit.change(context, action, name, after={"reason": reason} if reason else None):
            await self._backend.pause(record, record.priorities, is_paused=is_paused)
            changed = await self._table.change(
                _key(context.tenant, name),
                lambda now: msgspec.structs.replace(now, is_paused=is_paused, pause_reason=reason, updated_at_ms=self._clock()),
            )
            if changed is not None and changed[1].priorities != record.priorities:  # added at the same time
                await self._backend.pause(changed[1], changed[1].priorities, is_paused=is_paused)
        if changed is None:
            raise QueueNotFound(f"there is no queue {name!r}")
        self._outbox.record(context, _changed_event(changed[1], is_new=False))
        return changed[1]

    async def claim_purge(self, record: QueueRecord, interval_ms: int) -> bool:
        """Note that the queue is purged now; false if that was noted less than an interval ago."""
        now, is_claimed = self._clock(), False

        def claimed(known: QueueRecord) -> QueueRecord:
            nonlocal is_claimed
            is_claimed = now - known.purged_at_ms >= interval_ms
            return msgspec.structs.replace(known, purged_at_ms=now) if is_claimed else known

        await self._table.change(_key(record.tenant, record.name), claimed)
        return is_claimed

    async def recover_all(self) -> int:
        """Finish interrupted creations and deletions; return how many there were. For the control role."""
        return await self._streams.recover_all()


def check_readable_dead_letters(queue: QueueRecord) -> None:
    """Raises BodyInvalid for a dead-letter queue whose messages cannot be read."""
    if not queue.is_readable:
        raise invalid_field("$.deadLetterQueue", f"the messages of {queue.name!r} are in RabbitMQ and cannot be read there")


def _check_in_flight(record: QueueRecord) -> None:
    """Raises BodyInvalid: each priority has a consumer of its own, which counts only the messages that it has delivered."""
    if record.has_priority and record.settings.max_in_flight:
        raise invalid_field("$.maxInFlight", "excludes priorities, and the queue has had messages with a priority")


def _changed_event(record: QueueRecord, *, is_new: bool) -> QueueChanged:
    return QueueChanged(timestamp=rfc3339(record.updated_at_ms), queue=record.name, is_new=is_new)


def _key(tenant: str, name: str) -> str:
    return f"{tenant}.{escape(name)}"
