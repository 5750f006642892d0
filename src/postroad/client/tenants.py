"""`client.tenants`: the platform's tenants. All of it needs a platform key."""

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import given, segment
from postroad.client.shapes.access import Tenant, TenantPage

_TENANTS = "/api/control/tenants"


class TenantCalls:
    @pages
    def list(self, *, page_size: int = 100) -> Pages[Tenant]:
        """All tenants by name, fetched page by page as they are needed."""
        call: Call[TenantPage] = Call(method="GET", path=_TENANTS, query={"limit": page_size}, response=TenantPage)
        return Pages(call=call, items=lambda page: page.tenants, cursor=lambda page: page.next_cursor)

    @operation
    def create(self, tenant: str, *, description: str = "", auto_create_queues: bool = False) -> Call[Tenant]:
        """A tenant without any key: make one by a client that names the tenant. Raises AlreadyExists."""
        body = {"id": tenant, "description": description, "autoCreateQueues": auto_create_queues}
        return Call(method="POST", path=_TENANTS, body=body, response=Tenant, is_repeatable=False)

    @operation
    def get(self, tenant: str) -> Call[Tenant]:
        """Raises TenantNotFound."""
        return Call(method="GET", path=f"{_TENANTS}/{segment(tenant)}", response=Tenant)

    @operation
    def update(self, tenant: str, *, description: str | None = None, enabled: bool | None = None) -> Call[Tenant]:
        """Change what is given. Credentials of a tenant that is not enabled are refused. Raises TenantNotFound, NotNow."""
        body = given(description=description, enabled=enabled)
        return Call(method="PATCH", path=f"{_TENANTS}/{segment(tenant)}", body=body, response=Tenant)

    @operation
    def delete(self, tenant: str) -> Call[Tenant]:
        """Delete the tenant and all that it has. Its credentials stop at once; its state is `deleting` until all is gone.

        Raises NotNow for the first tenant, and TenantNotFound, also when a repeated try finds it gone already.
        """
        return Call(method="DELETE", path=f"{_TENANTS}/{segment(tenant)}", response=Tenant)


class Tenants(TenantCalls, SyncNamespace):
    pass


class AsyncTenants(TenantCalls, AsyncNamespace):
    pass
