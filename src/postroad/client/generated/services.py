"""Calls of `client.services`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Sequence

from postroad.api.commands import EmitToken, Service, ServicePage, TenantConfig
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class ServicesCalls:
    @pages
    def list(self, *, page_size: int = 100) -> Pages[Service]:
        """List services."""
        return Pages(call=Call(method="GET", path="/v1/services", query={"limit": page_size}, response=ServicePage))

    @operation
    def put(
        self,
        service: Service | str,
        *,
        trusted_keys: Sequence[str] | None = None,
        description: str | None = None,
        contact: str | None = None,
    ) -> Call[Service]:
        """Register a service. Creates the service `<tenant>/<service>` with its first secret, or replaces its settings."""
        body = body_of({"trustedKeys": trusted_keys, "description": description, "contact": contact})
        return Call(method="PUT", path=f"/v1/services/{segment(service)}", body=body, response=Service)

    @operation
    def get(self, service: Service | str) -> Call[Service]:
        """Show a service. Raises ServiceNotFound."""
        return Call(method="GET", path=f"/v1/services/{segment(service)}", response=Service)

    @operation
    def delete(self, service: str) -> Call[None]:
        """Delete a service.

        Its tokens and secrets end. A service that has routes is not deleted. Raises ServiceNotFound, PreconditionFailed,
        Conflict.
        """
        return Call(method="DELETE", path=f"/v1/services/{segment(service)}")

    @operation
    def token(self, service: str, *, expires_in_seconds: int | None = None) -> Call[EmitToken]:
        """Get an emit token.

        For keys that the service trusts. The token sends commands of this service and nothing else. Raises
        ServiceNotFound, SourceRefused.
        """
        body = body_of({"expiresInSeconds": expires_in_seconds})
        return Call(method="POST", path=f"/v1/services/{segment(service)}/token", body=body, response=EmitToken)

    @operation
    def rotate(self, service: Service | str, *, overlap_seconds: int | None = None) -> Call[Service]:
        """Rotate the secret of a service.

        A new version becomes current; the previous one stays valid for the overlap, earlier ones end. Raises
        ServiceNotFound.
        """
        body = body_of({"overlapSeconds": overlap_seconds})
        return Call(
            method="POST",
            path=f"/v1/services/{segment(service)}/secrets/rotate",
            body=body,
            response=Service,
            is_repeatable=False,
        )

    @operation
    def config(self) -> Call[TenantConfig]:
        """Get the secrets of the services that trust this credential.

        Senders poll it every 12 hours. The response has secrets: it must not be cached.
        """
        return Call(method="GET", path="/v1/tenant-config", response=TenantConfig)


class Services(ServicesCalls, SyncNamespace):
    pass


class AsyncServices(ServicesCalls, AsyncNamespace):
    pass
