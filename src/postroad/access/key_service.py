"""Key lifecycle: create, look up, update, rotate, delete.

A key with `admin` grants any scope, but no resources that it may not use, no higher limits, and nothing for longer than it is
valid itself.
"""

from collections.abc import Callable
from datetime import datetime

import msgspec
from msgspec import UNSET

from postroad.access.identity_cache import IdentityCache
from postroad.access.keys import PLATFORM_PREFIX, TENANT_PREFIX, is_id, key_hash, key_id_of, new_key
from postroad.access.records import KeyHash, KeyRecord, key_properties_of
from postroad.api.access import KeyChange, KeyNotFound, KeyRequired, NewKey
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import LATEST_MS, Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Forbidden, PreconditionFailed
from postroad.kernel.event import PLATFORM
from postroad.kernel.identity import ALL_RESOURCES, ALL_SCOPES, Caller, Scope, globs_beyond, grantable_scopes
from postroad.kernel.json import invalid_field

_HASHES_MAX = 4


class KeyService:
    def __init__(
        self,
        table: ReplicatedTable[KeyRecord],
        identities: IdentityCache,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        clock: Clock,
    ) -> None:
        self._table, self._identities, self._tenant_settings = table, identities, tenant_settings
        self._audit, self._clock = audit, clock

    async def add(self, record: KeyRecord) -> None:
        """Store a key without checks and audit. Raises Conflict if its id exists."""
        await self._table.create(record.id, record)

    async def remove(self, key_id: str) -> None:
        await self._table.delete(key_id)

    async def create(self, context: RequestContext, wanted: NewKey) -> tuple[KeyRecord, str]:
        """Create a key; return it and its text, which is not stored. Raises Forbidden, BodyInvalid."""
        tenant = None if wanted.platform else context.tenant
        if wanted.platform and not context.caller.is_platform:
            raise Forbidden("only a platform key can create a platform key")
        if wanted.platform and set(wanted.scopes) != set(ALL_SCOPES):
            raise invalid_field("$.scopes", "a platform key has all scopes")
        if tenant is not None:
            count, limit = self._identities.key_count(tenant), self._tenant_settings.of(tenant).max_keys
            if count >= limit:
                raise Forbidden(f"the tenant has {count} keys; {limit} is the limit")
        text = new_key(TENANT_PREFIX if tenant else PLATFORM_PREFIX)
        record = key_record(
            text,
            tenant,
            wanted.name,
            tuple(dict.fromkeys(wanted.scopes)),
            self._clock(),
            allowed_queues=wanted.allowed_queues,
            allowed_topics=wanted.allowed_topics,
            allowed_buckets=wanted.allowed_buckets,
            allowed_streams=wanted.allowed_streams,
            allowed_services=wanted.allowed_services,
            expires_at_ms=_ms(wanted.expires_at),
            created_by=context.caller.key_id,
            max_requests_per_second=wanted.max_requests_per_second,
            max_live_connections=wanted.max_live_connections,
        )
        check_expiry(record.expires_at_ms, self._clock(), context.caller)
        _check_covered(context.caller, record)
        _check_limits(context.caller, record)
        after = key_properties_of(record)
        async with self._audit.change(context, "key.create", record.id, tenant=tenant or PLATFORM, after=after):
            await self._table.create(record.id, record)
        return record, text

    async def find(self, context: RequestContext, key_id: str) -> KeyRecord:
        """Raises KeyNotFound, also for a key of another tenant."""
        record = await self._identities.key(key_id) if is_id(key_id) else None
        if record is None or not (context.caller.is_platform or record.tenant == context.tenant):
            raise KeyNotFound(f"there is no key {key_id[:64]!r}")
        return record

    async def change(self, context: RequestContext, key_id: str, wanted: KeyChange) -> KeyRecord:
        """Raises KeyNotFound, Forbidden, BodyInvalid, and PreconditionFailed if a key disables itself."""
        record = await self.find(context, key_id)
        if record.tenant is None and wanted.scopes is not UNSET and set(wanted.scopes) != set(ALL_SCOPES):
            raise invalid_field("$.scopes", "a platform key has all scopes")
        if wanted.enabled is False:
            _check_not_own(context, record)
        return await self._change(context, "key.change", record, lambda now: self._changed(context.caller, now, wanted))

    def _changed(self, caller: Caller, record: KeyRecord, wanted: KeyChange) -> KeyRecord:
        given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not UNSET}
        if "enabled" in given:
            given["is_enabled"] = given.pop("enabled")
        if "scopes" in given:
            given["scopes"] = tuple(dict.fromkeys(given["scopes"]))
        if "expires_at" in given:
            given["expires_at_ms"] = _ms(given.pop("expires_at"))
        changed = msgspec.structs.replace(record, **given)
        if changed.expires_at_ms != record.expires_at_ms:
            check_expiry(changed.expires_at_ms, self._clock(), caller)
        return changed

    async def rotate(self, context: RequestContext, key_id: str, grace_seconds: int) -> tuple[KeyRecord, str]:
        """Replace the text of a key; return the key and its new text. The previous text stays valid for the grace period.

        Raises KeyNotFound, Forbidden, and PreconditionFailed if too many previous texts are still valid.
        """
        record = await self.find(context, key_id)
        text = new_key(TENANT_PREFIX if record.tenant else PLATFORM_PREFIX, key_id=record.id)
        now = self._clock()

        def rotated(record: KeyRecord) -> KeyRecord:
            kept = _expiring(record.hashes, now, now + grace_seconds * 1000)
            if len(kept) >= _HASHES_MAX:
                raise PreconditionFailed(
                    f"{len(kept)} previous texts of this key are still valid; rotate with a grace period of 0 to end them"
                )
            return msgspec.structs.replace(record, hashes=(KeyHash(sha256=key_hash(text), created_at_ms=now), *kept))

        return await self._change(context, "key.rotate", record, rotated), text

    async def delete(self, context: RequestContext, key_id: str) -> None:
        """Raises KeyNotFound, Forbidden, and PreconditionFailed if a key deletes itself."""
        record = await self.find(context, key_id)
        _check_not_own(context, record)
        _check_covered(context.caller, record)
        before = key_properties_of(record)
        async with self._audit.change(context, "key.delete", record.id, tenant=record.tenant or PLATFORM, before=before):
            await self._table.delete(record.id)

    async def delete_all(self, tenant: str) -> None:
        for record in list(self._identities.keys_of(tenant)):
            await self._table.delete(record.id)

    async def modify(
        self, context: RequestContext, action: str, key_id: str, make: Callable[[KeyRecord], KeyRecord]
    ) -> KeyRecord:
        """Change the record of a key that the caller could have created. Raises KeyNotFound, Forbidden."""
        return await self._change(context, action, await self.find(context, key_id), make)

    async def _change(
        self, context: RequestContext, action: str, record: KeyRecord, make: Callable[[KeyRecord], KeyRecord]
    ) -> KeyRecord:
        def checked(before: KeyRecord) -> KeyRecord:
            after = make(before)
            _check_covered(context.caller, before)
            _check_covered(context.caller, after)
            _check_limits(context.caller, after)
            _check_not_outlived(context.caller, before, after)
            return after if after == before else msgspec.structs.replace(after, updated_at_ms=self._clock())

        before, after = key_properties_of(record), key_properties_of(checked(record))
        async with self._audit.change(context, action, record.id, tenant=record.tenant or PLATFORM, before=before, after=after):
            changed = await self._table.change(record.id, checked)
        if changed is None:
            raise KeyNotFound(f"there is no key {record.id!r}")
        return changed[1]


