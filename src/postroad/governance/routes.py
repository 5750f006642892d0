"""HTTP routes of tenant settings and the audit log."""

from collections.abc import Sequence
from datetime import datetime

from postroad.api.governance import AuditPage, AuditQuery, AuditVerification, EffectiveSettings, TenantSettingsChange
from postroad.crypto.position_encryption import PositionCipher, PositionInvalid
from postroad.governance.audit import Audit, AuditFilter
from postroad.governance.audit_verifier import AuditVerifier
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.clock import LATEST_MS, rfc3339
from postroad.kernel.errors import EngineUnavailable, Forbidden, InvalidParameter
from postroad.kernel.event import PLATFORM
from postroad.kernel.identity import RouteRequirement, Scope


class GovernanceRoutes:
    def __init__(
        self, tenant_settings: TenantSettingsStore, audit: Audit, verifier: AuditVerifier, positions: PositionCipher
    ) -> None:
        self._tenant_settings, self._audit, self._verifier = tenant_settings, audit, verifier
        self._position_cipher = positions

    def table(self) -> Sequence[Route]:
        own, platform, tag = "/v1/admin/settings", "/api/control/settings", "Settings"
        need = RouteRequirement.PLATFORM
        return [
            Route("GET", own, self.get_settings, Scope.ADMIN, "Show the tenant's settings", tag, response=EffectiveSettings),
            Route(
                "POST",
                own,
                self.change_settings,
                Scope.ADMIN,
                "Change the tenant's settings",
                tag,
                body=TenantSettingsChange,
                response=EffectiveSettings,
                errors=(EngineUnavailable,),
                description="Takes effect on every gateway in less than a second. null restores the default.",
            ),
            Route("GET", platform, self.get_platform_settings, need, "Show the defaults", tag, response=EffectiveSettings),
            Route(
                "POST",
                platform,
                self.change_platform_settings,
                need,
                "Change the defaults",
                tag,
                body=TenantSettingsChange,
                response=EffectiveSettings,
                errors=(EngineUnavailable,),
                description="Defaults of tenants that have not set their own value. null restores the value of the environment.",
            ),
            Route(
                "GET",
                "/api/control/audit",
                self.list_audit,
                Scope.ADMIN,
                "List audit entries",
                "Audit",
                query=AuditQuery,
                response=AuditPage,
                errors=(EngineUnavailable,),
                description="Newest first. An admin key of a tenant sees the tenant's entries, a platform key all entries.",
                sdk="audit.list",
            ),
            Route(
                "GET",
                "/api/control/audit/verification",
                self.verify_audit,
                need,
                "Verify the audit log",
                "Audit",
                response=AuditVerification,
                errors=(EngineUnavailable,),
                description=(
                    "Compares all entries with the signed checkpoints, and reports entries that were removed or altered in the "
                    "engine. Reads the whole log."
                ),
                sdk="audit.verify",
            ),
        ]

    async def get_settings(self, request: Request) -> Response:
        return self._settings(request.caller.tenant)

    async def change_settings(self, request: Request) -> Response:
        await self._tenant_settings.change(request.context, request.caller.tenant, request.body)
        return self._settings(request.caller.tenant)

    async def get_platform_settings(self, _request: Request) -> Response:
        return self._settings(PLATFORM)

    async def change_platform_settings(self, request: Request) -> Response:
        await self._tenant_settings.change(request.context, PLATFORM, request.body)
        return self._settings(PLATFORM)

    def _settings(self, tenant: str) -> Response:
        return Response(EffectiveSettings(settings=self._tenant_settings.of(tenant), chosen=self._tenant_settings.chosen(tenant)))

    async def list_audit(self, request: Request) -> Response:
        query: AuditQuery = request.query
        wanted = AuditFilter(
            since=_utc(query.since),
            until=_utc(query.until),
            action=query.action,
            actor=query.actor,
            target=query.target,
            request_id=query.request_id,
        )
        tenant = _audited_tenant(request)
        found = await self._audit.page(tenant, wanted, limit=query.limit, before=self._position(tenant, query.cursor))
        cursor = None if found.before is None else self._position_cipher.encrypt(tenant or "", found.before)
        return Response(AuditPage(items=found.entries, next_cursor=cursor, scanned=found.scanned))

    async def verify_audit(self, _request: Request) -> Response:
        return Response(await self._verifier.verify())

    def _position(self, tenant: str | None, cursor: str | None) -> int | None:
        if cursor is None:
            return None
        try:
            [position] = self._position_cipher.decrypt(tenant or "", cursor)
        except PositionInvalid as exc:
            raise InvalidParameter("the cursor was not returned by this list") from exc
        return position


def _audited_tenant(request: Request) -> str | None:
    """The tenant whose entries are listed; None for all, which needs a platform key. Raises Forbidden."""
    query: AuditQuery = request.query
    caller = request.caller
    if not caller.is_platform:
        if query.tenant not in (None, caller.tenant):
            raise Forbidden("only a platform key may read the entries of another tenant")
        return caller.tenant
    return query.tenant or request.header(b"x-postroad-tenant")


def _utc(when: datetime | None) -> str | None:
    """In the format of entries, limited to the years 1970 to 9999, which is the range of their times."""
    return None if when is None else rfc3339(min(max(0, int(when.timestamp() * 1000)), LATEST_MS))
