"""Settings that can change at run time: values of the tenant, else of the platform, else of the environment."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.api.governance import AuditMode, TenantSettings, TenantSettingsChange
from postroad.governance.audit import Audit
from postroad.governance.settings import GovernanceSettings
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden
from postroad.kernel.event import PLATFORM
from postroad.kernel.json import invalid_field
from postroad.kernel.matching import pattern_matches

SETTINGS_BUCKET = "postroad_settings"


_PLATFORM_ONLY = frozenset(
    {
        "receipt_ttl_max_ms",
        "pull_max",
        "max_message_bytes",
        "max_queues",
        "max_topics",
        "max_buckets",
        "max_services",
        "max_routes",
        "max_keys",
        "contact",
        "max_storage_bytes",
        "max_requests_per_second",
        "max_live_connections",
    }
)


def default_settings(chosen: GovernanceSettings) -> TenantSettings:
    """The installation's defaults."""
    return TenantSettings(
        audit_mode=AuditMode(chosen.audit_mode),
        auto_create_queues=False,
        auto_create_topics=False,
        visibility_timeout_ms=chosen.visibility_timeout_ms,
        receipt_ttl_max_ms=chosen.receipt_ttl_max_ms,
        idempotency_ttl_ms=chosen.idempotency_ttl_ms,
        pull_max=chosen.pull_messages_max,
        max_message_bytes=chosen.message_bytes_max,
        max_queues=chosen.queues_per_tenant_max,
        max_topics=chosen.topics_per_tenant_max,
        max_buckets=chosen.buckets_per_tenant_max,
        max_services=chosen.services_per_tenant_max,
        max_routes=chosen.routes_per_tenant_max,
        commands_by_key=True,
        snavio_dispatch_mode="cold-only" if chosen.snavio_dispatch_mode == "cold-only" else "adaptive",
        max_keys=chosen.keys_per_tenant_max,
        max_storage_bytes=None,
        max_requests_per_second=None,
        max_live_connections=None,
    )


class TenantSettingsRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Values that were set for a tenant, or for all tenants under `_platform`."""

    v: int = 1
    chosen: dict[str, Any] = {}
    updated_at_ms: int = 0


class TenantSettingsStore:
    """Settings of all tenants in memory; `of(tenant)` costs a dictionary lookup. Workers see changes within moments.

    `telemetry_types` are the types of events that the telemetry queue can have. They are set once all capabilities are built.
    """

    def __init__(self, table: ReplicatedTable[TenantSettingsRecord], audit: Audit, clock: Clock, initial: TenantSettings) -> None:
        self.table, self._audit, self._clock, self._initial = table, audit, clock, initial
        self._resolved: dict[str, TenantSettings] = {}
        self.telemetry_types: Sequence[str] = ()
        table.on_change(self._changed)

    def _changed(self, key: str, _record: TenantSettingsRecord | None) -> None:
        if key == PLATFORM:
            self._resolved.clear()
        else:
            self._resolved.pop(key, None)

    def of(self, tenant: str) -> TenantSettings:
        """The tenant's settings in effect; for `_platform`, the defaults of all tenants."""
        found = self._resolved.get(tenant)
        if found is None:
            found = self._resolved[tenant] = self._resolve(tenant)
        return found

    def _resolve(self, tenant: str) -> TenantSettings:
        chosen = {**self.chosen(PLATFORM), **self.chosen(tenant)}
        values = {**msgspec.to_builtins(self._initial), **chosen}
        return msgspec.convert(values, TenantSettings)

    def chosen(self, tenant: str) -> dict[str, Any]:
        record = self.table.get(tenant)
        return record.chosen if record else {}

    async def change(self, context: RequestContext, tenant: str, change: TenantSettingsChange) -> TenantSettings:
        """Raises Forbidden if a tenant's key changes a setting that only platform keys may change, BodyInvalid for a pattern of
        events without effect."""
        wanted = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not UNSET}
        refused = sorted(_camel(name) for name in wanted if name in _PLATFORM_ONLY)
        if refused and not context.caller.is_platform:
            raise Forbidden(f"only a platform key may change {', '.join(refused)}")
        self._check_patterns(tenant, wanted.get("telemetry_events") or ())
        new = {_camel(name): msgspec.to_builtins(value) for name, value in wanted.items()}
        await self._update(context, tenant, lambda chosen: {k: v for k, v in {**chosen, **new}.items() if v is not None})
        return self.of(tenant)

    def _check_patterns(self, tenant: str, patterns: Sequence[str]) -> None:
        """Refuse new patterns that match no event of the telemetry queue."""
        for index, text in enumerate(patterns):
            known = self.of(tenant).telemetry_events
            if text not in known and not any(pattern_matches(text.removeprefix("!"), one) for one in self.telemetry_types):
                raise invalid_field(
                    f"$.telemetryEvents[{index}]",
                    f"no event of the queue `_telemetry` has a type like {text!r}: it has those on `COMMANDS` (docs/events.md)",
                )

    async def set_up(self, tenant: str, *, auto_create_queues: bool, auto_create_topics: bool = False) -> None:
        """Store the settings of a new tenant. The creation of the tenant is the audited change."""
        given = {"autoCreateQueues": auto_create_queues, "autoCreateTopics": auto_create_topics}
        chosen = {name: True for name, is_on in given.items() if is_on}
        record = TenantSettingsRecord(chosen=chosen, updated_at_ms=self._clock())
        try:
            await self.table.create(tenant, record)
        except Conflict:
            await self.table.change(tenant, lambda _: record)

    async def remove(self, tenant: str) -> None:
        await self.table.delete(tenant)

    async def _update(self, context: RequestContext, tenant: str, make: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
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