def key_record(
    text: str,
    tenant: str | None,
    name: str,
    scopes: tuple[Scope, ...],
    now_ms: int,
    *,
    allowed_queues: tuple[str, ...] = ALL_RESOURCES,
    allowed_topics: tuple[str, ...] = ALL_RESOURCES,
    allowed_buckets: tuple[str, ...] = ALL_RESOURCES,
    allowed_streams: tuple[str, ...] = ALL_RESOURCES,
    allowed_services: tuple[str, ...] = ALL_RESOURCES,
    expires_at_ms: int | None = None,
    created_by: str = "",
    max_requests_per_second: int | None = None,
    max_live_connections: int | None = None,
) -> KeyRecord:
    """The record of a new key with this text."""
    key_id = key_id_of(text)
    if key_id is None:
        raise ValueError("the text is not a key")
    return KeyRecord(
        id=key_id,
        tenant=tenant,
        name=name,
        scopes=scopes,
        allowed_queues=allowed_queues,
        allowed_topics=allowed_topics,
        allowed_buckets=allowed_buckets,
        allowed_streams=allowed_streams,
        allowed_services=allowed_services,
        hashes=(KeyHash(sha256=key_hash(text), created_at_ms=now_ms),),
        created_by=created_by,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        expires_at_ms=expires_at_ms,
        max_requests_per_second=max_requests_per_second,
        max_live_connections=max_live_connections,
    )


