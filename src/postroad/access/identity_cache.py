"""Tenants and keys in memory, followed by every worker: a change takes effect on all of them within moments."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

from postroad.access.key_usage import KeyUsage
from postroad.access.keys import KEY_PREFIXES, key_hash, key_id_of
from postroad.access.records import KeyHash, KeyRecord, TenantRecord, earliest
from postroad.api.access import TenantDisabled, TenantNotFound, TenantState
from postroad.jetstream.health_monitor import HealthMonitor
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Forbidden, InvalidParameter, RegistryStale
from postroad.kernel.identity import ALL_SCOPES, Caller, Credential, grantable_scopes, is_within
from postroad.kernel.names import tenant_id

DEFAULT_TENANT = "default"
_CALLERS_MAX = 50_000
_UNKNOWN_MAX = 10_000
_UNKNOWN_SECONDS = 1.0
_FRESHNESS_SECONDS = 0.05  # interval between two checks of the age of the tables
_TIMER_SECONDS_MAX = 30 * 86_400.0  # longer responses end then, and the client reconnects


class IdentityCache:
    """Authenticates keys from memory. Refuses all callers if the tables are older than `max_age_seconds`."""

    def __init__(
        self,
        tenants: ReplicatedTable[TenantRecord],
        keys: ReplicatedTable[KeyRecord],
        key_usage: KeyUsage,
        clock: Clock,
        engine_health: HealthMonitor,
        *,
        max_age_seconds: float,
    ) -> None:
        self.tenants, self.keys, self.key_usage, self._clock = tenants, keys, key_usage, clock
        self._engine_health = engine_health
        self._max_age_seconds = max_age_seconds
        self._fresh_until = 0.0
        self._callers: dict[str, Caller] = {}  # by the hash of the key's text
        self._unknown: dict[str, float] = {}  # ids of keys that do not exist → time of the lookup
        self._hashes: dict[str, tuple[str, ...]] = {}
        self._by_tenant: dict[str | None, set[str]] = {}
        self._watched: dict[str, set[CallerWatch]] = {}
        keys.on_change(self._key_changed)
        tenants.on_change(self._tenant_changed)

    def _key_changed(self, key_id: str, record: KeyRecord | None) -> None:
        for digest in self._hashes.pop(key_id, ()):
            self._callers.pop(digest, None)
        self._unknown.pop(key_id, None)
        if record is None:
            self.key_usage.forget(key_id)
            for ids in self._by_tenant.values():
                ids.discard(key_id)
        else:
            self._hashes[key_id] = tuple(one.sha256 for one in record.hashes)
            self._by_tenant.setdefault(record.tenant, set()).add(key_id)
        for watch in tuple(self._watched.get(key_id, ())):
            self._check(watch, record)

    def _tenant_changed(self, tenant: str, record: TenantRecord | None) -> None:
        self._callers.clear()
        if record is None or record.state is not TenantState.READY:
            for watch in [one for some in self._watched.values() for one in some if one.caller.tenant == tenant]:
                watch.end()

    def check_fresh(self) -> None:
        """Raises RegistryStale if the tables are too old: a key may have been revoked unnoticed."""
        now = time.monotonic()
        if now < self._fresh_until:
            return
        # A leader that has lost its majority answers reads for some seconds more, so the tables' own age is not enough.
        age = max(self.keys.staleness_seconds, self.tenants.staleness_seconds, self._engine_health.unproven_seconds)
        if age > self._max_age_seconds:
            raise RegistryStale(f"the registry was last updated {age:.0f} s ago", retry_after=5)
        self._fresh_until = now + _FRESHNESS_SECONDS

    def cached_caller(self, text: str, named_tenant: str | None) -> Caller | None:
        """The caller of a tenant's key that is in the cache; None for all others."""
        now, caller = self._clock(), self._callers.get(key_hash(text))
        if caller is None or (caller.expires_at_ms is not None and caller.expires_at_ms <= now):
            return None
        if named_tenant is not None and named_tenant != caller.tenant:
            return None
        self.key_usage.record(caller.key_id, now)
        return caller

    async def caller_by_key(self, text: str, named_tenant: str | None, *, may_fetch: bool = True) -> Caller | None:
        """The caller of a key, None if the key is invalid. `may_fetch`: look up a key that is not in memory, since another
        process may have just created it.

        Raises TenantNotFound (for platform keys only), TenantDisabled, Forbidden.
        """
        caller = self.cached_caller(text, named_tenant)
        if caller is None:
            now, digest = self._clock(), key_hash(text)
            record = await self._record(text, may_fetch=may_fetch)
            text_used = record.text_of(digest, now) if record is not None else None
            if record is None or text_used is None or not record.is_active(now):
                return None
            if record.tenant is None:
                self.key_usage.record(record.id, now)
                return await self._platform_caller(record, text_used, named_tenant)
            caller = await self._cached_caller(record, text_used)
            self.key_usage.record(caller.key_id, now)
        if named_tenant is not None and named_tenant != caller.tenant:
            raise Forbidden("only a platform key may name another tenant")
        return caller

    async def _record(self, text: str, *, may_fetch: bool) -> KeyRecord | None:
        key_id = key_id_of(text, KEY_PREFIXES)
        if key_id is None:
            return None
        record = self.keys.get(key_id)
        if record is None and may_fetch:
            now = asyncio.get_running_loop().time()
            if now - self._unknown.get(key_id, -_UNKNOWN_SECONDS) >= _UNKNOWN_SECONDS:
                record = await self.keys.fetch(key_id)
                if record is None:
                    if len(self._unknown) >= _UNKNOWN_MAX:
                        self._unknown.clear()
                    self._unknown[key_id] = now
        return record

    async def _cached_caller(self, record: KeyRecord, text: KeyHash) -> Caller:
        caller = await self._caller_of(record, text)
        if len(self._callers) >= _CALLERS_MAX:
            self._callers.clear()
        if self.keys.get(record.id) is record:  # it may have changed while the tenant was fetched
            self._callers[text.sha256] = caller
        return caller

    async def _caller_of(self, record: KeyRecord, text: KeyHash) -> Caller:
        """The caller of a tenant's key. Raises TenantDisabled."""
        if record.tenant is None:
            raise TypeError("the caller of a platform key depends on the request")
        tenant = await self.tenants.fetch(record.tenant)
        if tenant is None or tenant.state is not TenantState.READY:
            raise TenantDisabled(f"the tenant {record.tenant!r} is disabled")
        return Caller(
            record.tenant,
            record.id,
            frozenset(record.scopes),
            name=record.name,
            expires_at_ms=record.expiry_of(text),
            allowed=record.allowed,
            text_id=text.text_id,
            max_requests_per_second=record.max_requests_per_second,
            max_live_connections=record.max_live_connections,
        )

    def cached_caller_by_aws_secret(self, record: KeyRecord, secret_id: str) -> Caller | None:
        """The caller of a key by one of its AWS secrets, if it is in the cache."""
        now, caller = self._clock(), self._callers.get(f"{record.id}/{secret_id}")
        if caller is None or (caller.expires_at_ms is not None and caller.expires_at_ms <= now):
            return None
        self.key_usage.record(record.id, now)
        return caller

    async def caller_by_aws_secret(self, record: KeyRecord, secret_id: str) -> Caller | None:
        """The caller of a tenant's key by one of its AWS secrets, None if the key or the secret is not valid any more.

        Raises TenantDisabled.
        """
        caller = self.cached_caller_by_aws_secret(record, secret_id)
        if caller is not None:
            return caller
        now, cached_as = self._clock(), f"{record.id}/{secret_id}"
        secret = record.aws_secret_by_id(secret_id, now)
        if secret is None or record.tenant is None or not record.is_active(now):
            return None
        caller = replace(
            await self._caller_of(record, record.hashes[0]),
            credential=Credential.AWS,
            text_id=secret_id,
            expires_at_ms=earliest(record.expires_at_ms, secret.expires_at_ms),
        )
        if self.keys.get(record.id) is record:
            self._callers[cached_as] = caller
            hashes = self._hashes.get(record.id, ())
            self._hashes[record.id] = hashes if cached_as in hashes else (*hashes, cached_as)
        self.key_usage.record(record.id, now)
        return caller

    async def caller_of_web_session(
        self, key_id: str, text_id: str, session: str, expires_at_ms: int, named_tenant: str | None
    ) -> Caller | None:
        """The caller of a web session of a key, None if the key or its text is not valid any more.

        Raises TenantNotFound (for platform keys only), TenantDisabled, Forbidden.
        """
        now, record = self._clock(), await self.keys.fetch(key_id)
        text = record.text_by_id(text_id, now) if record is not None else None
        if record is None or text is None or not record.is_active(now) or expires_at_ms <= now:
            return None
        self.key_usage.record(key_id, now)
        until_ms = earliest(expires_at_ms, record.expiry_of(text))
        if record.tenant is None:
            return _in_session(await self._platform_caller(record, text, named_tenant), session, until_ms)
        if named_tenant is not None and named_tenant != record.tenant:
            raise Forbidden("only a platform key may name another tenant")
        return _in_session(await self._cached_caller(record, text), session, until_ms)

    async def caller_of_session(self, record: KeyRecord) -> Caller | None:
        """The caller of temporary credentials of a tenant's key, None if the key is not valid any more. Raises TenantDisabled."""
        now = self._clock()
        if record.tenant is None or not record.is_active(now):
            return None
        caller = await self._caller_of(record, record.hashes[0])
        self.key_usage.record(record.id, now)
        return replace(caller, credential=Credential.AWS, text_id="", issuer=record.id, expires_at_ms=record.expires_at_ms)

    async def _platform_caller(self, record: KeyRecord, text: KeyHash, named_tenant: str | None) -> Caller:
        tenant = named_tenant or DEFAULT_TENANT
        if await self.tenant(tenant) is None:
            raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
        return Caller(
            tenant,
            record.id,
            frozenset(ALL_SCOPES),
            is_platform=True,
            name=record.name,
            expires_at_ms=record.expiry_of(text),
            text_id=text.text_id,
        )

    async def tenant(self, name: str) -> TenantRecord | None:
        """The tenant, None if it does not exist or was deleted."""
        try:
            record = await self.tenants.fetch(tenant_id(name))
        except InvalidParameter:
            return None
        return None if record is not None and record.state is TenantState.DELETED else record

    async def is_enabled(self, name: str) -> bool:
        """True if the tenant exists and is not disabled."""
        record = await self.tenant(name)
        return record is not None and record.state is TenantState.READY

    def is_served(self, name: str) -> bool:
        """Like `is_enabled`, from memory: false for a tenant that another process created this moment."""
        record = self.tenants.get(name)
        return record is not None and record.state is TenantState.READY

    def is_deleted(self, name: str) -> bool:
        """True if the tenant was deleted, or is being deleted, as far as this process knows."""
        record = self.tenants.get(name)
        return record is not None and record.state in (TenantState.DELETING, TenantState.DELETED)

    def tenant_ids(self) -> list[str]:
        """Ids of all tenants that are not deleted."""
        found = [(name, self.tenants.get(name)) for name in self.tenants.keys_under()]
        return [name for name, record in found if record is not None and record.state is not TenantState.DELETED]

    async def key(self, key_id: str) -> KeyRecord | None:
        return await self.keys.fetch(key_id)

    def keys_of(self, tenant: str | None) -> Iterator[KeyRecord]:
        """The keys of a tenant, or the platform keys, oldest first."""
        found = [record for key_id in self._by_tenant.get(tenant, ()) if (record := self.keys.get(key_id)) is not None]
        return iter(sorted(found, key=lambda record: (record.created_at_ms, record.id)))

    def key_count(self, tenant: str | None) -> int:
        return len(self._by_tenant.get(tenant, ()))

    def watch(self, caller: Caller) -> "CallerWatch":
        """Watch for the revocation of the caller's credential. The watch is already ended if that has happened."""
        watch = CallerWatch(self._watched, caller)
        if caller.expires_at_ms is not None:
            watch.end_in(caller.expires_at_ms - self._clock())
        if watch.key_id is not None:
            self._check(watch, self.keys.get(watch.key_id))
        return watch

    def _check(self, watch: "CallerWatch", record: KeyRecord | None) -> None:
        """End the watch if the key no longer admits the caller, or at the end of the grace period of a replaced text."""
        now, caller = self._clock(), watch.caller
        if record is None or not record.is_active(now) or not _covers(record, caller):
            watch.end()
        elif not caller.issuer:
            by_id = record.aws_secret_by_id if caller.credential is Credential.AWS else record.text_by_id
            text = by_id(caller.text_id, now)
            if text is None:
                watch.end()
            elif text.expires_at_ms is not None and (caller.expires_at_ms is None or text.expires_at_ms < caller.expires_at_ms):
                watch.end_in(text.expires_at_ms - now)

    def end_watches(self, key_id: str) -> None:
        """End the watches of a key, or of a web session."""
        for watch in tuple(self._watched.get(key_id, ())):
            watch.end()


