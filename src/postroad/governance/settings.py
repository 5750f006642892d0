"""Settings of the audit log, and the installation's defaults of the tenant settings (docs/access.md)."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting

LEASE_MS_MAX = 12 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernanceSettings(Section):
    audit_keep_days: int = setting(0, "Days that audit entries are kept; 0 keeps all.", lambda value: value >= 0)
    audit_checkpoint_seconds: float = setting(
        60.0, "Seconds between two checks of the audit log, which add a checkpoint if it has new entries.", positive
    )
    audit_mode: str = setting(
        "full",
        "Job events that are recorded: full, jobs_only or off.",
        lambda value: value in ("full", "jobs_only", "off"),
        plain_name="AUDIT_MODE",
    )
    visibility_timeout_ms: int = setting(
        30_000,
        "Default visibility timeout of new queues in milliseconds.",
        lambda value: 0 <= value <= LEASE_MS_MAX,
        plain_name="VISIBILITY_TIMEOUT_DEFAULT_MS",
    )
    receipt_ttl_max_ms: int = setting(
        LEASE_MS_MAX,
        "Longest lease that a pull may request, in milliseconds.",
        lambda value: 1000 <= value <= LEASE_MS_MAX,
        plain_name="RECEIPT_TTL_MAX_MS",
    )
    idempotency_ttl_ms: int = setting(
        86_400_000,
        "Milliseconds that an idempotency key is remembered.",
        lambda value: value >= 1000,
        plain_name="IDEMPOTENCY_TTL_MS",
    )
    pull_messages_max: int = setting(
        500, "Messages in one pull.", lambda value: 1 <= value <= 1000, plain_name="PULL_MAX_DEFAULT"
    )
    message_bytes_max: int = setting(
        1024 * 1024, "Largest payload of one message.", lambda value: 1024 <= value <= 8 * 1024 * 1024 - 64 * 1024
    )
    queues_per_tenant_max: int = setting(10_000, "Queues per tenant.", positive)
    topics_per_tenant_max: int = setting(10_000, "Topics per tenant.", positive)
    buckets_per_tenant_max: int = setting(1000, "Buckets per tenant.", positive)
    services_per_tenant_max: int = setting(1000, "Services that send or receive commands, per tenant.", positive)
    routes_per_tenant_max: int = setting(10_000, "Routes of commands per tenant.", positive)
    snavio_dispatch_mode: str = setting(
        "adaptive",
        "How commands are dispatched, unless a tenant's setting `snavioDispatchMode` is set: `adaptive`, or `cold-only` for "
        "the slow path always.",
        lambda value: value in ("adaptive", "cold-only"),
    )
    requests_per_second_per_tenant_max: int = setting(
        1000,
        "Requests per second of a tenant that a worker accepts while other tenants use it, too, unless the tenant's setting "
        "`maxRequestsPerSecond` is set; 0 for no limit.",
        lambda value: value >= 0,
    )
    requests_per_second_per_key_max: int = setting(
        0,
        "Requests per second of a key that a worker accepts, unless the key has a limit of its own; 0 for no limit.",
        lambda value: value >= 0,
    )
    storage_percent_per_tenant_max: int = setting(
        50,
        "Share of the store that one tenant may fill, in percent, unless its setting `maxStorageBytes` is set; 100 for no quota.",
        lambda value: 1 <= value <= 100,
    )
    keys_per_tenant_max: int = setting(1000, "Keys per tenant.", positive)
