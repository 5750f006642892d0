"""What each tenant has stored, told now and then as `storage.sampled`. One process looks, the control role's leader."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamState, count_subjects, stream_states
from postroad.kernel.errors import PostroadError
from postroad.kernel.names import streams_store
from postroad.telemetry.events import StorageSampled
from postroad.telemetry.outbox import Outbox

EVERY_SECONDS = 60.0

log = structlog.get_logger("postroad.telemetry")


@dataclass(slots=True)
class _Stored:
    bytes: int = 0
    messages: int = 0
    queues: int = 0
    streams: int = 0


class StorageSampler:
    """`tenants`: of whom it is told."""

    def __init__(
        self,
        connection: Connection,
        outbox: Outbox,
        tenants: Callable[[], list[str]],
        *,
        seconds: float = EVERY_SECONDS,
    ) -> None:
        self._connection, self._outbox, self._tenants, self._seconds = connection, outbox, tenants, seconds
        self._prefixes: frozenset[str] = frozenset()
        self._counts: dict[str, tuple[StreamState, int]] = {}
        self._told: set[str] = set()
        self._told_at = 0.0

    def count(self, prefixes: Iterable[str]) -> None:
        """Set the prefixes of the JetStream streams that belong to tenants."""
        self._prefixes = frozenset(prefixes)

    async def run(self) -> None:
        """Until cancelled. The first time is after a while: a sample counts for the time before it."""
        self._told_at = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.tell()
            except PostroadError as problem:  # another time; it will count for this one, too
                log.warning("storage_not_sampled", code=problem.code)

    async def tell(self) -> None:
        """Of all who have something, and once more of those who have nothing any more."""
        states = await stream_states(self._connection)
        served = set(self._tenants())
        stored: dict[str, _Stored] = {tenant: _Stored() for tenant in self._told & served}
        for name, state in states.items():
            kind, _, rest = name.partition("_")
            tenant = rest.partition("__")[0]
            if kind not in self._prefixes or tenant not in served:
                continue
            one = stored.setdefault(tenant, _Stored())
            one.bytes += state.bytes
            one.messages += state.messages
            one.queues += kind == "Q"
            if kind == "S":
                one.streams = await self._streams(tenant, state)
        now = asyncio.get_running_loop().time()
        seconds, self._told_at = round(now - self._told_at, 3), now
        for tenant, one in stored.items():
            self._outbox.record(None, self._event(tenant, one, seconds))
        self._told = {tenant for tenant, one in stored.items() if one != _Stored()}
        self._counts = {name: known for name, known in self._counts.items() if name in states}

    async def _streams(self, tenant: str, state: StreamState) -> int:
        """How many durable streams there are, sessions' own included; counted anew if anything was written or removed."""
        name = streams_store(tenant)
        known = self._counts.get(name)
        if known is None or known[0] != state:
            known = self._counts[name] = (state, await count_subjects(self._connection, name, f"s.{tenant}.*.m"))
        return known[1]

    def _event(self, tenant: str, stored: _Stored, seconds: float) -> StorageSampled:
        return StorageSampled(
            tenant=tenant,
            bytes=stored.bytes,
            messages=stored.messages,
            queues=stored.queues,
            streams=stored.streams,
            seconds=seconds,
        )
