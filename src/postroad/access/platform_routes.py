"""What the platform's operators govern over HTTP: tenants, invites, the platform's settings, the audit log."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.access.invites import Claim, Invites, NewInvite
from postroad.access.key_service import LATEST_MS, When
from postroad.access.login_throttle import LoginThrottle
from postroad.access.routes import KeyMade, PlaceCursor, SettingsView, settings_view
from postroad.access.tenants import NewTenant, TenantChange, Tenants
from postroad.access.views import InviteView, TenantView, invite_view, key_view, tenant_view
from postroad.governance.audit import PLATFORM, Audit, AuditEntry, AuditFilter
from postroad.governance.tenant_settings import TenantSettingsChange, TenantSettingsStore
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import (
    AlreadyExists,
    EngineUnavailable,
    Forbidden,
    InviteEnded,
    InviteNotFound,
    PreconditionFailed,
    RateLimited,
    TenantNotFound,
    Unauthenticated,
)
from postroad.kernel.identity import RouteRequirement, Scope


class PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


class InviteQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: PlaceCursor | None = None


class TenantList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    tenants: list[TenantView]
    next_cursor: str | None


class InviteList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    invites: list[InviteView]
    next_cursor: str | None


class InviteMade(msgspec.Struct, frozen=True):
    """`code` is what the invited one claims with. It is shown here and never again."""

    code: str
    invite: InviteView


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):
    since: Annotated[When | None, Meta(description="Not before.")] = None
    until: Annotated[When | None, Meta(description="Before.")] = None
    action: Annotated[str, Meta(max_length=100, description="Such as `key.create`; `key.*` for all that begin so.")] | None = None
    actor: Annotated[str, Meta(max_length=100, description="The id of the key that did it.")] | None = None
    target: Annotated[str, Meta(max_length=200)] | None = None
    requestId: Annotated[str, Meta(max_length=128)] | None = None  # noqa: N815  # the name in the URL
    tenant: (
        Annotated[
            str,
            Meta(
                max_length=32,
                pattern="^(_platform|[a-z0-9][a-z0-9-]*)$",
                description="One tenant's entries, or `_platform`; all if left out. Platform keys only.",
            ),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Annotated[int, Meta(ge=1, le=2**62)] | None = None


class AuditList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Newest first. `scanned` entries were looked at; with a `nextCursor` there is more, even if nothing was found so far."""

    entries: list[AuditEntry]
    scanned: int
    next_cursor: str | None


