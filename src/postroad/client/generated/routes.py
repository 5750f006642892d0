"""Calls of `client.routes`. Generated from the route table by `make generate`; do not edit."""

from typing import Literal

from postroad.api.command_limits import Fairness, RateLimit
from postroad.api.commands import CommandRoute, CommandRoutePage, RegistryChange, RegistryChangePage, RouteTestResult
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, body_of, moment, segment


class RoutesCalls:
    @pages
    def list(self, *, service: str | None = None, page_size: int = 100) -> Pages[CommandRoute]:
        """List command routes."""
        return Pages(
            call=Call(method="GET", path="/v1/routes", query={"service": service, "limit": page_size}, response=CommandRoutePage)
        )

    @operation
    def put(
        self,
        service: str,
        command: str,
        queue: str,
        *,
        sensitivity: Literal["critical", "moderate", "low"] | None = None,
        dedupe_mode: Literal["none", "strict"] | None = None,
        dedupe_ttl_seconds: int | None = None,
        rate_limit: RateLimit | None = None,
        fairness: Fairness | None = None,
        expected_drain_seconds: int | None = None,
        acl_check: Literal["cached", "sync"] | None = None,
        signature: Literal["optional", "required"] | None = None,
        archive: bool | None = None,
        expires_at: Moment | None = None,
        dry_run: bool = False,
    ) -> Call[CommandRoute]:
        """Register a command route.

        Commands of this name for this service go to the queue, from senders that have a grant. Grants are kept when a
        route is replaced. Raises ServiceNotFound, QueueNotFound, PreconditionFailed.
        """
        body = body_of(
            {
                "queue": queue,
                "sensitivity": sensitivity,
                "dedupe_mode": dedupe_mode,
                "dedupe_ttl_seconds": dedupe_ttl_seconds,
                "rate_limit": rate_limit,
                "fairness": fairness,
                "expected_drain_seconds": expected_drain_seconds,
                "acl_check": acl_check,
                "signature": signature,
                "archive": archive,
                "expires_at": moment(expires_at),
            }
        )
        return Call(
            method="PUT",
            path=f"/v1/routes/{segment(service)}/{segment(command)}",
            query={"dry_run": dry_run or None},
            body=body,
            response=CommandRoute,
        )

    @operation
    def get(self, service: str, command: str) -> Call[CommandRoute]:
        """Show a command route. Raises CommandRouteNotFound."""
        return Call(method="GET", path=f"/v1/routes/{segment(service)}/{segment(command)}", response=CommandRoute)

    @operation
    def delete(self, service: str, command: str) -> Call[None]:
        """Delete a command route with its grants and quotas. Raises CommandRouteNotFound, Conflict."""
        return Call(method="DELETE", path=f"/v1/routes/{segment(service)}/{segment(command)}")

    @operation
    def test(self, service: str, command: str, source: str, *, is_signed: bool = False) -> Call[RouteTestResult]:
        """Test a command route for a sender.

        A dry run: the outcome of each check. Nothing is delivered and no event recorded. Raises CommandRouteNotFound.
        """
        body = body_of({"source": source, "signed": is_signed or None})
        return Call(
            method="POST", path=f"/v1/routes/{segment(service)}/{segment(command)}/test", body=body, response=RouteTestResult
        )

    @pages
    def changes(self, *, since: Moment | None = None, until: Moment | None = None, page_size: int = 100) -> Pages[RegistryChange]:
        """List changes of services, routes and grants.

        Newest first, from the audit log. `nextCursor` continues, also after a page without changes.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/registry/changes",
                query={"from": moment(since), "to": moment(until), "limit": page_size},
                response=RegistryChangePage,
            )
        )


class Routes(RoutesCalls, SyncNamespace):
    pass


class AsyncRoutes(RoutesCalls, AsyncNamespace):
    pass
