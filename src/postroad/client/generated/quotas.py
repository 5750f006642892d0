"""Calls of `client.quotas`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.command_limits import Quota, QuotaPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment, segments


class QuotasCalls:
    @pages
    def list(self, *, service: str | None = None, command: str | None = None, page_size: int = 100) -> Pages[Quota]:
        """List quotas of senders on the tenant's routes."""
        return Pages(
            call=Call(
                method="GET",
                path="/v1/quotas",
                query={"service": service, "command": command, "limit": page_size},
                response=QuotaPage,
            )
        )

    @operation
    def put(
        self, service: str, command: str, source: str, max: int, *, interval_seconds: int | None = None, burst: int | None = None
    ) -> Call[Quota]:
        """Set the quota of a sender.

        It applies while the sender is banned from the warm path. The sender is `<service>` of the own tenant, or
        `<tenant>/<service>`. Raises CommandRouteNotFound, PreconditionFailed.
        """
        body = body_of({"max": max, "interval_seconds": interval_seconds, "burst": burst})
        return Call(
            method="PUT", path=f"/v1/quotas/{segment(service)}/{segment(command)}/{segments(source)}", body=body, response=Quota
        )

    @operation
    def delete(self, service: str, command: str, source: str) -> Call[None]:
        """Delete the quota of a sender. Raises QuotaNotFound."""
        return Call(method="DELETE", path=f"/v1/quotas/{segment(service)}/{segment(command)}/{segments(source)}")


class Quotas(QuotasCalls, SyncNamespace):
    pass


class AsyncQuotas(QuotasCalls, AsyncNamespace):
    pass
