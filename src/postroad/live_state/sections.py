"""Sections that belong to no capability: health, flow and changes of a tenant; tenants and processes of the installation."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import msgspec

from postroad.access.identity_cache import IdentityCache
from postroad.api.governance import AuditEntry
from postroad.api.health import Check
from postroad.api.live_state import LiveChange, LiveCheck, LiveFlow, LiveProcess, LiveTenant
from postroad.governance.audit import AUDIT_STREAM, CHECKPOINT_SUBJECT
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, follow
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.event import PLATFORM
from postroad.kernel.identity import Caller, Scope
from postroad.telemetry.events import ProcessSampled
from postroad.telemetry.flow_counters import FlowCounters
from postroad.telemetry.frames import frame_subject, unpack
from postroad.telemetry.live_sections import LiveSection, Rows

_CHANGES_MAX = 200
_CHANGES_MS = 3_600_000
_FLOWS_MAX = 1_000
_HEALTH_SECONDS = 3.0
_GONE_MS = 60_000
_PAGE = 256
_TENANTS_MAX = 5_000
_RESOURCE_OF = {"queue": "queue", "dead": "queue", "topic": "topic"}
_PLATFORM_SUBJECT = frame_subject("TELEMETRY", PLATFORM)
_PROCESS_MARK = b'{"event":"process.sampled"'

_decode_audit = msgspec.json.Decoder(AuditEntry).decode
_decode_process = msgspec.json.Decoder(ProcessSampled).decode


class LiveHealth(LiveSection):
    """The checks of `/readyz`. They name no resource, so every caller may see them."""

    name = "health"

    def __init__(self, checks: Callable[[], Awaitable[dict[str, Check]]]) -> None:
        self._checks = checks
        self._read_at = float("-inf")
        self._rows: dict[str, LiveCheck] = {}

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= _HEALTH_SECONDS:
            self._read_at = now
            found = await self._checks()
            # The details have times that change by themselves; they matter if the check fails.
            self._rows = {
                name: LiveCheck(name=name, ok=one.ok, detail="" if one.ok else one.detail) for name, one in found.items()
            }
        return self._rows

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        return True


class LiveFlows(LiveSection):
    """Who sends to what: keys, queues, topics, subscriptions, sources and routes."""

    name = "flow"

    def __init__(self, flows: FlowCounters, identities: IdentityCache) -> None:
        self._flows, self._identities = flows, identities

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        found = [one for one in self._flows.of(tenant) if one.per_second or one.failed_per_second]
        found.sort(key=lambda one: -one.per_second)
        return {
            f"{one.source}>{one.target}": LiveFlow(
                source=one.source,
                source_name=party_name(one.source, self._identities),
                target=one.target,
                target_name=party_name(one.target, self._identities),
                per_second=one.per_second,
                failed_per_second=one.failed_per_second,
                since=rfc3339(one.since_ms),
            )
            for one in found[:_FLOWS_MAX]
        }

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        return isinstance(row, LiveFlow) and _may_see_flow(caller, row)


def party_name(party: str, identities: IdentityCache) -> str:
    """The name for people: that of a key instead of its id."""
    kind, _, name = party.partition(":")
    record = identities.keys.get(name) if kind == "key" else None
    return record.name if record is not None else name


def _may_see_flow(caller: Caller, flow: LiveFlow) -> bool:
    """True if the caller may use its queue or topic, or one of the services that a command is between, as for telemetry events.

    A key is only in flows with a queue or topic, a subscription only in flows of its topic.
    """
    services: list[str] = []
    for party in (flow.source, flow.target):
        kind, _, name = party.partition(":")
        if kind == "source":
            services.append(caller.own_service(name))
        elif kind == "route":
            services.append(name.partition("/")[0])
        elif kind in _RESOURCE_OF and not caller.may_use(_RESOURCE_OF[kind], name):
            return False
    return not services or any(service and caller.may_use("service", service) for service in services)


class LiveChanges(LiveSection):
    """The newest entries of the tenant's audit log."""

    name = "changes"
    scope = Scope.ADMIN

    def __init__(self, connection: Connection, identities: IdentityCache, clock: Clock) -> None:
        self._connection, self._identities, self._clock = connection, identities, clock
        self._tenants: dict[str, tuple[int, dict[str, LiveChange]]] = {}  # position after the last entry, and rows

    async def open(self, tenant: str) -> None:
        since_ms = self._clock() - _CHANGES_MS
        page = await stream_reader.read_since(self._connection, AUDIT_STREAM, f"audit.{tenant}", since_ms, _PAGE)
        rows: dict[str, LiveChange] = {}
        position = page.next_sequence
        self._add(rows, page.entries)
        while not page.is_end and page.entries:
            page = await stream_reader.read(self._connection, AUDIT_STREAM, f"audit.{tenant}", position, _PAGE)
            self._add(rows, page.entries)
            position = page.next_sequence
        if position == 1:  # no entry in that time: continue at the end
            newest = await stream_reader.last(self._connection, AUDIT_STREAM, f"audit.{tenant}")
            position = 1 if newest is None else newest.sequence + 1
        self._tenants[tenant] = position, rows

    def close(self, tenant: str) -> None:
        self._tenants.pop(tenant, None)

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        position, rows = self._tenants[tenant]
        page = await stream_reader.read(self._connection, AUDIT_STREAM, f"audit.{tenant}", position, _PAGE)
        self._add(rows, page.entries)
        self._tenants[tenant] = page.next_sequence, rows
        return dict(rows)

    def _add(self, rows: dict[str, LiveChange], entries: Sequence[Entry]) -> None:
        for stored in entries:
            if stored.subject == CHECKPOINT_SUBJECT:
                continue
            try:
                entry = _decode_audit(stored.payload)
            except msgspec.DecodeError:
                continue
            rows[entry.id] = LiveChange(
                id=entry.id,
                at=entry.at,
                action=entry.action,
                target=entry.target,
                outcome=entry.outcome,
                actor_key_id=entry.actor_key_id,
                actor_name=party_name(f"key:{entry.actor_key_id}", self._identities),
                actor_is_platform=entry.actor_is_platform,
            )
        while len(rows) > _CHANGES_MAX:
            del rows[next(iter(rows))]

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        return True  # as the audit log itself


