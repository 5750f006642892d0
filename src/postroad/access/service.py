"""Who is calling: credentials to `Caller`, from a registry that every worker follows."""

import contextlib

from postroad.access.keys import KeyRecord, TenantRecord, key_hash, looks_like_key
from postroad.engine.table import Table
from postroad.kernel.caller import ALL_SCOPES, Caller, Scope
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, Forbidden, InvalidParameter, TenantNotFound, Unauthenticated
from postroad.kernel.ids import new_id
from postroad.kernel.names import tenant_id

TENANTS_BUCKET = "postroad_tenants"
KEYS_BUCKET = "postroad_keys"
FIRST_TENANT = "default"


class Access:
    def __init__(self, tenants: Table[TenantRecord], keys: Table[KeyRecord], clock: Clock) -> None:
        self._tenants, self._keys, self._clock = tenants, keys, clock
        self._callers: dict[str, Caller] = {}
        keys.on_change(self._key_changed)

    def _key_changed(self, digest: str, _record: KeyRecord | None) -> None:
        self._callers.pop(digest, None)

    async def authenticate(self, credential: str, named_tenant: str | None) -> Caller:
        """The caller behind a key. Raises Unauthenticated, saying nothing about why; TenantNotFound to platform keys only."""
        digest = key_hash(credential)
        record = self._keys.get(digest)
        if record is None and looks_like_key(credential):  # made by another process just now? What has no checksum was not
            record = await self._keys.fetch(digest)
        if record is None or not record.is_enabled or _has_expired(record, self._clock()):
            raise Unauthenticated("the key is not valid")
        if record.tenant is None:
            return await self._platform_caller(record, named_tenant)
        if named_tenant is not None and named_tenant != record.tenant:
            raise Forbidden("only a platform key may name another tenant")
        caller = self._callers.get(digest)
        if caller is None:
            caller = self._callers[digest] = Caller(record.tenant, record.id, frozenset(record.scopes))
        return caller

    async def _platform_caller(self, record: KeyRecord, named_tenant: str | None) -> Caller:
        tenant = named_tenant or FIRST_TENANT
        if await self.tenant(tenant) is None:
            raise TenantNotFound(f"there is no tenant {tenant[:64]!r}")
        return Caller(tenant, record.id, frozenset(ALL_SCOPES), is_platform=True)

    async def tenant(self, name: str) -> TenantRecord | None:
        try:
            return await self._tenants.fetch(tenant_id(name))
        except InvalidParameter:
            return None

    async def create_tenant(self, name: str, *, auto_create_queues: bool = False) -> TenantRecord:
        """Raises Conflict if there is one of that name."""
        record = TenantRecord(id=tenant_id(name), auto_create_queues=auto_create_queues, created_at_ms=self._clock())
        await self._tenants.create(record.id, record)
        return record

    async def add_key(
        self, key: str, tenant: str | None, name: str, scopes: tuple[Scope, ...] = ALL_SCOPES, *, expires_at_ms: int | None = None
    ) -> KeyRecord:
        """Make a key known; without a tenant it is a platform key. Raises Conflict if it is known already."""
        record = KeyRecord(
            id=new_id(), tenant=tenant, name=name, scopes=scopes, created_at_ms=self._clock(), expires_at_ms=expires_at_ms
        )
        await self._keys.create(key_hash(key), record)
        return record


def _has_expired(record: KeyRecord, at_ms: int) -> bool:
    return record.expires_at_ms is not None and record.expires_at_ms <= at_ms


async def make_first_tenant(access: Access, *, tenant_key: str, admin_key: str) -> bool:
    """On a fresh engine: the tenant `default` with its key, and the platform admin key. False if that was done before.

    The tenant's record is written last, so an interrupted start is simply done again with the same keys.
    """
    if await access.tenant(FIRST_TENANT) is not None:
        return False
    with contextlib.suppress(Conflict):
        await access.add_key(tenant_key, FIRST_TENANT, "first key")
    with contextlib.suppress(Conflict):
        await access.add_key(admin_key, None, "platform admin")
    with contextlib.suppress(Conflict):
        await access.create_tenant(FIRST_TENANT, auto_create_queues=True)
    return True
