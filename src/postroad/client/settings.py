"""`client.settings`: settings that can change at run time, of a tenant (scope `admin`) or the defaults of all tenants."""

from collections.abc import Sequence

from postroad.api.governance import EffectiveSettings
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import camel, given


class SettingsCalls:
    """With `platform`, calls apply to the defaults of all tenants, which needs a platform key."""

    @operation
    def get(self, *, platform: bool = False) -> Call[EffectiveSettings]:
        """Show the settings in effect, and which of them were set at this level."""
        return Call(method="GET", path=_path(platform), response=EffectiveSettings)

    @operation
    def update(
        self,
        *,
        audit_mode: str | None = None,
        auto_create_queues: bool | None = None,
        auto_create_topics: bool | None = None,
        visibility_timeout_ms: int | None = None,
        receipt_ttl_max_ms: int | None = None,
        idempotency_ttl_ms: int | None = None,
        pull_max: int | None = None,
        max_message_bytes: int | None = None,
        max_queues: int | None = None,
        max_topics: int | None = None,
        max_buckets: int | None = None,
        max_services: int | None = None,
        max_routes: int | None = None,
        commands_by_key: bool | None = None,
        telemetry_events: Sequence[str] | None = None,
        contact: str | None = None,
        snavio_dispatch_mode: str | None = None,
        max_keys: int | None = None,
        max_storage_bytes: int | None = None,
        max_requests_per_second: int | None = None,
        max_live_connections: int | None = None,
        platform: bool = False,
    ) -> Call[EffectiveSettings]:
        """Change settings; omitted arguments keep their value. Raises Forbidden if a tenant's key changes a limit."""
        body = given(
            auditMode=audit_mode,
            autoCreateQueues=auto_create_queues,
            autoCreateTopics=auto_create_topics,
            visibilityTimeoutMs=visibility_timeout_ms,
            receiptTtlMaxMs=receipt_ttl_max_ms,
            idempotencyTtlMs=idempotency_ttl_ms,
            pullMax=pull_max,
            maxMessageBytes=max_message_bytes,
            maxQueues=max_queues,
            maxTopics=max_topics,
            maxBuckets=max_buckets,
            maxServices=max_services,
            maxRoutes=max_routes,
            commandsByKey=commands_by_key,
            telemetryEvents=None if telemetry_events is None else list(telemetry_events),
            contact=contact,
            snavioDispatchMode=snavio_dispatch_mode,
            maxKeys=max_keys,
            maxStorageBytes=max_storage_bytes,
            maxRequestsPerSecond=max_requests_per_second,
            maxLiveConnections=max_live_connections,
        )
        return Call(method="POST", path=_path(platform), body=body, response=EffectiveSettings)

    @operation
    def reset(self, *names: str, platform: bool = False) -> Call[EffectiveSettings]:
        """Restore the defaults of these settings, named like the arguments of `update`."""
        body = {camel(name): None for name in names}
        return Call(method="POST", path=_path(platform), body=body, response=EffectiveSettings)


def _path(platform: bool) -> str:
    return "/api/control/settings" if platform else "/v1/admin/settings"


class Settings(SettingsCalls, SyncNamespace):
    pass


class AsyncSettings(SettingsCalls, AsyncNamespace):
    pass