class LiveTenants(LiveSection):
    name = "tenants"
    is_platform = True

    def __init__(self, identities: IdentityCache, levels: Callable[[Sequence[str]], dict[str, tuple[int, float, float]]]) -> None:
        self._identities, self._levels = identities, levels

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        tenants, rows = self._identities.tenant_ids()[:_TENANTS_MAX], dict[str, LiveTenant]()
        levels = self._levels(tenants)
        for name in tenants:
            record = self._identities.tenants.get(name)
            if record is None:
                continue
            queues, in_per_second, out_per_second = levels.get(name, (0, 0.0, 0.0))
            rows[name] = LiveTenant(
                id=name,
                state=record.state,
                description=record.description,
                queues=queues,
                keys=self._identities.key_count(name),
                in_per_second=round(in_per_second, 1),
                out_per_second=round(out_per_second, 1),
            )
        return rows


class LiveProcesses(LiveSection):
    """The processes of the installation, from their samples. One that sends none for a minute is gone."""

    name = "processes"
    is_platform = True

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection, self._clock = connection, clock
        self._rows: dict[str, tuple[int, LiveProcess]] = {}
        self._following: asyncio.Task[None] | None = None

    async def current(self) -> list[LiveProcess]:
        """The processes now, also if no stream watches them."""
        if self._following is None:
            await self._load()
        now = self._clock()
        return [row for at_ms, row in self._rows.values() if now - at_ms <= _GONE_MS]

    async def open(self, tenant: str) -> None:
        after = await self._load()
        self.close(tenant)
        self._following = asyncio.create_task(self._follow(Source("TELEMETRY", _PLATFORM_SUBJECT), after))

    async def _load(self) -> int:
        """Read the samples of the last minutes; return the position after them."""
        subject, since_ms = _PLATFORM_SUBJECT, self._clock() - _GONE_MS
        page = await stream_reader.read_since(self._connection, "TELEMETRY", subject, since_ms, _PAGE)
        after = page.next_sequence - 1
        while page.entries:
            for entry in page.entries:
                self._add(entry)
            after = page.next_sequence - 1
            if page.is_end:
                break
            page = await stream_reader.read(self._connection, "TELEMETRY", subject, page.next_sequence, _PAGE)
        if not after:
            newest = await stream_reader.last(self._connection, "TELEMETRY", subject)
            after = newest.sequence if newest is not None else 0
        return after

    async def _follow(self, source: Source, after: int) -> None:
        async with aclosing(follow(self._connection, source, after)) as entries:
            async for entry in entries:
                self._add(entry)

    def close(self, tenant: str) -> None:
        if self._following is not None:
            self._following.cancel()
            self._following = None

    def _add(self, entry: Entry) -> None:
        for line in unpack(entry.payload):
            if line.startswith(_PROCESS_MARK):
                try:
                    sample = _decode_process(line)
                except msgspec.DecodeError:
                    continue
                self._rows[sample.worker] = entry.at_ms, _process_row(sample, entry.at_ms)

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        if self._following is not None and self._following.done():
            self._following.result()
        now = self._clock()
        self._rows = {worker: one for worker, one in self._rows.items() if now - one[0] <= _GONE_MS}
        return {worker: row for worker, (_, row) in self._rows.items()}


def _process_row(sample: ProcessSampled, at_ms: int) -> LiveProcess:
    seconds = max(sample.seconds, 0.001)
    return LiveProcess(
        worker=sample.worker,
        role=sample.role,
        seen_at=rfc3339(at_ms),
        requests_per_second=round(sample.requests / seconds, 1),
        client_errors_per_second=round(sample.client_errors / seconds, 1),
        server_errors_per_second=round(sample.server_errors / seconds, 1),
        open_requests=sample.open_requests,
        loop_lag_ms=sample.loop_lag_ms,
        memory_bytes=sample.memory_bytes,
        events_dropped=sample.events_dropped,
    )
