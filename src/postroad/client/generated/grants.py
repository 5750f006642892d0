"""Calls of `client.grants`. Generated from the route table by `make generate`; do not edit."""

from typing import Literal

from postroad.api.commands import Grant, GrantPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, body_of, moment, segment, segments


class GrantsCalls:
    @pages
    def list(
        self, *, service: str | None = None, command: str | None = None, source: str | None = None, page_size: int = 100
    ) -> Pages[Grant]:
        """List grants of the tenant's routes."""
        return Pages(
            call=Call(
                method="GET",
                path="/v1/grants",
                query={"service": service, "command": command, "source": source, "limit": page_size},
                response=GrantPage,
            )
        )

    @operation
    def put(
        self,
        service: str,
        command: str,
        source: str,
        *,
        expires_at: Moment | None = None,
        sensitivity: Literal["critical", "moderate", "low"] | None = None,
    ) -> Call[Grant]:
        """Grant a command to a sender.

        The sender is `<service>` of the own tenant, `<tenant>/<service>`, or `<tenant>/*`. Raises CommandRouteNotFound,
        PreconditionFailed.
        """
        body = body_of({"expires_at": moment(expires_at), "sensitivity": sensitivity})
        return Call(
            method="PUT", path=f"/v1/grants/{segment(service)}/{segment(command)}/{segments(source)}", body=body, response=Grant
        )

    @operation
    def delete(self, service: str, command: str, source: str) -> Call[None]:
        """Revoke a grant.

        Every gateway refuses the sender's commands within moments. Raises CommandRouteNotFound, GrantNotFound.
        """
        return Call(method="DELETE", path=f"/v1/grants/{segment(service)}/{segment(command)}/{segments(source)}")


class Grants(GrantsCalls, SyncNamespace):
    pass


class AsyncGrants(GrantsCalls, AsyncNamespace):
    pass
