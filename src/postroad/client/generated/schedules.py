"""Calls of `client.schedules`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Mapping
from typing import Any, Literal

from postroad.api.queues import Published
from postroad.api.schedules import CatchUp, NextRuns, Schedule, SchedulePage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, body_of, moment, segment


class SchedulesCalls:
    @pages
    def list(self, *, queue: str | None = None, page_size: int = 100) -> Pages[Schedule]:
        """List schedules."""
        return Pages(
            call=Call(method="GET", path="/v1/schedules", query={"queue": queue, "limit": page_size}, response=SchedulePage)
        )

    @operation
    def put(
        self,
        schedule: Schedule | str,
        queue: str,
        *,
        cron: str | None = None,
        every_ms: int | None = None,
        time_zone: str | None = None,
        payload: Any | None = None,
        headers: Mapping[str, str] | None = None,
        priority: Literal["high", "normal", "low"] | None = None,
        catch_up: CatchUp | str | None = None,
        start_at: Moment | None = None,
        end_at: Moment | None = None,
    ) -> Call[Schedule]:
        """Create a schedule or replace its settings.

        Settings that are left out get their defaults. The status is 201 if the schedule is new. Equal settings change
        nothing. A change of the queue or of the times applies from now on. Raises QueueNotFound, TooLarge,
        InvalidParameter.
        """
        body = body_of(
            {
                "queue": queue,
                "cron": cron,
                "everyMs": every_ms,
                "timeZone": time_zone,
                "payload": payload,
                "headers": headers,
                "priority": priority,
                "catchUp": catch_up,
                "startAt": moment(start_at),
                "endAt": moment(end_at),
            }
        )
        return Call(method="PUT", path=f"/v1/schedules/{segment(schedule)}", body=body, response=Schedule)

    @operation
    def get(self, schedule: Schedule | str) -> Call[Schedule]:
        """Show a schedule. Raises ScheduleNotFound, InvalidParameter."""
        return Call(method="GET", path=f"/v1/schedules/{segment(schedule)}", response=Schedule)

    @operation
    def delete(self, schedule: str) -> Call[None]:
        """Delete a schedule. Messages that it has published stay in the queue. Raises ScheduleNotFound, InvalidParameter."""
        return Call(method="DELETE", path=f"/v1/schedules/{segment(schedule)}")

    @operation
    def pause(self, schedule: Schedule | str) -> Call[Schedule]:
        """Pause a schedule.

        Ticks until it is resumed are skipped, whatever its catch-up policy is. Raises ScheduleNotFound, InvalidParameter.
        """
        return Call(method="POST", path=f"/v1/schedules/{segment(schedule)}/pause", response=Schedule)

    @operation
    def resume(self, schedule: Schedule | str) -> Call[Schedule]:
        """Resume a schedule. Raises ScheduleNotFound, InvalidParameter."""
        return Call(method="POST", path=f"/v1/schedules/{segment(schedule)}/resume", response=Schedule)

    @operation
    def run(self, schedule: str) -> Call[Published]:
        """Publish a message of a schedule now.

        One message besides those of its ticks. Works for a paused schedule, too. Raises ScheduleNotFound,
        InvalidParameter, QueueNotFound, SchemaMismatch, SchemaTooSlow, TooLarge.
        """
        return Call(method="POST", path=f"/v1/schedules/{segment(schedule)}/run", response=Published, is_repeatable=False)

    @operation
    def next(self, schedule: str, *, count: int | None = None) -> Call[NextRuns]:
        """Show the next runs of a schedule. Raises ScheduleNotFound, InvalidParameter."""
        return Call(method="GET", path=f"/v1/schedules/{segment(schedule)}/next", query={"count": count}, response=NextRuns)


class Schedules(SchedulesCalls, SyncNamespace):
    pass


class AsyncSchedules(SchedulesCalls, AsyncNamespace):
    pass
