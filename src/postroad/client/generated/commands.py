"""Calls of `client.commands`. Generated from the route table by `make generate`; do not edit."""

from typing import Literal

from postroad.api.command_search import CommandPage, FoundCommand
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, moment


class CommandsCalls:
    @pages
    def find(
        self,
        *,
        command_id: str | None = None,
        source: str | None = None,
        target: str | None = None,
        command: str | None = None,
        outcome: Literal["delivered", "failed", "invalid", "duplicate"] | None = None,
        reason: str | None = None,
        replay: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        page_size: int = 50,
    ) -> Pages[FoundCommand]:
        """Find what happened to commands.

        Outcomes of commands of the tenant's services in the last 14 days, oldest first. Earlier ones than `availableFrom`
        are not stored any more. A search compares a limited number of outcomes; continue with `nextCursor`. Payloads are
        returned with `bodyMax` only. Raises InvalidParameter.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/v1/commands",
                query={
                    "id": command_id,
                    "source": source,
                    "target": target,
                    "command": command,
                    "outcome": outcome,
                    "reason": reason,
                    "replay": replay,
                    "from": moment(since),
                    "to": moment(until),
                    "bodyMax": body_max,
                    "limit": page_size,
                },
                response=CommandPage,
            )
        )

    @operation
    def find_page(
        self,
        *,
        command_id: str | None = None,
        source: str | None = None,
        target: str | None = None,
        command: str | None = None,
        outcome: Literal["delivered", "failed", "invalid", "duplicate"] | None = None,
        reason: str | None = None,
        replay: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        body_max: int | None = None,
        page_size: int = 50,
        cursor: str | None = None,
    ) -> Call[CommandPage]:
        """One page of `find`, with its other fields. `cursor` is the `next_cursor` of the previous page."""
        return Call(
            method="GET",
            path="/v1/commands",
            query={
                "id": command_id,
                "source": source,
                "target": target,
                "command": command,
                "outcome": outcome,
                "reason": reason,
                "replay": replay,
                "from": moment(since),
                "to": moment(until),
                "bodyMax": body_max,
                "limit": page_size,
                "cursor": cursor,
            },
            response=CommandPage,
        )


class Commands(CommandsCalls, SyncNamespace):
    pass


class AsyncCommands(CommandsCalls, AsyncNamespace):
    pass
