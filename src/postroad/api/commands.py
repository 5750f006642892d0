"""Governed commands: services, routes, grants, secrets and the envelope of a command.

Fields of routes, grants and envelopes are in snake_case; those of services and of responses to a command in camelCase.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.access import IssuedCredential
from postroad.api.command_limits import Fairness, RateLimit, RouteUsage
from postroad.api.pages import Limit, page_of
from postroad.api.problems import Problem
from postroad.kernel.clock import AwareDatetime, Timestamp
from postroad.kernel.errors import AuthError, InvalidRequest, NotFound, Unavailable
from postroad.kernel.names import COMMAND, QUEUE, SERVICE

COMMAND_TYPE = "snavio.command-sent"
BATCH_COMMANDS_MAX = 100
GRANTS_PER_ROUTE_MAX = 2000
TRUSTED_KEYS_MAX = 100
EMIT_SECONDS_MAX = 3600
POLL_SECONDS = 43_200
_TENANT_SERVICE = rf"^([a-z0-9][a-z0-9-]{{0,31}}/)?{SERVICE.pattern}$"
SOURCE_PATTERN = rf"^([a-z0-9][a-z0-9-]{{0,31}}/)?({SERVICE.pattern}|\*)$"

# Headers of a delivered message, by which its receiver knows the command.
ID_HEADER = "Snavio-Command-Id"
SOURCE_HEADER = "Snavio-Source"
TARGET_HEADER = "Snavio-Target"
NAME_HEADER = "Snavio-Command"
SENT_AT_HEADER = "Snavio-Sent-At"
PATH_HEADER = "Snavio-Path"
REPLAYED_HEADER = "Snavio-Replayed"  # `true`; these three only of a command that a replay sent
REPLAY_ID_HEADER = "Snavio-Replay-Id"
REPLAY_REASON_HEADER = "Snavio-Replay-Reason"


class CommandInvalid(InvalidRequest, code="command-invalid", status=400, title="Invalid command"):
    """The envelope, its timestamp or its signature is invalid; `reason` says what. Nothing was delivered."""


class AclDenied(AuthError, code="acl-deny", status=403, title="Not granted"):
    """The target has not granted this command to the sender, or the target belongs to another tenant and has no such route."""


class SourceRefused(AuthError, code="source-refused", status=403, title="Sender refused"):
    """The key is not trusted by the service that it names, or the tenant allows emit tokens only."""


class RouteMissing(NotFound, code="route-missing", status=404, title="No route"):
    """The target has no route for this command; `detail` has similar names of the tenant."""


class CommandRouteNotFound(NotFound, code="command-route-not-found", status=404, title="Route not found"):
    """The tenant has no route of this service and command."""


class ServiceNotFound(NotFound, code="service-not-found", status=404, title="Service not found"):
    """The tenant has no service of this name."""


class GrantNotFound(NotFound, code="grant-not-found", status=404, title="Grant not found"):
    """The route has no grant for this sender."""


class DeliveryFailure(Unavailable, code="delivery-failure", status=502, title="Delivery failed"):
    """The queue of the route is missing or refuses the message, or (status 507) it is full. Nothing was delivered."""


class DeliveryFull(DeliveryFailure):
    """The queue of the route is full, or the storage of its tenant. Nothing was delivered."""

    status = 507


# Services

ServiceName = Annotated[str, Meta(pattern=f"^{SERVICE.pattern}$", description="Name of the service.")]
_KeyId = Annotated[str, Meta(pattern="^[0-9A-Za-z]{16}$")]


class ServiceDefinition(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    trusted_keys: Annotated[
        tuple[_KeyId, ...],
        Meta(max_length=TRUSTED_KEYS_MAX, description="Ids of keys of the tenant that may send commands as this service."),
    ] = ()
    description: Annotated[str, Meta(max_length=1000, description="Note for people.")] = ""
    contact: Annotated[str, Meta(max_length=200, description="People to ask, such as an address.")] = ""


class SecretVersion(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A version of a service's secret, without its text."""

    version_id: Annotated[str, Meta(description="`hmac-v<n>`: commands name the version that they are signed with.")]
    created_at: Timestamp
    expires_at: Annotated[Timestamp | None, Meta(description="null for the current version.")]


