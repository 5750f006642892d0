"""Quotas of senders on the tenant's routes. They apply while a sender is banned from the warm path."""

import msgspec

from postroad.api.command_limits import QuotaDefinition, QuotaNotFound
from postroad.api.commands import GRANTS_PER_ROUTE_MAX
from postroad.api.pages import Page
from postroad.commands.limit_records import QuotaRecord, quota_key, quota_of
from postroad.commands.records import route_key
from postroad.commands.route_registry import RouteRegistry
from postroad.commands.rules import target_of
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import Caller
from postroad.kernel.names import command_name, escape, service_name


class Quotas:
    def __init__(self, table: ReplicatedTable[QuotaRecord], routes: RouteRegistry, audit: Audit, clock: Clock) -> None:
        self.table, self._routes, self._audit, self._clock = table, routes, audit, clock

    def page(
        self, caller: Caller, limit: int, after: str | None, *, service: str | None, command: str | None
    ) -> Page[QuotaRecord]:
        """Ordered by route and sender; the cursor is a key."""
        prefix = f"{caller.tenant}." if service is None else f"{caller.tenant}.{escape(service)}."
        found: list[QuotaRecord] = []
        for key in self.table.keys_under(prefix, after or ""):
            record = self.table.get(key)
            if record is None or record.key != key or command not in (None, record.route[2]):
                continue
            if not caller.may_use("service", record.route[1]):
                continue
            if len(found) == limit:
                return Page(items=found, next_cursor=found[-1].key)
            found.append(record)
        return Page(items=found)

    async def put(
        self, context: RequestContext, service: str, command: str, source: str, wanted: QuotaDefinition
    ) -> tuple[QuotaRecord, bool]:
        """Create or replace a quota; return it and whether it is new.

        Raises CommandRouteNotFound, InvalidParameter, PreconditionFailed.
        """
        route = await self._routes.find(context.tenant, service, command)
        name = (route.tenant, route.service, route.command)
        key, now = quota_key(name, full := _source(context.tenant, source)), self._clock()
        fields = msgspec.structs.asdict(wanted)
        while True:
            known = await self.table.fetch(key)
            if known is not None and all(getattr(known, field) == value for field, value in fields.items()):
                return known, False
            if known is None and self.table.count_under(f"{route_key(*name)}.") >= GRANTS_PER_ROUTE_MAX:
                raise PreconditionFailed(f"the route has {GRANTS_PER_ROUTE_MAX} quotas, which is the limit")
            created = now if known is None else known.created_at_ms
            record = QuotaRecord(route=name, source=full, created_at_ms=created, updated_at_ms=now, **fields)
            action = "registry.quota.create" if known is None else "registry.quota.change"
            shown = None if known is None else quota_of(known)
            try:
                async with self._audit.change(
                    context, action, f"{service}/{command} {full}", before=shown, after=quota_of(record)
                ):
                    if known is None:
                        await self.table.create(key, record)
                    else:
                        await self.table.update(key, record, self.table.revision(key))
                return record, known is None
            except Conflict:
                self.table.forget(key)

    async def delete(self, context: RequestContext, service: str, command: str, source: str) -> None:
        """Raises QuotaNotFound, InvalidParameter."""
        full = _source(context.tenant, source)
        key = quota_key((context.tenant, service_name(service), command_name(command)), full)
        record = await self.table.fetch(key)
        if record is None:
            raise QuotaNotFound("the route has no quota for this sender")
        async with self._audit.change(context, "registry.quota.delete", f"{service}/{command} {full}", before=quota_of(record)):
            await self.table.delete(key)

    async def delete_all(self, tenant: str) -> None:
        """Delete the quotas on a tenant's routes. May be repeated after an interruption."""
        for key in list(self.table.keys_under(f"{tenant}.")):
            await self.table.delete(key)


def _source(tenant: str, text: str) -> str:
    """Raises InvalidParameter."""
    found = target_of(tenant, text)
    if found is None:
        raise InvalidParameter(f"the sender of a quota is <service> or <tenant>/<service>: {text[:100]!r}")
    return "/".join(found)