_KEY_CREDENTIALS = (Credential.KEY, Credential.AWS, Credential.TOKEN)


def _in_session(caller: Caller, session: str, until_ms: int | None) -> Caller:
    return replace(caller, session=session, expires_at_ms=until_ms)


class CallerWatch:
    """Resolves `ended` when the caller's credential is revoked or expires. Must be closed."""

    def __init__(self, watched: dict[str, set["CallerWatch"]], caller: Caller) -> None:
        self.caller = caller
        self.key_id = caller.key_id if caller.credential in _KEY_CREDENTIALS else caller.issuer or None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watched = watched
        self._timer: asyncio.TimerHandle | None = None
        self._watched_ids = {caller.key_id, self.key_id or caller.key_id, caller.session or caller.key_id}
        for watched_id in self._watched_ids:
            watched.setdefault(watched_id, set()).add(self)

    def end_in(self, left_ms: int) -> None:
        """End after this time, instead of one that was set before."""
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(0, min(left_ms / 1000, _TIMER_SECONDS_MAX))
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        for watched_id in self._watched_ids:
            watches = self._watched.get(watched_id)
            if watches is not None:
                watches.discard(self)
                if not watches:
                    del self._watched[watched_id]
        self.ended.cancel()
        if self._timer is not None:
            self._timer.cancel()


def _covers(record: KeyRecord, caller: Caller) -> bool:
    """True if the key still has the caller's permissions and does not expire before the caller does."""
    if record.expires_at_ms is not None and (caller.expires_at_ms is None or record.expires_at_ms < caller.expires_at_ms):
        return False
    scopes = grantable_scopes(record.scopes) if caller.issuer else frozenset(record.scopes)
    return caller.is_platform or (caller.scopes <= scopes and is_within(caller.allowed, record.allowed))
