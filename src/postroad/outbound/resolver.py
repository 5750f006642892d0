"""Cached lookups of host names. Cache and lookups are bounded per tenant.

Names that were found, names that were not, and new ones have lookups of their own. So the lookups of a tenant's names that no
name server answers, each of which takes seconds, hold up its lookups of such names only.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto

from postroad.outbound.fair_slots import FairSlots, SlotLimits
from postroad.outbound.rules import Address
from postroad.outbound.system_resolver import Answer, NameUnresolved

_TTL_SECONDS_MIN, _TTL_SECONDS_MAX = 5.0, 300.0
_FAILURE_SECONDS = 10.0
_NAMES_MAX = 10_000

Query = Callable[[str], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cached result; no addresses for a name that could not be resolved."""

    addresses: tuple[Address, ...]
    expires_at: float


class _Kind(Enum):
    """What the last lookup of a name came to."""

    NEW = auto()
    FOUND = auto()
    FAILED = auto()


class Resolver:
    """Each tenant has its own cache entries and lookups, so that one tenant's names neither delay nor reveal another's.

    `limits`: of the running lookups of each kind of names.
    """

    def __init__(
        self, query: Query, limits: SlotLimits, *, names_max: int = _NAMES_MAX, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._query, self._names_max, self._clock = query, names_max, clock
        self._slots = {kind: FairSlots(limits) for kind in _Kind}
        self._entries: dict[str, OrderedDict[str, _Entry]] = {}  # by tenant and host, oldest first
        self._count = 0
        self._running: dict[tuple[str, str], asyncio.Task[_Entry]] = {}

    async def resolve(self, tenant: str, host: str, deadline: float) -> tuple[Address, ...]:
        """Addresses of a host. Raises NameUnresolved, TimeoutError, and SlotsBusy if the tenant has too many lookups running."""
        entry = self._cached(tenant, host)
        if entry is None:
            entry = await self._look_up(tenant, host, deadline)
        if not entry.addresses:
            raise NameUnresolved
        return entry.addresses

    async def close(self) -> None:
        """Cancel the running lookups."""
        running = list(self._running.values())
        for lookup in running:
            lookup.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _look_up(self, tenant: str, host: str, deadline: float) -> _Entry:
        running = self._running.get((tenant, host))
        if running is None:
            slots = self._slots[self._kind(tenant, host)]
            await slots.acquire(tenant, host, deadline)
            entry = self._cached(tenant, host)  # of a lookup that ran while this one waited
            running = self._running.get((tenant, host))  # with slots of another kind: the name was new then
            if entry is not None or running is not None:
                slots.release(tenant, host)
            if entry is not None:
                return entry
            if running is None:
                running = self._running[tenant, host] = asyncio.create_task(self._run(tenant, host, slots))
        async with asyncio.timeout_at(deadline):
            return await asyncio.shield(running)  # others may wait for it too, and its result is cached

    async def _run(self, tenant: str, host: str, slots: FairSlots) -> _Entry:
        try:
            try:
                answer = await self._query(host)
            except NameUnresolved:
                answer = Answer((), _FAILURE_SECONDS)
            seconds = min(max(answer.ttl_seconds, _TTL_SECONDS_MIN), _TTL_SECONDS_MAX)
            entry = _Entry(answer.addresses, self._clock() + seconds)
            self._store(tenant, host, entry)
            return entry
        finally:
            del self._running[tenant, host]
            slots.release(tenant, host)

    def _kind(self, tenant: str, host: str) -> _Kind:
        """By the entry of the last lookup, which stays after it has expired."""
        entries = self._entries.get(tenant)
        if entries is None or host not in entries:
            return _Kind.NEW
        return _Kind.FOUND if entries[host].addresses else _Kind.FAILED

    def _cached(self, tenant: str, host: str) -> _Entry | None:
        entries = self._entries.get(tenant)
        entry = entries.get(host) if entries is not None else None
        return entry if entry is not None and self._clock() < entry.expires_at else None

    def _store(self, tenant: str, host: str, entry: _Entry) -> None:
        """Add an entry. When the cache is full, the tenant with most entries loses its oldest."""
        entries = self._entries.setdefault(tenant, OrderedDict())
        self._count += host not in entries
        entries[host] = entry
        entries.move_to_end(host)
        if self._count > self._names_max:
            largest = max(self._entries, key=lambda one: len(self._entries[one]))
            self._entries[largest].popitem(last=False)
            self._count -= 1
            if not self._entries[largest]:
                del self._entries[largest]
