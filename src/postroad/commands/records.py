"""Stored formats of services, routes and polls, and their API representations. Pure."""

import msgspec

from postroad.api.command_limits import Fairness, RateLimit, RouteUsage
from postroad.api.commands import CommandRoute, Grant, SecretVersion, Sensitivity, Service
from postroad.api.queues import DEFAULT_DRAIN_SECONDS
from postroad.commands.rules import source_of, version_id
from postroad.kernel.clock import EpochMs, rfc3339
from postroad.kernel.names import escape

SERVICES_BUCKET = "postroad_services"
ROUTES_BUCKET = "postroad_routes"
POLLS_BUCKET = "postroad_config_polls"


class SecretRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A version of a service's secret. `locked` is the encrypted secret; `expires_at_ms` is None for the current version."""

    number: int
    locked: str
    created_at_ms: EpochMs
    expires_at_ms: EpochMs | None = None


class ServiceRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1 of a service, under `<tenant>.<service>`. `secrets` has the current version first."""

    v: int = 1
    tenant: str
    name: str
    incarnation: str
    trusted_keys: tuple[str, ...] = ()
    description: str = ""
    contact: str = ""
    secrets: tuple[SecretRecord, ...]
    created_at_ms: EpochMs
    updated_at_ms: EpochMs

    @property
    def key(self) -> str:
        return service_key(self.tenant, self.name)

    @property
    def source(self) -> str:
        return source_of(self.tenant, self.name)

    def secret_owner(self, number: int) -> str:
        """What an encrypted secret is bound to."""
        return f"service-secret {self.tenant} {self.incarnation} {number}"


class GrantRecord(msgspec.Struct, frozen=True, array_like=True):
    """A grant in the record of its route. `source` is `<tenant>/<service>` or `<tenant>/*`."""

    source: str
    created_at_ms: EpochMs
    created_by: str = ""
    expires_at_ms: EpochMs | None = None
    sensitivity: Sensitivity | None = None

    def is_active(self, at_ms: int) -> bool:
        return self.expires_at_ms is None or at_ms < self.expires_at_ms


class RevokedGrant(msgspec.Struct, frozen=True, array_like=True):
    """A grant that was revoked a short while ago, for workers that used it after that time."""

    source: str
    at_ms: EpochMs


class RouteRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1 of a route with its grants, under `<tenant>.<service>.<command>`."""

    v: int = 1
    tenant: str
    service: str
    command: str
    queue: str
    sensitivity: Sensitivity | None = None
    dedupe_mode: str = "none"
    dedupe_ttl_seconds: int = 300
    rate_limit: RateLimit | None = None
    fairness: Fairness | None = None
    expected_drain_seconds: int | None = None  # that of the queue
    acl_check: str = "cached"
    signature: str = "optional"
    archive: bool = True
    expires_at_ms: EpochMs | None = None
    grants: tuple[GrantRecord, ...] = ()
    revoked: tuple[RevokedGrant, ...] = ()
    created_at_ms: EpochMs
    updated_at_ms: EpochMs

    @property
    def key(self) -> str:
        return route_key(self.tenant, self.service, self.command)

    @property
    def target(self) -> str:
        return source_of(self.tenant, self.service)

    def drain_seconds(self, of_queue: int | None) -> int:
        """The expected drain time of the route, else of its queue."""
        return self.expected_drain_seconds or of_queue or DEFAULT_DRAIN_SECONDS


class PollRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1 of the last poll of a service's configuration, under `<tenant>.<service>`."""

    v: int = 1
    at_ms: EpochMs


def service_key(tenant: str, service: str) -> str:
    return f"{tenant}.{escape(service)}"


def route_key(tenant: str, service: str, command: str) -> str:
    return f"{tenant}.{escape(service)}.{escape(command)}"


def service_of(record: ServiceRecord, polled_at_ms: int | None) -> Service:
    return Service(
        name=record.name,
        source=record.source,
        trusted_keys=record.trusted_keys,
        description=record.description,
        contact=record.contact,
        secrets=[
            SecretVersion(
                version_id=version_id(one.number), created_at=rfc3339(one.created_at_ms), expires_at=_time(one.expires_at_ms)
            )
            for one in record.secrets
        ],
        last_config_poll=_time(polled_at_ms),
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )


def route_of(record: RouteRecord, usage: RouteUsage | None = None) -> CommandRoute:
    return CommandRoute(
        service=record.service,
        command=record.command,
        target=record.target,
        queue=record.queue,
        sensitivity=record.sensitivity,
        dedupe_mode=record.dedupe_mode,
        dedupe_ttl_seconds=record.dedupe_ttl_seconds,
        rate_limit=record.rate_limit,
        fairness=record.fairness,
        usage=usage,
        expected_drain_seconds=record.expected_drain_seconds,
        acl_check=record.acl_check,
        signature=record.signature,
        archive=record.archive,
        expires_at=_time(record.expires_at_ms),
        grants=len(record.grants),
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )


def grant_of(record: RouteRecord, grant: GrantRecord) -> Grant:
    return Grant(
        source=grant.source,
        target=record.target,
        command=record.command,
        expires_at=_time(grant.expires_at_ms),
        sensitivity=grant.sensitivity,
        created_at=rfc3339(grant.created_at_ms),
        created_by=grant.created_by,
    )


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)
