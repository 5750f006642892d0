"""`client.settings`: settings that change while Postroad runs, a tenant's (scope `admin`) or the platform's defaults."""

from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import camel, given
from postroad.client.shapes.governance import TenantSettings


class SettingsCalls:
    """With `platform` it is the defaults of all tenants that chose nothing else, which takes a platform key."""

    @operation
    def get(self, *, platform: bool = False) -> Call[TenantSettings]:
        """What holds, and what of it was chosen here."""
        return Call(method="GET", path=_path(platform), response=TenantSettings)

    @operation
    def update(
        self,
        *,
        audit_mode: str | None = None,
        auto_create_queues: bool | None = None,
        visibility_timeout_ms: int | None = None,
        receipt_ttl_max_ms: int | None = None,
        idempotency_ttl_ms: int | None = None,
        pull_max: int | None = None,
        max_message_bytes: int | None = None,
        max_queues: int | None = None,
        max_keys: int | None = None,
        platform: bool = False,
    ) -> Call[TenantSettings]:
        """Choose what is given; the rest stays. Raises Forbidden for a tenant's key that changes a limit."""
        body = given(
            auditMode=audit_mode,
            autoCreateQueues=auto_create_queues,
            visibilityTimeoutMs=visibility_timeout_ms,
            receiptTtlMaxMs=receipt_ttl_max_ms,
            idempotencyTtlMs=idempotency_ttl_ms,
            pullMax=pull_max,
            maxMessageBytes=max_message_bytes,
            maxQueues=max_queues,
            maxKeys=max_keys,
        )
        return Call(method="POST", path=_path(platform), body=body, response=TenantSettings)

    @operation
    def reset(self, *names: str, platform: bool = False) -> Call[TenantSettings]:
        """Go back to the default in these, by their names above."""
        body = {camel(name): None for name in names}
        return Call(method="POST", path=_path(platform), body=body, response=TenantSettings)


def _path(platform: bool) -> str:
    return "/api/control/settings" if platform else "/v1/admin/settings"


class Settings(SettingsCalls, SyncNamespace):
    pass


class AsyncSettings(SettingsCalls, AsyncNamespace):
    pass
