"""HTTP routes of tenants and invites."""

from collections.abc import Sequence

from postroad.access.invites import Invites
from postroad.access.login_throttle import LoginThrottle
from postroad.access.records import invite_of, tenant_of
from postroad.access.routes import NO_STORE, issued_key
from postroad.access.tenants import Tenants
from postroad.api.access import (
    InviteClaim,
    InviteEnded,
    InviteNotFound,
    InvitePage,
    InviteQuery,
    IssuedInvite,
    IssuedKey,
    KeyRequired,
    NewInvite,
    NewTenant,
    Tenant,
    TenantChange,
    TenantNotFound,
    TenantPage,
    TenantQuery,
)
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.clock import Clock
from postroad.kernel.errors import AlreadyExists, EngineUnavailable, PreconditionFailed, RateLimited
from postroad.kernel.identity import RouteRequirement


class PlatformRoutes:
    def __init__(self, tenants: Tenants, invites: Invites, throttle: LoginThrottle, clock: Clock) -> None:
        self._tenants, self._invites, self._throttle, self._clock = tenants, invites, throttle, clock

    def table(self) -> Sequence[Route]:
        return [*self._tenant_routes(), *self._invite_routes()]

    def _tenant_routes(self) -> list[Route]:
        tenants, one = "/api/control/tenants", "/api/control/tenants/{tenant}"
        tag, need = "Tenants", RouteRequirement.PLATFORM
        return [
            Route(
                "GET",
                tenants,
                self.list_tenants,
                need,
                "List tenants",
                tag,
                query=TenantQuery,
                response=TenantPage,
                sdk="tenants.list",
                cli=Command("tenants list", ("id", "state", "description", "created_at")),
            ),
            Route(
                "POST",
                tenants,
                self.create_tenant,
                need,
                "Create a tenant",
                tag,
                body=NewTenant,
                response=Tenant,
                status=201,
                errors=(AlreadyExists, EngineUnavailable),
                sdk="tenants.create",
                cli=Command("tenants create"),
            ),
            Route(
                "GET",
                one,
                self.get_tenant,
                need,
                "Show a tenant",
                tag,
                response=Tenant,
                errors=(TenantNotFound,),
                sdk="tenants.get",
                cli=Command("tenants show"),
            ),
            Route(
                "PATCH",
                one,
                self.change_tenant,
                need,
                "Update, disable or enable a tenant",
                tag,
                body=TenantChange,
                response=Tenant,
                errors=(TenantNotFound, PreconditionFailed, EngineUnavailable),
                sdk="tenants.update",
                cli=Command("tenants update"),
            ),
            Route(
                "DELETE",
                one,
                self.delete_tenant,
                need,
                "Delete a tenant and all its resources",
                tag,
                response=Tenant,
                status=202,
                errors=(TenantNotFound, PreconditionFailed, EngineUnavailable),
                description="Its credentials are refused at once. Its state is `deleting` until all its resources are deleted.",
                sdk="tenants.delete",
            ),
        ]

    def _invite_routes(self) -> list[Route]:
        invites, tag, need = "/api/control/invites", "Invites", RouteRequirement.PLATFORM
        return [
            Route(
                "GET",
                invites,
                self.list_invites,
                need,
                "List invites",
                tag,
                query=InviteQuery,
                response=InvitePage,
                sdk="invites.list",
                cli=Command("invites list", ("id", "state", "tenant", "claimed_tenant", "expires_at", "claimed_at", "note")),
            ),
            Route(
                "POST",
                invites,
                self.create_invite,
                need,
                "Create an invite",
                tag,
                body=NewInvite,
                response=IssuedInvite,
                status=201,
                errors=(AlreadyExists, KeyRequired, EngineUnavailable),
                description="Its code creates one tenant and its first key, once. The code is shown once.",
                sdk="invites.create",
                cli=Command("invites create", shown_once="code", options=(("expires_in_seconds", "expires-in"),)),
            ),
            Route(
                "DELETE",
                f"{invites}/{{invite}}",
                self.revoke_invite,
                need,
                "Revoke an invite",
                tag,
                status=204,
                errors=(InviteNotFound, EngineUnavailable),
                sdk="invites.revoke",
                cli=Command("invites revoke", confirm="Revoke the invite {invite}?", done="revoked the invite {invite}"),
            ),
            Route(
                "POST",
                "/api/control/claim",
                self.claim,
                None,
                "Claim an invite",
                tag,
                body=InviteClaim,
                response=IssuedKey,
                status=201,
                errors=(InviteNotFound, InviteEnded, AlreadyExists, RateLimited, EngineUnavailable),
                description="Creates the tenant and its first key. The text of the key is shown once.",
                sdk="invites.claim",
            ),
        ]

    async def list_tenants(self, request: Request) -> Response:
        query: TenantQuery = request.query
        records, cursor = self._tenants.page(query.limit, query.cursor)
        return Response(TenantPage(items=[tenant_of(record) for record in records], next_cursor=cursor))

    async def create_tenant(self, request: Request) -> Response:
        return Response(tenant_of(await self._tenants.create(request.context, request.body)), status=201)

    async def get_tenant(self, request: Request) -> Response:
        return Response(tenant_of(await self._tenants.find(request.parameters["tenant"])))

    async def change_tenant(self, request: Request) -> Response:
        return Response(tenant_of(await self._tenants.change(request.context, request.parameters["tenant"], request.body)))

    async def delete_tenant(self, request: Request) -> Response:
        return Response(tenant_of(await self._tenants.delete(request.context, request.parameters["tenant"])), status=202)

    async def list_invites(self, request: Request) -> Response:
        query: InviteQuery = request.query
        records, cursor = self._invites.page(query.limit, query.cursor)
        now = self._clock()
        return Response(InvitePage(items=[invite_of(record, now) for record in records], next_cursor=cursor))

    async def create_invite(self, request: Request) -> Response:
        record, code = await self._invites.create(request.context, request.body)
        issued = IssuedInvite(code=code, invite=invite_of(record, self._clock()))
        return Response(issued, status=201, headers=[NO_STORE])

    async def revoke_invite(self, request: Request) -> Response:
        await self._invites.revoke(request.context, request.parameters["invite"])
        return Response(status=204)

    async def claim(self, request: Request) -> Response:
        """Unknown codes are throttled like unknown keys."""
        try:
            record, text = await self._invites.claim(request.body, request_id=request.request_id, address=request.client)
        except InviteNotFound:
            failure = self._throttle.record_failure(request.client, "")
            if isinstance(failure, RateLimited):
                raise failure from None
            raise
        return issued_key(record, text, status=201)
