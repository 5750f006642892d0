"""Tenants and keys as every worker sees them: followed in memory, so that a revoked key stops everywhere within moments."""

import asyncio
import time
from collections.abc import Iterator

from postroad.access.key_usage import KeyUsage
from postroad.access.keys import KEY_PREFIXES, key_hash, key_id_of
from postroad.access.records import KeyRecord, TenantRecord, TenantState
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Forbidden, InvalidParameter, RegistryStale, TenantDisabled, TenantNotFound
from postroad.kernel.identity import ALL_SCOPES, Caller, Credential
from postroad.kernel.names import tenant_id

FIRST_TENANT = "default"
_RECENT_MAX = 50_000
_UNKNOWN_MAX = 10_000
_UNKNOWN_SECONDS = 1.0
_TOUCH_SECONDS = 0.05  # how long a good answer to whether the registry is followed is good
_TIMER_SECONDS_MAX = 30 * 86_400.0  # whoever stays longer is asked to come back


class IdentityCache:
    """Who there is. `trust_seconds_max`: how old the registry may be before nobody is let in on its word."""

    def __init__(
        self,
        tenants: ReplicatedTable[TenantRecord],
        keys: ReplicatedTable[KeyRecord],
        uses: KeyUsage,
        clock: Clock,
        *,
        trust_seconds_max: float,
    ) -> None:
        self.tenants, self.keys, self.uses, self._clock = tenants, keys, uses, clock
        self._trust_seconds_max = trust_seconds_max
        self._in_touch_until = 0.0
        self._recent: dict[str, Caller] = {}  # by the hash of a key's text
        self._unknown: dict[str, float] = {}  # ids that the engine did not know either, and when that was
        self._hashes: dict[str, tuple[str, ...]] = {}
        self._by_tenant: dict[str | None, set[str]] = {}
        self._watched: dict[str, set[CallerWatch]] = {}
        keys.on_change(self._key_changed)
        tenants.on_change(self._tenant_changed)

    def _key_changed(self, key_id: str, record: KeyRecord | None) -> None:
        for digest in self._hashes.pop(key_id, ()):
            self._recent.pop(digest, None)
        self._unknown.pop(key_id, None)
        if record is None:
            self.uses.forget(key_id)
            for ids in self._by_tenant.values():
                ids.discard(key_id)
        else:
            self._hashes[key_id] = tuple(one.sha256 for one in record.hashes)
            self._by_tenant.setdefault(record.tenant, set()).add(key_id)
        for watch in tuple(self._watched.get(key_id, ())):
            if record is None or not self._holds(record, watch.caller):
                watch.end()

    def _tenant_changed(self, tenant: str, record: TenantRecord | None) -> None:
        self._recent.clear()
        if record is None or record.state is not TenantState.READY:
            for watch in [one for some in self._watched.values() for one in some if one.caller.tenant == tenant]:
                watch.end()

    def check_in_touch(self) -> None:
        """Raises OutOfTouch: a key may have been revoked without this worker's knowing."""
        now = time.monotonic()
        if now < self._in_touch_until:
            return
        age = max(self.keys.staleness_seconds, self.tenants.staleness_seconds)
        if age > self._trust_seconds_max:
            raise RegistryStale(f"the registry was last followed {age:.0f} s ago", retry_after=5)
        self._in_touch_until = now + _TOUCH_SECONDS

    async def caller_by_key(self, text: str, named_tenant: str | None, *, may_ask: bool = True) -> Caller | None:
        """The caller behind a key, None if it is not good. `may_ask`: look a key up that is not known here; another process
        may have made it just now.

        Raises TenantNotFound (to platform keys only), TenantDisabled, Forbidden.
        """
        now, digest = self._clock(), key_hash(text)
        caller = self._recent.get(digest)
        if caller is None or (caller.expires_at_ms is not None and caller.expires_at_ms <= now):
            record = await self._record(text, may_ask=may_ask)
            if record is None or not record.takes(digest, now) or not record.is_good(now):
                return None
            if record.tenant is None:
                self.uses.note(record.id, now)
                return await self._platform_caller(record, named_tenant)
            caller = await self._remembered(digest, record)
        self.uses.note(caller.key_id, now)
        if named_tenant is not None and named_tenant != caller.tenant:
            raise Forbidden("only a platform key may name another tenant")
        return caller

    async def _record(self, text: str, *, may_ask: bool) -> KeyRecord | None:
        key_id = key_id_of(text, KEY_PREFIXES)
        if key_id is None:
            return None
        record = self.keys.get(key_id)
        if record is None and may_ask:
            now = asyncio.get_running_loop().time()
            if now - self._unknown.get(key_id, -_UNKNOWN_SECONDS) >= _UNKNOWN_SECONDS:
                record = await self.keys.fetch(key_id)
                if record is None:
                    if len(self._unknown) >= _UNKNOWN_MAX:
                        self._unknown.clear()
                    self._unknown[key_id] = now
        return record

    async def _remembered(self, digest: str, record: KeyRecord) -> Caller:
        caller = await self.caller_of(record)
        if len(self._recent) >= _RECENT_MAX:
            self._recent.clear()
        is_phased_out = any(one.expires_at_ms is not None for one in record.hashes if one.sha256 == digest)
        if not is_phased_out and self.keys.get(record.id) is record:  # it may have been revoked while the tenant was looked up
            self._recent[digest] = caller
        return caller

    async def caller_of(self, record: KeyRecord) -> Caller:
        """Of a tenant's key. Raises TenantDisabled."""
        if record.tenant is None:
            raise TypeError("a platform key is nobody's without a request")
        tenant = await self.tenants.fetch(record.tenant)
        if tenant is None or tenant.state is not TenantState.READY:
            raise TenantDisabled(f"the tenant {record.tenant!r} is disabled")
        return Caller(
            record.tenant,
            record.id,
            frozenset(record.scopes),
            name=record.name,
            expires_at_ms=record.expires_at_ms,
            allowed=record.allowed,
        )

    async def _platform_caller(self, record: KeyRecord, named_tenant: str | None) -> Caller:
        tenant = named_tenant or FIRST_TENANT
        if await self.tenant(tenant) is None:
            raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
        return Caller(
            tenant, record.id, frozenset(ALL_SCOPES), is_platform=True, name=record.name, expires_at_ms=record.expires_at_ms
        )

    async def tenant(self, name: str) -> TenantRecord | None:
        try:
            record = await self.tenants.fetch(tenant_id(name))
        except InvalidParameter:
            return None
        return None if record is not None and record.state is TenantState.DELETED else record

    async def is_served(self, name: str) -> bool:
        """Whether the tenant is there and not disabled."""
        record = await self.tenant(name)
        return record is not None and record.state is TenantState.READY

    def tenant_ids(self) -> list[str]:
        """Of the tenants that are not deleted."""
        found = [(name, self.tenants.get(name)) for name in self.tenants.keys_under()]
        return [name for name, record in found if record is not None and record.state is not TenantState.DELETED]

    async def key(self, key_id: str) -> KeyRecord | None:
        return await self.keys.fetch(key_id)

    def keys_of(self, tenant: str | None) -> Iterator[KeyRecord]:
        """A tenant's keys, or the platform's, oldest first."""
        found = [record for key_id in self._by_tenant.get(tenant, ()) if (record := self.keys.get(key_id)) is not None]
        return iter(sorted(found, key=lambda record: (record.created_at_ms, record.id)))

    def key_count(self, tenant: str | None) -> int:
        return len(self._by_tenant.get(tenant, ()))

    def watch(self, caller: Caller) -> "CallerWatch":
        """To be closed. It has ended already if the key was revoked since the caller was let in."""
        left_ms = None if caller.expires_at_ms is None else caller.expires_at_ms - self._clock()
        watch = CallerWatch(self._watched, caller, left_ms)
        record = self.keys.get(caller.key_id)
        if caller.credential in (Credential.KEY, Credential.TOKEN) and (record is None or not self._holds(record, caller)):
            watch.end()
        return watch

    def _holds(self, record: KeyRecord, caller: Caller) -> bool:
        return record.is_good(self._clock()) and _still_covers(record, caller)

    def end_watches(self, key_id: str) -> None:
        for watch in tuple(self._watched.get(key_id, ())):
            watch.end()


class CallerWatch:
    """Tells an answer that goes on for long when its caller's right to it has ended. To be closed."""

    def __init__(self, watched: dict[str, set["CallerWatch"]], caller: Caller, left_ms: int | None) -> None:
        loop = asyncio.get_running_loop()
        self.caller = caller
        self.ended: asyncio.Future[None] = loop.create_future()
        self._watched = watched
        self._timer = None if left_ms is None else loop.call_later(max(0, min(left_ms / 1000, _TIMER_SECONDS_MAX)), self.end)
        watched.setdefault(caller.key_id, set()).add(self)

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        watches = self._watched.get(self.caller.key_id)
        if watches is not None:
            watches.discard(self)
            if not watches:
                del self._watched[self.caller.key_id]
        self.ended.cancel()
        if self._timer is not None:
            self._timer.cancel()


def _still_covers(record: KeyRecord, caller: Caller) -> bool:
    """Also not if it is to end sooner than the caller was told: who comes back is told anew."""
    if record.expires_at_ms is not None and (caller.expires_at_ms is None or record.expires_at_ms < caller.expires_at_ms):
        return False
    return caller.is_platform or (caller.scopes <= set(record.scopes) and caller.allowed == record.allowed)
