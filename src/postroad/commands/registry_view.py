"""The registry as the dispatcher reads it: routes with their grants, and senders with their secrets, by name. Pure, in memory.

Records are prepared for look-ups when they are first used, and again after a change.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from postroad.api.command_limits import Fairness
from postroad.commands.limit_records import RouteName, limit_of
from postroad.commands.rate_rules import Limit
from postroad.commands.records import GrantRecord, RouteRecord, SecretRecord, ServiceRecord, route_key, service_key
from postroad.commands.rules import source_of, version_id

_FAIRNESS = Fairness()
_ROUTES_MAX = 50_000  # that are prepared for look-ups


@dataclass(frozen=True, slots=True)
class KnownSecret:
    """A version of a secret, decrypted."""

    key: bytes
    expires_at_ms: int | None
    is_current: bool

    def __repr__(self) -> str:
        return f"KnownSecret(***, expires_at_ms={self.expires_at_ms})"


@dataclass(frozen=True, slots=True)
class Sender:
    """A service that sends commands. `secrets` are by version id; `source` is its identity."""

    tenant: str
    service: str
    incarnation: str
    trusted_keys: frozenset[str]
    secrets: Mapping[str, KnownSecret]
    rotated_at_ms: int
    source: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", source_of(self.tenant, self.service))


class Grants(Protocol):
    """The grants of a route by sender."""

    def get(self, source: str, /) -> GrantRecord | None: ...


@dataclass(frozen=True, slots=True)
class KnownRoute:
    """A route with its grants by sender. `record` may lack them."""

    record: RouteRecord
    grants: Grants
    key: str
    limit: Limit | None
    fairness: Fairness

    @property
    def name(self) -> RouteName:
        return self.record.tenant, self.record.service, self.record.command

    def is_active(self, at_ms: int) -> bool:
        return self.record.expires_at_ms is None or at_ms < self.record.expires_at_ms

    def grant(self, source: str, at_ms: int) -> GrantRecord | None:
        """The sender's own grant, else that of its tenant; None if neither is valid."""
        own = self.grants.get(source)
        if own is not None and own.is_active(at_ms):
            return own
        whole = self.grants.get(source.partition("/")[0] + "/*")
        return whole if whole is not None and whole.is_active(at_ms) else None


Decrypt = Callable[[ServiceRecord, SecretRecord], bytes | None]


class RegistryView:
    """`routes` and `services` return what is in memory by key; `decrypt` the text of a secret, None if that is impossible."""

    def __init__(
        self,
        routes: Callable[[str], KnownRoute | None],
        services: Callable[[str], ServiceRecord | None],
        decrypt: Decrypt,
    ) -> None:
        self._known_routes, self._service_records, self._decrypt = routes, services, decrypt
        self._routes: dict[tuple[str, str, str], KnownRoute] = {}
        self._senders: dict[tuple[str, str], Sender] = {}

    def route(self, tenant: str, service: str, command: str) -> KnownRoute | None:
        known = self._routes.get((tenant, service, command))
        if known is None:
            known = self._known_routes(route_key(tenant, service, command))
            if known is None:
                return None
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            self._routes[tenant, service, command] = known
        return known

    def sender(self, tenant: str, service: str) -> Sender | None:
        known = self._senders.get((tenant, service))
        if known is None:
            record = self._service_records(service_key(tenant, service))
            if record is None:
                return None
            known = self._senders[tenant, service] = known_sender(record, self._decrypt)
        return known

    def forget_route(self, tenant: str, service: str, command: str) -> None:
        """Call it when the record has changed."""
        self._routes.pop((tenant, service, command), None)

    def forget_sender(self, tenant: str, service: str) -> None:
        self._senders.pop((tenant, service), None)


def known_route(record: RouteRecord) -> KnownRoute:
    return packed_route(record, {grant.source: grant for grant in record.grants})


def packed_route(head: RouteRecord, grants: Grants) -> KnownRoute:
    """A route whose grants are not in its record."""
    return KnownRoute(head, grants, head.key, limit_of(head.rate_limit), head.fairness or _FAIRNESS)


def known_sender(record: ServiceRecord, decrypt: Decrypt) -> Sender:
    decrypted = [(secret, decrypt(record, secret)) for secret in record.secrets]
    return Sender(
        record.tenant,
        record.name,
        record.incarnation,
        frozenset(record.trusted_keys),
        {
            version_id(secret.number): KnownSecret(key, secret.expires_at_ms, secret.expires_at_ms is None)
            for secret, key in decrypted
            if key is not None
        },
        max((secret.created_at_ms for secret in record.secrets), default=0),
    )
