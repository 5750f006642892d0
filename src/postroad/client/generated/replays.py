"""Calls of `client.replays`. Generated from the route table by `make generate`; do not edit."""

from typing import Literal

from postroad.api.dead_letters import DeadLetterFilter
from postroad.api.replays import CommandSelection, Replay, ReplayPage, ReplayState
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class ReplaysCalls:
    @operation
    def create(
        self,
        reason: str,
        *,
        origin: Literal["archive", "dead-letters"] | None = None,
        selection: CommandSelection | None = None,
        queue: str | None = None,
        filter: DeadLetterFilter | None = None,
        limit: int | None = None,
        rate_per_second: int | None = None,
        dry_run: bool = False,
        keep_ids: bool | None = None,
    ) -> Call[Replay]:
        """Send archived commands or dead letters again.

        Each command is signed again and passes all checks, at most once for this replay. Commands of the archive are
        selected by the pipeline, and belong to the tenant's services; dead letters are those of the tenant's queue.
        Raises QueueNotFound, PreconditionFailed.
        """
        body = body_of(
            {
                "reason": reason,
                "from": origin,
                "selection": selection,
                "queue": queue,
                "filter": filter,
                "limit": limit,
                "ratePerSecond": rate_per_second,
                "dryRun": dry_run or None,
                "keepIds": keep_ids,
            }
        )
        return Call(method="POST", path="/v1/replays", body=body, response=Replay, is_repeatable=False)

    @pages
    def list(self, *, state: ReplayState | str | None = None, page_size: int = 100) -> Pages[Replay]:
        """List replays. Newest first. Replays are kept for 30 days."""
        return Pages(call=Call(method="GET", path="/v1/replays", query={"state": state, "limit": page_size}, response=ReplayPage))

    @operation
    def get(self, replay: Replay | str) -> Call[Replay]:
        """Show a replay and its counts. Raises ReplayNotFound."""
        return Call(method="GET", path=f"/v1/replays/{segment(replay)}", response=Replay)

    @operation
    def cancel(self, replay: Replay | str) -> Call[Replay]:
        """Cancel a replay.

        It stops soon; what is delivered stays delivered. A replay that has ended does not change. Raises ReplayNotFound.
        """
        return Call(method="DELETE", path=f"/v1/replays/{segment(replay)}", response=Replay)

    @operation
    def pause(self, replay: Replay | str) -> Call[Replay]:
        """Pause a replay. It stops soon and keeps its position. Raises ReplayNotFound, PreconditionFailed."""
        return Call(method="POST", path=f"/v1/replays/{segment(replay)}/pause", response=Replay)

    @operation
    def resume(self, replay: Replay | str) -> Call[Replay]:
        """Resume a replay. Also sends the commands that a dry run has selected. Raises ReplayNotFound, PreconditionFailed."""
        return Call(method="POST", path=f"/v1/replays/{segment(replay)}/resume", response=Replay)


class Replays(ReplaysCalls, SyncNamespace):
    pass


class AsyncReplays(ReplaysCalls, AsyncNamespace):
    pass
