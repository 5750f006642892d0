"""Settings that change while Postroad runs: per tenant, over the platform's, over what the processes were started with."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.governance.audit import PLATFORM, Audit
from postroad.governance.settings import GovernanceSettings
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden

SETTINGS_BUCKET = "postroad_settings"


class AuditMode(StrEnum):
    """How much of a job's life is kept."""

    FULL = "full"
    JOBS_ONLY = "jobs_only"
    OFF = "off"


_Lease = Annotated[int, Meta(ge=0, le=43_200_000)]
_MAX_LEASE = Annotated[int, Meta(ge=1000, le=43_200_000)]
_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_Bytes = Annotated[int, Meta(ge=1, le=8 * 1024 * 1024 - 64 * 1024)]
_Pull = Annotated[int, Meta(ge=1, le=1000)]
_Ttl = Annotated[int, Meta(ge=1000, le=30 * 86_400_000)]


class TenantSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What holds for a tenant."""

    audit_mode: AuditMode
    auto_create_queues: bool
    visibility_timeout_ms: _Lease
    receipt_ttl_max_ms: _MAX_LEASE
    idempotency_ttl_ms: _Ttl
    pull_max: _Pull
    max_message_bytes: _Bytes
    max_queues: _Count
    max_keys: _Count


class TenantSettingsChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What to change; a field that is left out stays, null goes back to the default."""

    audit_mode: Annotated[
        AuditMode | UnsetType | None, Meta(description="`full`, `jobs_only` or `off`: how much of a job's life is kept.")
    ] = UNSET
    auto_create_queues: Annotated[
        bool | UnsetType | None, Meta(description="Publishing to a queue that does not exist makes it.")
    ] = UNSET
    visibility_timeout_ms: Annotated[_Lease | UnsetType | None, Meta(description="Default of new queues.")] = UNSET
    receipt_ttl_max_ms: Annotated[
        _MAX_LEASE | UnsetType | None, Meta(description="Longest lease that a pull may ask for. Platform keys only.")
    ] = UNSET
    idempotency_ttl_ms: Annotated[
        _Ttl | UnsetType | None, Meta(description="How long an idempotency key counts, unless its queue says otherwise.")
    ] = UNSET
    pull_max: Annotated[_Pull | UnsetType | None, Meta(description="Messages in one pull. Platform keys only.")] = UNSET
    max_message_bytes: Annotated[_Bytes | UnsetType | None, Meta(description="Largest payload. Platform keys only.")] = UNSET
    max_queues: Annotated[_Count | UnsetType | None, Meta(description="Platform keys only.")] = UNSET
    max_keys: Annotated[_Count | UnsetType | None, Meta(description="Platform keys only.")] = UNSET


_LIMITS = frozenset({"receipt_ttl_max_ms", "pull_max", "max_message_bytes", "max_queues", "max_keys"})


def default_settings(chosen: GovernanceSettings) -> TenantSettings:
    """The installation's defaults."""
    return TenantSettings(
        audit_mode=AuditMode(chosen.audit_mode),
        auto_create_queues=False,
        visibility_timeout_ms=chosen.visibility_timeout_ms,
        receipt_ttl_max_ms=chosen.receipt_ttl_max_ms,
        idempotency_ttl_ms=chosen.idempotency_ttl_ms,
        pull_max=chosen.pull_messages_max,
        max_message_bytes=chosen.message_bytes_max,
        max_queues=chosen.queues_per_tenant_max,
        max_keys=chosen.keys_per_tenant_max,
    )


class TenantSettingsRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What was chosen for a tenant, or under `_platform` for all: only the names that were set."""

    v: int = 1
    chosen: dict[str, Any] = {}
    updated_at_ms: int = 0


class TenantSettingsStore:
    """`of(tenant)` costs a dictionary look-up; a change reaches every worker within moments."""

    def __init__(self, table: ReplicatedTable[TenantSettingsRecord], audit: Audit, clock: Clock, initial: TenantSettings) -> None:
        self.table, self._audit, self._clock, self._initial = table, audit, clock, initial
        self._known: dict[str, TenantSettings] = {}
        table.on_change(self._changed)

    def _changed(self, key: str, _record: TenantSettingsRecord | None) -> None:
        if key == PLATFORM:
            self._known.clear()
        else:
            self._known.pop(key, None)

    def of(self, tenant: str) -> TenantSettings:
        """What holds for the tenant; for `_platform`, what holds for tenants that chose nothing."""
        found = self._known.get(tenant)
        if found is None:
            found = self._known[tenant] = self._resolved(tenant)
        return found

    def _resolved(self, tenant: str) -> TenantSettings:
        chosen = {**self.chosen(PLATFORM), **self.chosen(tenant)}
        values = {**msgspec.to_builtins(self._initial), **chosen}
        return msgspec.convert(values, TenantSettings)

    def chosen(self, tenant: str) -> dict[str, Any]:
        record = self.table.get(tenant)
        return record.chosen if record else {}

    async def change(self, context: RequestContext, tenant: str, change: TenantSettingsChange) -> TenantSettings:
        """Raises Forbidden when a limit is changed by anyone but the platform."""
        wanted = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not UNSET}
        refused = sorted(_camel(name) for name in wanted if name in _LIMITS)
        if refused and not context.caller.is_platform:
            raise Forbidden(f"only a platform key may change {', '.join(refused)}")
        new = {_camel(name): msgspec.to_builtins(value) for name, value in wanted.items()}
        await self._store(context, tenant, lambda chosen: {k: v for k, v in {**chosen, **new}.items() if v is not None})
        return self.of(tenant)

    async def set_up(self, tenant: str, *, auto_create_queues: bool) -> None:
        """What a new tenant starts with. Part of its creation, which is on record as a whole."""
        chosen = {"autoCreateQueues": True} if auto_create_queues else {}
        record = TenantSettingsRecord(chosen=chosen, updated_at_ms=self._clock())
        try:
            await self.table.create(tenant, record)
        except Conflict:
            await self.table.change(tenant, lambda _: record)

    async def remove(self, tenant: str) -> None:
        await self.table.delete(tenant)

    async def _store(self, context: RequestContext, tenant: str, make: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        before = self.chosen(tenant)
        async with self._audit.change(context, "settings.change", "settings", tenant=tenant, before=before, after=make(before)):
            if await self.table.fetch(tenant) is None:
                try:
                    await self.table.create(tenant, TenantSettingsRecord(chosen=make({}), updated_at_ms=self._clock()))
                    return
                except Conflict:
                    self.table.forget(tenant)
            await self.table.change(
                tenant, lambda record: TenantSettingsRecord(chosen=make(record.chosen), updated_at_ms=self._clock())
            )


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