class Service(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    source: Annotated[str, Meta(description="`<tenant>/<service>`: the sender in grants, events and delivered messages.")]
    trusted_keys: tuple[str, ...]
    description: str
    contact: str
    secrets: list[SecretVersion]
    last_config_poll: Annotated[Timestamp | None, Meta(description="Precise to a minute; null if never.")]
    created_at: Timestamp
    updated_at: Timestamp


class ServiceQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


ServicePage = page_of(Service, "services")


class NewEmitToken(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    expires_in_seconds: Annotated[int, Meta(ge=60, le=EMIT_SECONDS_MAX, description="Seconds until the token expires.")] = 900


class EmitToken(IssuedCredential, frozen=True, rename="camel", kw_only=True):
    """A credential that can send commands of one service, and nothing else."""

    token: str
    source: str
    expires_at: Timestamp


class SecretRotation(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    overlap_seconds: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=30 * 86_400,
                description="How long the previous version stays valid; by default as the installation sets, 0 to end it now.",
            ),
        ]
        | None
    ) = None


class ConfigSecret(IssuedCredential, frozen=True, rename="camel", kw_only=True):
    secret: str
    version_id: str
    is_current: bool = msgspec.field(name="current")
    created_at: Timestamp
    expires_at: Timestamp | None


class ServiceConfig(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    source: str
    secrets: Annotated[list[ConfigSecret], Meta(description="The current version first.")]


class TenantConfig(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a sender needs to sign. Poll it every `pollSeconds`, and after `version-expired` or `version-unknown`."""

    tenant: str
    poll_seconds: int
    window_seconds: Annotated[int, Meta(description="How far the timestamp of a command may differ from the server's time.")]
    services: Annotated[list[ServiceConfig], Meta(description="The services that trust the credential.")]


# Routes

Sensitivity = Literal["critical", "moderate", "low"]
CommandName = Annotated[str, Meta(pattern=f"^{COMMAND.pattern}$", description="Name of the command.")]


class RouteDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queue: Annotated[str, Meta(pattern=f"^{QUEUE.pattern}$", description="Queue of the tenant, with dead letters.")]
    sensitivity: Annotated[
        Sensitivity | None, Meta(description="How old a cached grant may be; null for the installation's default.")
    ] = None
    dedupe_mode: Annotated[
        Literal["none", "strict"], Meta(description="`none`: at least once; `strict`: each command id once.")
    ] = "none"
    dedupe_ttl_seconds: Annotated[
        int, Meta(ge=60, le=7 * 86_400, description="How long a command id is known, with `strict`.")
    ] = 300
    rate_limit: Annotated[RateLimit | None, Meta(description="Limit of the route's commands; null for none.")] = None
    fairness: Annotated[Fairness | None, Meta(description="Fairness between senders, with a rate limit; null: defaults.")] = None
    expected_drain_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=30 * 86_400,
                description="Usual time until a command is consumed; null: that of the queue, 300 if it has none.",
            ),
        ]
        | None
    ) = None
    acl_check: Annotated[
        Literal["cached", "sync"], Meta(description="`sync`: the grant is read from the engine for every command.")
    ] = "cached"
    signature: Annotated[Literal["optional", "required"], Meta(description="`required`: commands need `metadata.signature`.")] = (
        "optional"
    )
    archive: Annotated[bool, Meta(description="Whether payloads of this route are archived; needed to replay them.")] = True
    expires_at: Annotated[AwareDatetime | None, Meta(description="The route ends then; null for never.")] = None


class CommandRoute(msgspec.Struct, frozen=True, kw_only=True):
    service: str
    command: str
    target: Annotated[str, Meta(description="`<tenant>/<service>`.")]
    queue: str
    sensitivity: Sensitivity | None
    dedupe_mode: str
    dedupe_ttl_seconds: int = 300
    rate_limit: RateLimit | None = None
    fairness: Fairness | None = None
    usage: Annotated[RouteUsage | None, Meta(description="Use of the rate limit; only for a single route.")] = None
    expected_drain_seconds: Annotated[int | None, Meta(description="Null: that of the queue, 300 if it has none.")] = None
    acl_check: str
    signature: str
    archive: bool
    expires_at: Timestamp | None
    grants: Annotated[int, Meta(description="Number of its grants.")]
    created_at: Timestamp
    updated_at: Timestamp


class CommandRouteQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    service: Annotated[str, Meta(pattern=f"^{SERVICE.pattern}$", description="Only routes of this service.")] | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=rf"^{SERVICE.pattern}/{COMMAND.pattern}$")] | None = None


CommandRoutePage = page_of(CommandRoute, "routes")


class PutRouteQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dry_run: Annotated[bool, Meta(description="Only check, and return the route as it would be; nothing is stored.")] = False


_SourceName = Annotated[
    str, Meta(pattern=SOURCE_PATTERN, description="`<tenant>/<service>`, `<service>` of the own tenant, or `<tenant>/*`.")
]


class RouteTest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: Annotated[str, Meta(pattern=_TENANT_SERVICE, description="`<tenant>/<service>`, or `<service>` of the own tenant.")]
    is_signed: Annotated[bool, Meta(description="The command would have a signature.")] = msgspec.field(
        name="signed", default=False
    )


class RouteCheck(msgspec.Struct, frozen=True, kw_only=True):
    check: Annotated[
        str,
        Meta(
            description="`ban`, `route`, `signature`, `grant`, `rate-limit`, `queue`, `dead-letters` or `encryption`.",
        ),
    ]
    ok: bool
    detail: str


class RouteTestResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a dry run: nothing is delivered and no event recorded."""

    outcome: Annotated[str, Meta(description="`delivered`, or the code of the refusal.")]
    checks: list[RouteCheck]


# Grants


class GrantDefinition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    expires_at: Annotated[AwareDatetime | None, Meta(description="The grant ends then; null for never.")] = None
    sensitivity: Annotated[
        Sensitivity | None, Meta(description="Narrows that of the route for this sender; null for that of the route.")
    ] = None


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    target: str
    command: str
    expires_at: Timestamp | None
    sensitivity: Sensitivity | None
    created_at: Timestamp
    created_by: str


class GrantQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    service: Annotated[str, Meta(pattern=f"^{SERVICE.pattern}$", description="Target service.")] | None = None
    command: Annotated[str, Meta(pattern=f"^{COMMAND.pattern}$", description="Only grants of this command.")] | None = None
    source: _SourceName | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=400)] | None = None


