"""Measures the storage of each tenant: every few seconds for its quota, every minute as an event (`storage.sampled`).

Runs in the leader of the control role.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamState, count_subjects, stream_states
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import tenant_of
from postroad.kernel.resources import ResourceKind
from postroad.telemetry.events import StorageSampled
from postroad.telemetry.outbox import Outbox

INTERVAL_SECONDS = 60.0
_DUTY_FACTOR = 20  # a measurement that takes long, because there are many streams, is repeated less often

log = structlog.get_logger("postroad.telemetry")


@dataclass(slots=True)
class _TenantStorage:
    bytes: int = 0
    messages: int = 0
    resources: Counter[str] = field(default_factory=Counter)


class StorageSampler:
    """Samples the tenants that `tenants` returns. `report` receives the bytes of each tenant after each measurement."""

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        tenants: Callable[[], list[str]],
        report: Callable[[Mapping[str, int]], Awaitable[None]] | None = None,
        *,
        usage_seconds: float = 10.0,
        seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._report, self._usage_seconds = report, usage_seconds
        self._connection, self._outbox, self._tenants, self._seconds = connection, outbox, tenants, seconds
        self._kinds: dict[str, ResourceKind] = {}
        self._counts: dict[str, tuple[StreamState, int]] = {}
        self._nonempty: set[str] = set()
        self._sampled_at = 0.0

    def set_kinds(self, kinds: Iterable[ResourceKind]) -> None:
        """Set the kinds of resources whose streams are the storage of tenants."""
        self._kinds = {prefix: kind for kind in kinds for prefix in kind.stream_prefixes}

    async def run(self) -> None:
        """Measure until cancelled. The first event is after one interval, since it covers the time before it."""
        loop = asyncio.get_running_loop()
        self._sampled_at = loop.time()
        while True:
            started = loop.time()
            try:
                states = await stream_states(self._connection)
                if self._report is not None:
                    await self._report(self._bytes_by_tenant(states))
                if loop.time() - self._sampled_at >= self._seconds:
                    await self.sample(states)
            except PostroadError as problem:  # the next sample covers this interval, too
                log.warning("storage_not_sampled", code=problem.code)
            pause = max(self._usage_seconds, (loop.time() - started) * _DUTY_FACTOR)
            await asyncio.sleep(min(pause, self._seconds))

    def _bytes_by_tenant(self, states: Mapping[str, StreamState]) -> dict[str, int]:
        found: Counter[str] = Counter()
        for stream, state in states.items():
            prefix, _, rest = stream.partition("_")
            tenant = tenant_of(rest) if prefix in self._kinds else None
            if tenant is not None:
                found[tenant] += state.bytes
        return dict(found)

    async def sample(self, states: Mapping[str, StreamState] | None = None) -> None:
        """Record a sample of each tenant that has storage, and one of each that had some at the last sample."""
        states = await stream_states(self._connection) if states is None else states
        tenants = set(self._tenants())
        found = {tenant: _TenantStorage() for tenant in self._nonempty & tenants}
        for stream, state in states.items():
            prefix, _, rest = stream.partition("_")
            tenant, kind = rest.partition("__")[0], self._kinds.get(prefix)
            if kind is None or tenant not in tenants:
                continue
            storage = found.setdefault(tenant, _TenantStorage())
            storage.bytes += state.bytes
            storage.messages += state.messages
            if prefix == kind.stream_prefixes[0]:
                storage.resources[kind.name] += await self._count(kind, tenant, stream, state)
        now = asyncio.get_running_loop().time()
        seconds, self._sampled_at = round(now - self._sampled_at, 3), now
        for tenant, storage in found.items():
            self._outbox.record(None, _event(tenant, storage, seconds))
        self._nonempty = {tenant for tenant, storage in found.items() if storage != _TenantStorage()}
        self._counts = {stream: known for stream, known in self._counts.items() if stream in states}

    async def _count(self, kind: ResourceKind, tenant: str, stream: str, state: StreamState) -> int:
        """The number of resources in a stream. Subjects are counted again only if the stream has changed."""
        if kind.counted_by is None:
            return 1
        known = self._counts.get(stream)
        if known is None or known[0] != state:
            subjects = kind.counted_by.format(tenant=tenant)
            known = self._counts[stream] = (state, await count_subjects(self._connection, stream, subjects))
        return known[1]


def _event(tenant: str, storage: _TenantStorage, seconds: float) -> StorageSampled:
    return StorageSampled(
        tenant=tenant,
        bytes=storage.bytes,
        messages=storage.messages,
        queues=storage.resources["queue"],
        streams=storage.resources["stream"],
        topics=storage.resources["topic"],
        buckets=storage.resources["bucket"],
        seconds=seconds,
    )
