"""HTTP routes of services: registration, emit tokens, secrets, configuration of senders."""

from collections.abc import Sequence

from postroad.access.routes import NO_STORE
from postroad.api.commands import (
    EmitToken,
    NewEmitToken,
    SecretRotation,
    Service,
    ServiceDefinition,
    ServiceNotFound,
    ServicePage,
    ServiceQuery,
    SourceRefused,
    TenantConfig,
)
from postroad.commands.emit_tokens import EmitTokens
from postroad.commands.records import ServiceRecord, service_of
from postroad.commands.service_registry import ServiceRegistry
from postroad.governance.audit import Audit
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import Conflict, EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope

_TAG = "Commands"
_ONE = "/v1/services/{service}"


class ServiceRoutes:
    def __init__(self, services: ServiceRegistry, tokens: EmitTokens, audit: Audit) -> None:
        self._services, self._tokens, self._audit = services, tokens, audit

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/services",
                self.list_services,
                Scope.READ,
                "List services",
                _TAG,
                query=ServiceQuery,
                response=ServicePage,
                sdk="services.list",
                cli=Command("services list", ("name", "source", "trusted_keys", "contact", "created_at")),
                allows_admin=True,
            ),
            Route(
                "PUT",
                _ONE,
                self.put_service,
                Scope.ADMIN,
                "Register a service",
                _TAG,
                body=ServiceDefinition,
                response=Service,
                other_statuses=(201,),
                errors=(EngineUnavailable,),
                description="Creates the service `<tenant>/<service>` with its first secret, or replaces its settings.",
                sdk="services.put",
                cli=Command("services put"),
            ),
            Route(
                "GET",
                _ONE,
                self.get_service,
                Scope.READ,
                "Show a service",
                _TAG,
                response=Service,
                errors=(ServiceNotFound, EngineUnavailable),
                sdk="services.get",
                cli=Command("services show"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_service,
                Scope.ADMIN,
                "Delete a service",
                _TAG,
                status=204,
                errors=(ServiceNotFound, PreconditionFailed, Conflict, EngineUnavailable),
                description="Its tokens and secrets end. A service that has routes is not deleted.",
                sdk="services.delete",
                cli=Command("services delete", confirm="Delete the service {service}?", done="deleted the service {service}"),
            ),
            Route(
                "POST",
                f"{_ONE}/token",
                self.create_emit_token,
                Scope.PUBLISH,
                "Get an emit token",
                _TAG,
                body=NewEmitToken,
                empty_body=NewEmitToken(),
                response=EmitToken,
                status=201,
                errors=(ServiceNotFound, SourceRefused, EngineUnavailable),
                description="For keys that the service trusts. The token sends commands of this service and nothing else.",
                sdk="services.token",
                cli=Command("services token", shown_once="token"),
                repeatable=True,
            ),
            Route(
                "POST",
                f"{_ONE}/secrets/rotate",
                self.rotate_service_secret,
                Scope.ADMIN,
                "Rotate the secret of a service",
                _TAG,
                body=SecretRotation,
                empty_body=SecretRotation(),
                response=Service,
                errors=(ServiceNotFound, EngineUnavailable),
                description="A new version becomes current; the previous one stays valid for the overlap, earlier ones end.",
                sdk="services.rotate",
                cli=Command("services rotate"),
            ),
            Route(
                "GET",
                "/v1/tenant-config",
                self.get_tenant_config,
                Scope.PUBLISH,
                "Get the secrets of the services that trust this credential",
                _TAG,
                response=TenantConfig,
                errors=(EngineUnavailable,),
                description="Senders poll it every 12 hours. The response has secrets: it must not be cached.",
                sdk="services.config",
                accepts_emit_token=True,
            ),
        ]

    async def list_services(self, request: Request) -> Response:
        query: ServiceQuery = request.query
        page = self._services.page(request.caller, query.limit, query.cursor)
        return Response(ServicePage(items=[self._shown(one) for one in page.items], next_cursor=page.next_cursor))

    async def put_service(self, request: Request) -> Response:
        record, is_new = await self._services.put(request.context, request.parameters["service"], request.body)
        return Response(self._shown(record), status=201 if is_new else 200)

    async def get_service(self, request: Request) -> Response:
        return Response(self._shown(await self._services.find(request.caller.tenant, request.parameters["service"])))

    async def delete_service(self, request: Request) -> Response:
        await self._services.delete(request.context, request.parameters["service"])
        return Response(status=204)

    async def create_emit_token(self, request: Request) -> Response:
        wanted: NewEmitToken = request.body
        record = await self._services.find(request.caller.tenant, request.parameters["service"])
        token, expires_at_ms = self._tokens.issue(request.caller, record, wanted.expires_in_seconds)
        await self._audit.issued_tokens.record(request.context, f"service/{record.name}")
        issued = EmitToken(token=token, source=record.source, expires_at=rfc3339(expires_at_ms))
        return Response(issued, status=201, headers=[NO_STORE])

    async def rotate_service_secret(self, request: Request) -> Response:
        rotation: SecretRotation = request.body
        name = request.parameters["service"]
        return Response(self._shown(await self._services.rotate(request.context, name, rotation.overlap_seconds)))

    async def get_tenant_config(self, request: Request) -> Response:
        return Response(await self._services.config(request.caller), headers=[NO_STORE])

    def _shown(self, record: ServiceRecord) -> Service:
        return service_of(record, self._services.polled_at_ms(record.tenant, record.name))
