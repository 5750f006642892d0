"""Calls of `client.tenants`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.access import Tenant, TenantPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class TenantsCalls:
    @pages
    def list(self, *, page_size: int = 100) -> Pages[Tenant]:
        """List tenants."""
        return Pages(call=Call(method="GET", path="/api/control/tenants", query={"limit": page_size}, response=TenantPage))

    @operation
    def create(self, tenant_id: str, *, description: str | None = None, auto_create_queues: bool = False) -> Call[Tenant]:
        """Create a tenant. Raises AlreadyExists."""
        body = body_of({"id": tenant_id, "description": description, "autoCreateQueues": auto_create_queues or None})
        return Call(method="POST", path="/api/control/tenants", body=body, response=Tenant, is_repeatable=False)

    @operation
    def get(self, tenant: Tenant | str) -> Call[Tenant]:
        """Show a tenant. Raises TenantNotFound."""
        return Call(method="GET", path=f"/api/control/tenants/{segment(tenant)}", response=Tenant)

    @operation
    def update(self, tenant: Tenant | str, *, description: str | None = None, enabled: bool | None = None) -> Call[Tenant]:
        """Update, disable or enable a tenant. Raises TenantNotFound, PreconditionFailed."""
        body = body_of({"description": description, "enabled": enabled})
        return Call(method="PATCH", path=f"/api/control/tenants/{segment(tenant)}", body=body, response=Tenant)

    @operation
    def delete(self, tenant: Tenant | str) -> Call[Tenant]:
        """Delete a tenant and all its resources.

        Its credentials are refused at once. Its state is `deleting` until all its resources are deleted. Raises
        TenantNotFound, PreconditionFailed.
        """
        return Call(method="DELETE", path=f"/api/control/tenants/{segment(tenant)}", response=Tenant)


class Tenants(TenantsCalls, SyncNamespace):
    pass


class AsyncTenants(TenantsCalls, AsyncNamespace):
    pass
