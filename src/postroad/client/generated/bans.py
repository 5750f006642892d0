"""Calls of `client.bans`. Generated from the route table by `make generate`; do not edit."""

from typing import Literal

from postroad.api.command_limits import Ban, BanPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class BansCalls:
    @pages
    def list(
        self, *, source: str | None = None, kind: Literal["warm", "cold-only", "hard"] | None = None, page_size: int = 100
    ) -> Pages[Ban]:
        """List bans of the tenant's senders and on its routes. With a platform key: those of all tenants."""
        return Pages(
            call=Call(method="GET", path="/v1/bans", query={"source": source, "kind": kind, "limit": page_size}, response=BanPage)
        )

    @operation
    def create(
        self,
        source: str,
        kind: Literal["warm", "cold-only", "hard"],
        reason: str,
        *,
        target: str | None = None,
        command: str | None = None,
        duration_seconds: int | None = None,
    ) -> Call[Ban]:
        """Ban a sender.

        On a route of the tenant; with a platform key on any route, or on all of them. Every gateway follows within
        moments. A ban of the same kind of the same sender and route is replaced. Raises PreconditionFailed.
        """
        body = body_of(
            {
                "source": source,
                "kind": kind,
                "reason": reason,
                "target": target,
                "command": command,
                "duration_seconds": duration_seconds,
            }
        )
        return Call(method="POST", path="/v1/bans", body=body, response=Ban, is_repeatable=False)

    @operation
    def delete(self, ban: str, *, reason: str | None = None) -> Call[None]:
        """End a ban. By the owner of the route, or with a platform key. Raises BanNotFound."""
        return Call(method="DELETE", path=f"/v1/bans/{segment(ban)}", query={"reason": reason})


class Bans(BansCalls, SyncNamespace):
    pass


class AsyncBans(BansCalls, AsyncNamespace):
    pass