GrantPage = page_of(Grant, "grants")


# Change log


class RegistryChangesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):
    since: Annotated[AwareDatetime | None, Meta(description="Not before this time.")] = None
    until: Annotated[AwareDatetime | None, Meta(description="Before this time.")] = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")] | None = None


class RegistryChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """One change of a service, route or grant. `failed`: the change was recorded but not made."""

    id: str
    at: Timestamp
    action: str
    target: str
    actor_key_id: str
    outcome: str = "ok"
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


RegistryChangePage = page_of(RegistryChange, "changes")


# Commands


class CommandMetadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(description="UUID; the same for every attempt to send the command.")]
    timestamp: Annotated[str, Meta(description="RFC 3339 with a time zone.")]
    type: Annotated[str, Meta(description=f"`{COMMAND_TYPE}`.")]
    hmac: Annotated[str, Meta(description="Hex of HMAC-SHA256 over payload, timestamp and name, as sent.")]
    version_id: Annotated[str, Meta(description="Version of the secret, such as `hmac-v1`.")]
    signature: Annotated[str, Meta(description="Covers id, sender and target, too.")] | UnsetType = UNSET


class CommandBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`source` must not be given: the dispatcher adds it from the credential."""

    target: Annotated[str, Meta(description="`<service>` of the own tenant, or `<tenant>/<service>`.")]
    name: str
    payload: Annotated[msgspec.Raw, Meta(description="Any JSON value.")]


class CommandEnvelope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command as it is sent."""

    metadata: CommandMetadata
    command: CommandBody


DispatchPath = Literal["fast", "slow"]


class CommandAccepted(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """The command is in the target's queue, and its outcome event is stored."""

    command_id: str
    message_id: str
    path: DispatchPath
    is_duplicate: Annotated[
        bool, Meta(description="The id was delivered before, and not again; `messageId` is that of the first one.")
    ] = msgspec.field(name="duplicate", default=False)
    deliver_at: Annotated[Timestamp | None, Meta(description="When receivers get it, if the rate limit delays it.")] = None


class CommandBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    commands: Annotated[
        list[msgspec.Raw], Meta(min_length=1, max_length=BATCH_COMMANDS_MAX, description="Envelopes, as for one command.")
    ]


class CommandResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Ids of a delivered command, or the problem if it was not delivered."""

    command_id: str | None = None
    message_id: str | None = None
    path: DispatchPath | None = None
    is_duplicate: bool = msgspec.field(name="duplicate", default=False)
    deliver_at: Timestamp | None = None
    problem: Problem | None = None


class CommandBatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a batch: a result for each command, in order."""

    delivered: int
    failed: int
    results: list[CommandResult]
