"""Routes of commands and their grants, which are stored in the record of the route."""

from collections.abc import Callable, Iterator

import msgspec

from postroad.api.commands import (
    GRANTS_PER_ROUTE_MAX,
    CommandRouteNotFound,
    GrantDefinition,
    GrantNotFound,
    RouteDefinition,
)
from postroad.api.pages import Page
from postroad.commands.limit_records import QuotaRecord
from postroad.commands.records import (
    GrantRecord,
    RevokedGrant,
    RouteRecord,
    grant_of,
    route_key,
    route_of,
)
from postroad.commands.rules import grant_source
from postroad.commands.service_registry import ServiceRegistry
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, epoch_ms
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import Caller
from postroad.kernel.json import invalid_field
from postroad.kernel.names import command_name, escape, service_name
from postroad.queues.lifecycle import QueueLifecycle

_REVOKED_KEPT_MS = 600_000
_REVOKED_MAX = 100


class RouteRegistry:
    """`is_encrypted`: the engine encrypts its data; None if that is not known."""

    def __init__(
        self,
        table: ReplicatedTable[RouteRecord],
        quotas: ReplicatedTable[QuotaRecord],
        services: ServiceRegistry,
        queues: QueueLifecycle,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        clock: Clock,
        *,
        is_encrypted: bool | None,
        requires_encryption: bool,
    ) -> None:
        self.table, self._quotas, self._services = table, quotas, services
        self._queues, self._tenant_settings = queues, tenant_settings
        self._audit, self._clock = audit, clock
        self.is_encrypted, self.requires_encryption = is_encrypted, requires_encryption

    # Routes

    async def find(self, tenant: str, service: str, command: str) -> RouteRecord:
        """Raises CommandRouteNotFound, InvalidParameter."""
        record = await self.table.fetch(route_key(tenant, service_name(service), command_name(command)))
        if record is None:
            raise CommandRouteNotFound(f"there is no route {service}/{command}")
        return record

    def page(self, caller: Caller, limit: int, service: str | None, after: str | None) -> Page[RouteRecord]:
        prefix = f"{caller.tenant}." if service is None else f"{caller.tenant}.{escape(service)}."
        records: list[RouteRecord] = []
        for record in self._records(caller, prefix, _cursor_key(caller.tenant, after)):
            if len(records) == limit:
                return Page(items=records, next_cursor=f"{records[-1].service}/{records[-1].command}")
            records.append(record)
        return Page(items=records)

    def _records(self, caller: Caller, prefix: str, after: str) -> Iterator[RouteRecord]:
        for key in self.table.keys_under(prefix, after):
            record = self.table.get(key)
            if record is not None and caller.may_use("service", record.service):
                yield record

    async def put(
        self, context: RequestContext, service: str, command: str, wanted: RouteDefinition, *, is_dry_run: bool = False
    ) -> tuple[RouteRecord, bool]:
        """Create or replace the route; return it and whether it is new. Its grants are kept. A dry run has the same checks, and
        returns the route as it would be.

        Raises ServiceNotFound, QueueNotFound, PreconditionFailed, BodyInvalid, Forbidden, InvalidParameter.
        """
        key = route_key(context.tenant, service_name(service), command_name(command))
        await self._services.find(context.tenant, service)
        await self._check_queue(context, wanted.queue)
        now = self._clock()
        expires_at_ms = epoch_ms(wanted.expires_at)
        if expires_at_ms is not None and expires_at_ms <= now:
            raise invalid_field("$.expires_at", "must be in the future")
        _check_limit(wanted)
        fields = {**msgspec.structs.asdict(wanted), "expires_at_ms": expires_at_ms}
        del fields["expires_at"]

        def changed(record: RouteRecord) -> RouteRecord:
            same = all(getattr(record, name) == value for name, value in fields.items())
            return record if same else msgspec.structs.replace(record, **fields, updated_at_ms=now)

        while True:
            known = await self.table.fetch(key)
            if known is not None:
                after = changed(known)
                if after is known or is_dry_run:
                    return after, False
                async with self._audit.change(
                    context, "registry.route.change", f"{service}/{command}", before=route_of(known), after=route_of(after)
                ):
                    result = await self.table.change(key, changed)
                if result is not None:
                    return result[1], False
                continue
            self._check_count(context.tenant)
            record = RouteRecord(
                tenant=context.tenant, service=service, command=command, created_at_ms=now, updated_at_ms=now, **fields
            )
            if is_dry_run:
                return record, True
            await self._delete_quotas(key)  # of an earlier route, if its deletion was interrupted
            try:
                async with self._audit.change(context, "registry.route.create", f"{service}/{command}", after=route_of(record)):
                    await self.table.create(key, record)
                return record, True
            except Conflict:
                self.table.forget(key)

    def _check_count(self, tenant: str) -> None:
        count, limit = self.table.count_under(f"{tenant}."), self._tenant_settings.of(tenant).max_routes
        if count >= limit:
            raise Forbidden(f"the tenant has {count} routes; {limit} is the limit")

    async def _check_queue(self, context: RequestContext, name: str) -> None:
        if not context.caller.may_use("queue", name):
            raise Forbidden(f"the key may not use the queue {name!r}")
        queue = await self._queues.find(context.tenant, name)
        if queue.settings.max_attempts < 1:
            raise PreconditionFailed(f"the queue {name!r} has no dead letters: set its `maxAttempts` to 1 or more")
        if self.requires_encryption and not self.is_encrypted:
            raise PreconditionFailed("this installation requires encryption at rest, and the engine does not encrypt its data")

    async def delete(self, context: RequestContext, service: str, command: str) -> None:
        """Delete the route with its grants and quotas. Raises CommandRouteNotFound, Conflict."""
        record = await self.find(context.tenant, service, command)
        revision = self.table.revision(record.key)
        async with self._audit.change(context, "registry.route.delete", f"{service}/{command}", before=route_of(record)):
            await self.table.delete(record.key, revision)
            await self._delete_quotas(record.key)

    async def _delete_quotas(self, route: str) -> None:
        for key in list(self._quotas.keys_under(f"{route}.")):
            await self._quotas.delete(key)

    async def delete_all(self, tenant: str) -> None:
        """Delete all routes of a tenant. May be repeated after an interruption."""
        for key in list(self.table.keys_under(f"{tenant}.")):
            await self.table.delete(key)

    # Grants

    async def put_grant(
        self, context: RequestContext, service: str, command: str, source: str, wanted: GrantDefinition
    ) -> tuple[RouteRecord, GrantRecord, bool]:
        """Grant a command to a sender; return the route, the grant and whether it is new.

        Raises CommandRouteNotFound, InvalidParameter, BodyInvalid, and PreconditionFailed if the route has too many grants.
        """
        full, now = _source(context.tenant, source), self._clock()
        expires_at_ms = epoch_ms(wanted.expires_at)
        if expires_at_ms is not None and expires_at_ms <= now:
            raise invalid_field("$.expires_at", "must be in the future")
        record = await self.find(context.tenant, service, command)
        before = _grant(record, full)
        grant = GrantRecord(
            full,
            now if before is None else before.created_at_ms,
            context.caller.key_id if before is None else before.created_by,
            expires_at_ms,
            wanted.sensitivity,
        )
        if before == grant:
            return record, grant, False

        def granted(known: RouteRecord) -> RouteRecord:
            others = tuple(one for one in known.grants if one.source != full and one.is_active(now))
            if len(others) >= GRANTS_PER_ROUTE_MAX:
                raise PreconditionFailed(
                    f"the route has {len(others)} grants, which is the limit; grant whole tenants: <tenant>/*"
                )
            revoked = tuple(one for one in known.revoked if one.source != full)
            return msgspec.structs.replace(known, grants=(*others, grant), revoked=revoked, updated_at_ms=now)

        granted(record)  # refuse before the audit entry
        action = "registry.grant.create" if before is None else "registry.grant.change"
        shown = None if before is None else grant_of(record, before)
        async with self._audit.change(context, action, _grant_name(record, full), before=shown, after=grant_of(record, grant)):
            return await self._change(record, granted), grant, before is None

    async def delete_grant(self, context: RequestContext, service: str, command: str, source: str) -> None:
        """Revoke a grant. Raises CommandRouteNotFound, GrantNotFound, InvalidParameter."""
        full, now = _source(context.tenant, source), self._clock()
        record = await self.find(context.tenant, service, command)
        grant = _grant(record, full)
        if grant is None:
            raise GrantNotFound(f"{service}/{command} has no grant for {full}")

        def revoked(known: RouteRecord) -> RouteRecord:
            recent = [one for one in known.revoked if one.source != full and now - one.at_ms < _REVOKED_KEPT_MS]
            return msgspec.structs.replace(
                known,
                grants=tuple(one for one in known.grants if one.source != full),
                revoked=(*recent[-_REVOKED_MAX + 1 :], RevokedGrant(full, now)),
                updated_at_ms=now,
            )

        async with self._audit.change(
            context, "registry.grant.revoke", _grant_name(record, full), before=grant_of(record, grant)
        ):
            await self._change(record, revoked)

    async def _change(self, record: RouteRecord, make: Callable[[RouteRecord], RouteRecord]) -> RouteRecord:
        result = await self.table.change(record.key, make)
        if result is None:
            raise CommandRouteNotFound(f"there is no route {record.service}/{record.command}")
        return result[1]

    def grants(
        self, caller: Caller, limit: int, after: str | None, *, service: str | None, command: str | None, source: str | None
    ) -> Page[tuple[RouteRecord, GrantRecord]]:
        """The grants of the tenant's routes, ordered by route and sender. The cursor is `<service>/<command>/<source>`."""
        wanted = None if source is None else _source(caller.tenant, source)
        prefix = f"{caller.tenant}." if service is None else f"{caller.tenant}.{escape(service)}."
        start_service, start_command, start_source = _grant_cursor(after)
        start = route_key(caller.tenant, start_service, start_command) if after is not None else ""
        found: list[tuple[RouteRecord, GrantRecord]] = []
        for record in self._records(caller, prefix, start[:-1]):  # `start` included
            if record.key < start or (command is not None and record.command != command):
                continue
            floor = start_source if record.key == start else ""
            for grant in sorted(record.grants, key=lambda one: one.source):
                if grant.source <= floor or (wanted is not None and grant.source != wanted):
                    continue
                if len(found) == limit:
                    last, shown = found[-1]
                    return Page(items=found, next_cursor=f"{last.service}/{last.command}/{shown.source}")
                found.append((record, grant))
        return Page(items=found)