class PlatformRoutes:
    def __init__(
        self,
        tenants: Tenants,
        invites: Invites,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        guard: LoginThrottle,
        clock: Clock,
    ) -> None:
        self._tenants, self._invites, self._tenant_settings = tenants, invites, tenant_settings
        self._audit, self._guard, self._clock = audit, guard, clock

    def table(self) -> Sequence[Route]:
        return [*self._tenants_table(), *self._invites_table(), *self._rest_table()]

    def _tenants_table(self) -> list[Route]:
        tenants, one = "/api/control/tenants", "/api/control/tenants/{tenant}"
        tag, need = "Tenants", RouteRequirement.PLATFORM
        return [
            Route("GET", tenants, self.list_tenants, need, "List tenants", tag, query=PageQuery, response=TenantList),
            Route(
                "POST",
                tenants,
                self.create_tenant,
                need,
                "Make a tenant",
                tag,
                body=NewTenant,
                response=TenantView,
                status=201,
                errors=(AlreadyExists, EngineUnavailable),
            ),
            Route("GET", one, self.get_tenant, need, "Show a tenant", tag, response=TenantView, errors=(TenantNotFound,)),
            Route(
                "PATCH",
                one,
                self.change_tenant,
                need,
                "Change, disable or enable a tenant",
                tag,
                body=TenantChange,
                response=TenantView,
                errors=(TenantNotFound, PreconditionFailed, EngineUnavailable),
            ),
            Route(
                "DELETE",
                one,
                self.delete_tenant,
                need,
                "Delete a tenant and all that it has",
                tag,
                response=TenantView,
                status=202,
                errors=(TenantNotFound, PreconditionFailed, EngineUnavailable),
                description="Its credentials stop at once; its state is `deleting` until all that it has is gone.",
            ),
        ]

    def _invites_table(self) -> list[Route]:
        invites, tag = "/api/control/invites", "Invites"
        return [
            Route(
                "GET",
                invites,
                self.list_invites,
                RouteRequirement.PLATFORM,
                "List invites",
                tag,
                query=InviteQuery,
                response=InviteList,
            ),
            Route(
                "POST",
                invites,
                self.create_invite,
                RouteRequirement.PLATFORM,
                "Make an invite",
                tag,
                body=NewInvite,
                response=InviteMade,
                status=201,
                errors=(EngineUnavailable,),
                description="Its code makes one tenant and its first key, once. The code is shown once.",
            ),
            Route(
                "DELETE",
                f"{invites}/{{invite}}",
                self.revoke_invite,
                RouteRequirement.PLATFORM,
                "Revoke an invite",
                tag,
                status=204,
                errors=(InviteNotFound, EngineUnavailable),
            ),
            Route(
                "POST",
                "/api/control/claim",
                self.claim,
                None,
                "Claim an invite",
                tag,
                body=Claim,
                response=KeyMade,
                status=201,
                errors=(InviteNotFound, InviteEnded, AlreadyExists, RateLimited, EngineUnavailable),
                description="Makes the tenant and its first key. The key is shown once.",
            ),
        ]

    def _rest_table(self) -> list[Route]:
        settings = "/api/control/settings"
        return [
            Route(
                "GET",
                settings,
                self.get_platform_settings,
                RouteRequirement.PLATFORM,
                "Show the defaults",
                "Settings",
                response=SettingsView,
            ),
            Route(
                "POST",
                settings,
                self.change_platform_settings,
                RouteRequirement.PLATFORM,
                "Change the defaults",
                "Settings",
                body=TenantSettingsChange,
                response=SettingsView,
                errors=(EngineUnavailable,),
                description="What holds for tenants that chose nothing else. null goes back to what the processes started with.",
            ),
            Route(
                "GET",
                "/api/control/audit",
                self.list_audit,
                Scope.ADMIN,
                "Read the audit log",
                "Audit",
                query=AuditQuery,
                response=AuditList,
                errors=(EngineUnavailable,),
                description="Who changed what, newest first. A tenant's admin sees the tenant's entries, a platform key all.",
            ),
        ]

    async def list_tenants(self, request: Request) -> Response:
        query: PageQuery = request.query
        records, cursor = self._tenants.page(query.limit, query.cursor)
        return Response(TenantList(tenants=[tenant_view(record) for record in records], next_cursor=cursor))

    async def create_tenant(self, request: Request) -> Response:
        return Response(tenant_view(await self._tenants.create(request.context, request.body)), status=201)

    async def get_tenant(self, request: Request) -> Response:
        return Response(tenant_view(await self._tenants.find(request.parameters["tenant"])))

    async def change_tenant(self, request: Request) -> Response:
        return Response(tenant_view(await self._tenants.change(request.context, request.parameters["tenant"], request.body)))

    async def delete_tenant(self, request: Request) -> Response:
        return Response(tenant_view(await self._tenants.delete(request.context, request.parameters["tenant"])), status=202)

    async def list_invites(self, request: Request) -> Response:
        query: InviteQuery = request.query
        records, cursor = self._invites.page(query.limit, query.cursor)
        now = self._clock()
        return Response(InviteList(invites=[invite_view(record, now) for record in records], next_cursor=cursor))

    async def create_invite(self, request: Request) -> Response:
        record, code = await self._invites.create(request.context, request.body)
        made = InviteMade(code, invite_view(record, self._clock()))
        return Response(made, status=201, headers=[(b"cache-control", b"no-store")])

    async def revoke_invite(self, request: Request) -> Response:
        await self._invites.revoke(request.context, request.parameters["invite"])
        return Response(status=204)

    async def claim(self, request: Request) -> Response:
        """Whoever guesses codes is braked like whoever guesses keys."""
        try:
            record, text = await self._invites.claim(request.body, request_id=request.request_id, address=request.client)
        except InviteNotFound:
            brake = self._guard.fail(request.client, "")
            if not isinstance(brake, Unauthenticated):
                raise brake from None
            raise
        return Response(KeyMade(key=text, record=key_view(record)), status=201, headers=[(b"cache-control", b"no-store")])

    async def get_platform_settings(self, _request: Request) -> Response:
        return Response(settings_view(self._tenant_settings, PLATFORM))

    async def change_platform_settings(self, request: Request) -> Response:
        await self._tenant_settings.change(request.context, PLATFORM, request.body)
        return Response(settings_view(self._tenant_settings, PLATFORM))

    async def list_audit(self, request: Request) -> Response:
        query: AuditQuery = request.query
        wanted = AuditFilter(
            since=_utc(query.since),
            until=_utc(query.until),
            action=query.action,
            actor=query.actor,
            target=query.target,
            request_id=query.requestId,
        )
        page = await self._audit.page(_audited_tenant(request), wanted, limit=query.limit, before=query.cursor)
        return Response(AuditList(entries=page.entries, scanned=page.scanned, next_cursor=page.next_cursor))


def _audited_tenant(request: Request) -> str | None:
    """Whose entries the caller asks for; None for everyone's, which is the platform's to see."""
    query: AuditQuery = request.query
    caller = request.caller
    if not caller.is_platform:
        if query.tenant not in (None, caller.tenant):
            raise Forbidden("only a platform key may read another tenant's entries")
        return caller.tenant
    return query.tenant or request.header(b"x-postroad-tenant")


def _utc(when: datetime | None) -> str | None:
    """As entries have it. There are none before 1970 or after the year 9999, so times beyond mean the same as these."""
    return None if when is None else rfc3339(min(max(0, int(when.timestamp() * 1000)), LATEST_MS))
