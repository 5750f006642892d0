"""Storage of replays: records, progress, the end of a replay, its messages on `REPLAYS`."""

from collections.abc import Callable

import msgspec

from postroad.api.replays import ReplayState
from postroad.contracts.replays import REPLAYS
from postroad.governance.audit import Audit
from postroad.jetstream.connection import Connection
from postroad.jetstream.durable_worker import work_stream
from postroad.jetstream.management import StreamSpec, purge_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict
from postroad.kernel.identity import Caller, Scope
from postroad.replays import metrics
from postroad.replays.events import ReplayEnded
from postroad.replays.records import KEEP_SECONDS, ReplayRecord
from postroad.tasks.service import TaskCancelled
from postroad.telemetry.outbox import Outbox


def replay_stream(replicas: int, bytes_max: int) -> StreamSpec:
    """Selected commands are kept as long as their replay. A full stream refuses the pipeline, which then reports it."""
    spec = work_stream(REPLAYS.stream, REPLAYS.prefix, replicas)
    more = {"max_age": KEEP_SECONDS * 1_000_000_000, "max_bytes": bytes_max, "discard": "new"}
    return StreamSpec(spec.name, spec.subjects, {**spec.options, **more})


def operator_context(record: ReplayRecord) -> RequestContext:
    """The request that the replay was started with."""
    caller = Caller(record.tenant, record.created_by, frozenset({Scope.ADMIN}), is_platform=record.is_platform)
    return RequestContext(caller, record.request_id)


class ReplayStore:
    def __init__(
        self, connection: Connection, table: ReplicatedTable[ReplayRecord], audit: Audit, outbox: Outbox, clock: Clock
    ) -> None:
        self._connection, self.table, self._audit, self._outbox, self._clock = connection, table, audit, outbox, clock

    async def change(self, key: str, make: Callable[[ReplayRecord], ReplayRecord]) -> ReplayRecord | None:
        """Change a record, and keep it for another 30 days. None if it does not exist. Exceptions of `make` are passed on."""

        def stamped(record: ReplayRecord) -> ReplayRecord:
            made = make(record)
            return made if made == record else msgspec.structs.replace(made, updated_at_ms=self._clock())

        changed = await self.table.change(key, stamped, ttl_seconds=KEEP_SECONDS)
        return None if changed is None else changed[1]

    async def advance(self, record: ReplayRecord, **values: object) -> ReplayRecord:
        """Store the progress of a running replay. Raises TaskCancelled; Conflict if another process has made progress since."""

        def make(found: ReplayRecord) -> ReplayRecord:
            if found.state.is_final:
                raise TaskCancelled
            if (found.position, found.index) != (record.position, record.index):
                raise Conflict("another process runs this replay")
            return msgspec.structs.replace(found, **values)

        changed = await self.change(record.key, make)
        if changed is None:
            raise TaskCancelled
        return changed

    async def end(self, key: str, state: ReplayState, error: str | None = None) -> ReplayRecord | None:
        """End a replay, if it has not ended: audit entry, event, record; then remove its messages. May be repeated."""
        record = await self.table.fetch(key)
        if record is None:
            return None
        if not record.state.is_final:
            counts = msgspec.to_builtins(record.counts)
            after = {"state": state.value, "reason": record.reason, "selection": record.wanted, "counts": counts, "error": error}
            await self._audit.record(operator_context(record), "replay.end", record.id, tenant=record.tenant, after=after)
            await self._outbox.commit(None, _ended(record, state))
            record = await self.change(key, lambda found: _with_end(found, state, error, self._clock()))
            metrics.replays.labels(state.value).inc()
        await self.remove_messages(key)
        return record

    async def remove_messages(self, key: str) -> None:
        tenant, _, replay = key.partition(".")
        await purge_stream(self._connection, REPLAYS.stream, REPLAYS.subject_of(tenant=tenant, replay=replay))

    async def delete_all(self, tenant: str) -> None:
        for key in list(self.table.keys_under(f"{tenant}.")):
            await self.table.delete(key)
        await purge_stream(self._connection, REPLAYS.stream, REPLAYS.subjects_of(tenant))


def _with_end(record: ReplayRecord, state: ReplayState, error: str | None, now_ms: int) -> ReplayRecord:
    if record.state.is_final:
        return record
    return msgspec.structs.replace(record, state=state, error=error, throttled_until_ms=None, ended_at_ms=now_ms)


def _ended(record: ReplayRecord, state: ReplayState) -> ReplayEnded:
    counts = record.counts
    return ReplayEnded(
        event_id=f"{record.id}/ended",
        tenant=record.tenant,
        replay_id=record.id,
        reason=record.reason,
        state=state.value,
        selected=counts.selected,
        delivered=counts.delivered,
        duplicates=counts.duplicates,
        refused=sum(counts.refused.values()),
        remaining=counts.remaining,
    )
