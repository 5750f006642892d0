"""`client.tenants`: tenants of the installation. All calls need a platform key."""

from postroad.api.access import Tenant, TenantPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import given, segment

_TENANTS = "/api/control/tenants"


class TenantCalls:
    @pages
    def list(self, *, page_size: int = 100) -> Pages[Tenant]:
        """List tenants by id."""
        return Pages(call=Call(method="GET", path=_TENANTS, query={"limit": page_size}, response=TenantPage))

    @operation
    def create(self, tenant: str, *, description: str = "", auto_create_queues: bool = False) -> Call[Tenant]:
        """Create a tenant without keys; create keys with a client that names the tenant. Raises AlreadyExists."""
        body = {"id": tenant, "description": description, "autoCreateQueues": auto_create_queues}
        return Call(method="POST", path=_TENANTS, body=body, response=Tenant, is_repeatable=False)

    @operation
    def get(self, tenant: str) -> Call[Tenant]:
        """Show a tenant. Raises TenantNotFound."""
        return Call(method="GET", path=f"{_TENANTS}/{segment(tenant)}", response=Tenant)

    @operation
    def update(self, tenant: str, *, description: str | None = None, enabled: bool | None = None) -> Call[Tenant]:
        """Update, disable or enable a tenant. The credentials of a disabled tenant are refused.

        Raises TenantNotFound, PreconditionFailed.
        """
        body = given(description=description, enabled=enabled)
        return Call(method="PATCH", path=f"{_TENANTS}/{segment(tenant)}", body=body, response=Tenant)

    @operation
    def delete(self, tenant: str) -> Call[Tenant]:
        """Delete a tenant and all its resources. Its credentials are refused at once; its state is `deleting` until all its
        resources are deleted.

        Raises TenantNotFound, also if a retry finds it deleted, and PreconditionFailed for the default tenant.
        """
        return Call(method="DELETE", path=f"{_TENANTS}/{segment(tenant)}", response=Tenant)


class Tenants(TenantCalls, SyncNamespace):
    pass


class AsyncTenants(TenantCalls, AsyncNamespace):
    pass