def check_expiry(expires_at_ms: int | None, now_ms: int, caller: Caller, path: str = "$.expiresAt") -> None:
    """Check the expiry of a new credential, which is at `path` in the body. Raises BodyInvalid, KeyRequired."""
    if outlives(expires_at_ms, caller):
        _check_no_session(caller)
        raise invalid_field(path, f"must not be after {rfc3339(caller.expires_at_ms or 0)}, when the key of the request expires")
    if expires_at_ms is not None and not now_ms < expires_at_ms <= LATEST_MS:
        raise invalid_field(path, "is in the past" if expires_at_ms <= now_ms else "is after the year 9999")


def outlives(expires_at_ms: int | None, caller: Caller) -> bool:
    """True if a credential with this expiry is valid for longer than the caller's."""
    until_ms = caller.expires_at_ms
    return until_ms is not None and (expires_at_ms is None or expires_at_ms > until_ms)


def _check_no_session(caller: Caller) -> None:
    """Raises KeyRequired: who takes over a browser must not get a credential for the time after the session."""
    if caller.session:
        raise KeyRequired(
            f"the session ends at {rfc3339(caller.expires_at_ms or 0)} and cannot grant what outlives it; "
            "send the key itself in the header Authorization"
        )


def _ms(when: datetime | None) -> int | None:
    return None if when is None else int(when.timestamp() * 1000)


def _expiring(hashes: tuple[KeyHash, ...], now_ms: int, until_ms: int) -> tuple[KeyHash, ...]:
    """The hashes that are still valid, each expiring at `until_ms` at the latest."""
    ending = [
        msgspec.structs.replace(one, expires_at_ms=min(until_ms, one.expires_at_ms) if one.expires_at_ms else until_ms)
        for one in hashes
    ]
    return tuple(one for one in ending if one.expires_at_ms is not None and one.expires_at_ms > now_ms)


def _check_not_own(context: RequestContext, record: KeyRecord) -> None:
    if record.id == context.caller.key_id:
        raise PreconditionFailed("a key cannot disable or delete itself; use another key")


def _check_limits(caller: Caller, record: KeyRecord) -> None:
    """Raises Forbidden if the key has a higher limit than the caller: it may neither create nor take over such a key."""
    for name, own, given in (
        ("requests per second", caller.max_requests_per_second, record.max_requests_per_second),
        ("live connections", caller.max_live_connections, record.max_live_connections),
    ):
        if own and not caller.is_platform and not (given and given <= own):
            raise Forbidden(f"the key is limited to {own} {name}, so it cannot grant more or change a key that has more")


def _check_covered(caller: Caller, record: KeyRecord) -> None:
    """Raises Forbidden if the key has permissions that the caller lacks: it may neither create nor take over such a key."""
    if caller.is_platform:
        return
    grantable = grantable_scopes(caller.scopes)
    more = [scope for scope in record.scopes if scope not in grantable]
    if more:
        raise Forbidden(f"the key lacks the scope {str(more[0])!r}, so it cannot grant it or change a key that has it")
    for kind, globs in (caller.allowed or {}).items():
        wider = globs_beyond(getattr(record, f"allowed_{kind}s"), globs)
        if wider:
            raise Forbidden(f"the key may not use the {kind}s {wider[0]!r}, so it cannot grant them or change a key that may")


def _check_not_outlived(caller: Caller, before: KeyRecord, after: KeyRecord) -> None:
    """Raises Forbidden, or KeyRequired, if the change gives a key that outlives the caller something else than a name or its
    end."""
    harmless = msgspec.structs.replace(before, name=after.name, is_enabled=before.is_enabled and after.is_enabled)
    if after != harmless and outlives(after.expires_at_ms, caller):
        _check_no_session(caller)
        until = rfc3339(caller.expires_at_ms or 0)
        raise Forbidden(
            f"the key of the request expires at {until}; it can only rename, disable or delete keys that expire later"
        )