def _check_limit(wanted: RouteDefinition) -> None:
    """Raises BodyInvalid."""
    rate = wanted.rate_limit
    if rate is not None and rate.overflow == "delay" and rate.max_delay_seconds < rate.interval_seconds:
        raise invalid_field("$.rate_limit.max_delay_seconds", "must be at least `interval_seconds`, after which tokens return")
    if rate is None and wanted.fairness is not None:
        raise invalid_field("$.fairness", "applies to routes with a `rate_limit` only")


def _source(tenant: str, text: str) -> str:
    """The sender of a grant in full. Raises InvalidParameter."""
    full = grant_source(tenant, text)
    if full is None:
        raise InvalidParameter(f"a sender is <service>, <tenant>/<service> or <tenant>/*: {text[:100]!r}")
    return full


def _grant(record: RouteRecord, source: str) -> GrantRecord | None:
    return next((one for one in record.grants if one.source == source), None)


def _grant_name(record: RouteRecord, source: str) -> str:
    return f"{record.service}/{record.command} {source}"


def _cursor_key(tenant: str, cursor: str | None) -> str:
    if cursor is None:
        return ""
    service, _, command = cursor.partition("/")
    return route_key(tenant, service, command)


def _grant_cursor(cursor: str | None) -> tuple[str, str, str]:
    """Raises InvalidParameter."""
    if cursor is None:
        return "", "", ""
    service, first, rest = cursor.partition("/")
    command, second, source = rest.partition("/")
    if not first or not second:
        raise InvalidParameter("the cursor was not returned by this list")
    return service, command, source
