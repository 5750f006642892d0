"""Bans of senders: imposed by the dispatcher, the auditor, the owner of a route and operators; followed by every worker."""

from postroad.api.command_limits import BANS_PER_TENANT_MAX, BanKind, BanNotFound, NewBan
from postroad.api.pages import Page
from postroad.commands import metrics
from postroad.commands.ban_view import BanView
from postroad.commands.events import BanCreated, BanEnded
from postroad.commands.limit_records import BanRecord, RouteName, ban_of
from postroad.commands.rules import grant_source, target_of
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import Caller
from postroad.kernel.json import invalid_field
from postroad.telemetry.outbox import Outbox


class Bans:
    def __init__(self, table: ReplicatedTable[BanRecord], audit: Audit, outbox: Outbox, clock: Clock) -> None:
        self.table, self._audit, self._outbox, self._clock = table, audit, outbox, clock
        self.view = BanView()
        table.on_change(self.view.apply)

    # For people

    def page(self, caller: Caller, limit: int, after: str | None, *, source: str | None, kind: str | None) -> Page[BanRecord]:
        """Bans of the tenant's senders and on its routes; with a platform key those of all tenants. Raises InvalidParameter."""
        wanted = None if source is None else _source(caller.tenant, source)
        found: list[BanRecord] = []
        for record in self.view.visible_to(None if caller.is_platform else caller.tenant, self._clock()):
            is_wanted = wanted in (None, record.source) and kind in (None, record.kind)
            if not is_wanted or (after is not None and record.key <= after) or not _may_see(caller, record):
                continue
            if len(found) == limit:
                return Page(items=found, next_cursor=found[-1].key)
            found.append(record)
        return Page(items=found)

    async def create(self, context: RequestContext, wanted: NewBan) -> BanRecord:
        """Ban a sender on a route of the caller's tenant; with a platform key on any route, or on all.

        Raises InvalidParameter, BodyInvalid, Forbidden, PreconditionFailed.
        """
        caller = context.caller
        source, route = _source(caller.tenant, wanted.source), _route(caller.tenant, wanted)
        if not caller.is_platform and (route is None or route[0] != caller.tenant):
            raise Forbidden("only a platform key may ban a sender on all routes, or on routes of other tenants")
        if route is not None and not caller.may_use("service", route[1]):
            raise Forbidden(f"the key may not use the service {route[1]!r}")
        if not caller.is_platform and self.view.count_owned(caller.tenant) >= BANS_PER_TENANT_MAX:
            raise PreconditionFailed(f"the routes of the tenant have {BANS_PER_TENANT_MAX} bans, which is the limit")
        now = self._clock()
        record = BanRecord(
            source=source,
            kind=wanted.kind,
            route=route,
            reason=wanted.reason,
            creator="operator" if caller.is_platform else "owner",
            key_id=caller.key_id,
            created_at_ms=now,
            expires_at_ms=now + wanted.duration_seconds * 1000,
        )
        async with self._audit.change(context, "registry.ban.create", record.key, after=ban_of(record)):
            await self._store(record, replaces=True)
        return record

    async def delete(self, context: RequestContext, key: str, *, reason: str | None = None) -> None:
        """End a ban before its time; the reason is for the audit log. Raises BanNotFound, Forbidden."""
        caller = context.caller
        record = await self.table.fetch(key)
        if record is None or not record.is_active(self._clock()) or not _may_see(caller, record):
            raise BanNotFound("there is no such ban")
        if not caller.is_platform and (record.route is None or record.route[0] != caller.tenant):
            raise Forbidden("a ban ends at its time, or is ended by the owner of the route or an operator")
        async with self._audit.change(
            context, "registry.ban.delete", key, before=ban_of(record), after=reason and {"reason": reason}
        ):
            await self.table.delete(key)
        self._outbox.record(
            None,
            BanEnded(
                tenant=record.source.partition("/")[0],
                source=record.source,
                kind=record.kind,
                target=record.target,
                command_name=None if record.route is None else record.route[2],
            ),
        )

    async def delete_all(self, tenant: str) -> None:
        """Delete the bans of a tenant's senders and on its routes. May be repeated after an interruption."""
        for record in list(self.view.visible_to(tenant, 0)):
            await self.table.delete(record.key)

    # For the dispatcher and the auditor

    async def impose(
        self, source: str, kind: BanKind, *, seconds: int, reason: str, creator: str, route: RouteName | None = None
    ) -> BanRecord:
        """Ban a sender, unless it has a ban of the same kind that lasts as long; return the ban in effect."""
        now = self._clock()
        record = BanRecord(
            source=source,
            kind=kind,
            route=route,
            reason=reason,
            creator=creator,
            created_at_ms=now,
            expires_at_ms=now + seconds * 1000,
        )
        return await self._store(record, replaces=False)

    async def _store(self, record: BanRecord, *, replaces: bool) -> BanRecord:
        key, ttl_seconds = record.key, max(1, -(-(record.expires_at_ms - self._clock()) // 1000))
        while True:
            known = await self.table.fetch(key)
            try:
                if known is None:
                    await self.table.create(key, record, ttl_seconds=ttl_seconds)
                elif not replaces and known.expires_at_ms >= record.expires_at_ms:
                    return known
                else:
                    await self.table.update(key, record, self.table.revision(key), ttl_seconds=ttl_seconds)
                break
            except Conflict:
                self.table.forget(key)
        metrics.bans.labels(record.kind, record.creator).inc()
        self._outbox.record(
            None,
            BanCreated(
                tenant=record.source.partition("/")[0],
                source=record.source,
                kind=record.kind,
                target=record.target,
                command_name=None if record.route is None else record.route[2],
                reason=record.reason,
                creator=record.creator,
                expires_at=rfc3339(record.expires_at_ms),
            ),
        )
        return record


def _may_see(caller: Caller, record: BanRecord) -> bool:
    """A key that is restricted to services sees the bans of these services, and on their routes."""
    if caller.is_platform:
        return True
    tenant, _, service = record.source.partition("/")
    names = [service] if tenant == caller.tenant else []
    if record.route is not None and record.route[0] == caller.tenant:
        names.append(record.route[1])
    return any(caller.may_use("service", name) for name in names)


def _source(tenant: str, text: str) -> str:
    """Raises InvalidParameter."""
    full = grant_source(tenant, text)
    if full is None:
        raise InvalidParameter(f"a sender is <service>, <tenant>/<service> or <tenant>/*: {text[:100]!r}")
    return full


def _route(tenant: str, wanted: NewBan) -> RouteName | None:
    """Raises BodyInvalid."""
    if (wanted.target is None) != (wanted.command is None):
        raise invalid_field("$.command", "name both `target` and `command`, or neither")
    if wanted.target is None or wanted.command is None:
        return None
    target = target_of(tenant, wanted.target)
    if target is None:
        raise invalid_field("$.target", "must be <service> or <tenant>/<service>")
    return (*target, wanted.command)
