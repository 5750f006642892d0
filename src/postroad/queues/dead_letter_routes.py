"""HTTP routes of dead letters: list, show, delete, redrive, purge."""

from collections.abc import Sequence

import msgspec

from postroad.api.dead_letters import (
    DeadGroups,
    DeadLetterFilter,
    DeadLetterPurgeRequest,
    DeadLetterQuery,
    DeadMessage,
    DeadPage,
    MoveRequest,
    Redriven,
    RedriveRequest,
)
from postroad.api.queues import BODY_MAX, MessageNotFound, Purged, QueueNotFound
from postroad.api.tasks import Task
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.kernel.json import invalid_field
from postroad.queues.dead_letter_groups import groups_of
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.message_moves import MessageMover
from postroad.queues.records import QueueRecord
from postroad.queues.redrive import Redriver
from postroad.queues.responses import dead_message_of
from postroad.tasks.rules import task_of

_TAG = "Dead letters"


class DeadLetterRoutes:
    def __init__(self, lifecycle: QueueLifecycle, dead_letters: DeadLetters, redriver: Redriver, mover: MessageMover) -> None:
        self._lifecycle, self._dead_letters, self._redriver, self._mover = lifecycle, dead_letters, redriver, mover

    def table(self) -> Sequence[Route]:
        dlq, errors = "/v1/queues/{queue}/dlq", (QueueNotFound, EngineUnavailable)
        return [
            Route(
                "GET",
                dlq,
                self.list_dead_letters,
                Scope.READ,
                "List dead letters",
                _TAG,
                query=DeadLetterQuery,
                response=DeadPage | DeadGroups,
                errors=errors,
                description="Oldest first, or with `order=newest` newest first; or counted by cause with `groupBy=error`. "
                "One request searches some thousands of dead letters; `nextCursor` continues the search.",
                allows_admin=True,
            ),
            Route(
                "GET",
                f"{dlq}/{{message}}",
                self.get_dead_letter,
                Scope.READ,
                "Show a dead letter with its payload",
                _TAG,
                response=DeadMessage,
                errors=(MessageNotFound, *errors),
                sdk="queues.dead_letters.get",
                cli=Command("queues dlq show"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                f"{dlq}/{{message}}",
                self.delete_dead_letter,
                Scope.WRITE,
                "Delete a dead letter",
                _TAG,
                status=204,
                errors=(MessageNotFound, *errors),
                sdk="queues.dead_letters.delete",
                cli=Command(
                    "queues dlq delete", confirm="Delete the dead letter {message} of {queue}?", done="deleted {message}"
                ),
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{dlq}/redrive",
                self.redrive_dead_letters,
                Scope.WRITE,
                "Move dead letters back to a queue",
                _TAG,
                body=RedriveRequest,
                response=Redriven,
                status=202,
                other_statuses=(200,),
                errors=(PreconditionFailed, *errors),
                description="Starts a task that moves them at the given rate; see /v1/tasks. "
                "One redrive per queue is active at a time. The status of a dry run is 200.",
                allows_admin=True,
            ),
            Route(
                "POST",
                "/v1/queues/{queue}/move",
                self.move_messages,
                Scope.WRITE,
                "Move the messages of a queue to another one",
                _TAG,
                body=MoveRequest,
                response=Task,
                status=202,
                errors=(PreconditionFailed, *errors),
                description="Starts a task that consumes the queue at the given rate; see /v1/tasks. Without `to`, messages of "
                "a dead-letter queue return to the queues that they come from. One move per queue is active at a time.",
                sdk="queues.move",
                cli=Command("queues move"),
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{dlq}/purge",
                self.purge_dead_letters,
                Scope.WRITE,
                "Delete dead letters",
                _TAG,
                body=DeadLetterPurgeRequest,
                response=Purged,
                errors=errors,
                allows_admin=True,
            ),
        ]

    async def list_dead_letters(self, request: Request) -> Response:
        query: DeadLetterQuery = request.query
        record = await self._queue(request)
        total = await self._dead_letters.count(record)
        wanted = msgspec.convert(query, DeadLetterFilter, from_attributes=True)
        if query.group_by is not None:
            grouped = await self._dead_letters.grouped(record, wanted, query.cursor or 1, query.group_by)
            groups, others, histogram = groups_of(grouped.items)
            return Response(
                DeadGroups(
                    groups=groups,
                    others=others,
                    histogram=histogram,
                    next_cursor=grouped.next_cursor,
                    scanned=grouped.scanned,
                    matched=len(grouped.items),
                    total=total,
                )
            )
        found = await self._dead_letters.page(
            record,
            wanted,
            limit=query.limit,
            from_sequence=query.cursor or 1,
            before_sequence=query.cursor,
            is_newest_first=query.order == "newest",
        )
        page = DeadPage(
            items=[dead_message_of(one.letter, one.message, query.body_max, one.sequence) for one in found.items],
            next_cursor=found.next_cursor,
            scanned=found.scanned,
            matched=len(found.items),
            total=total,
        )
        return Response(page, list_field="items")

    async def get_dead_letter(self, request: Request) -> Response:
        found = await self._dead_letters.find(await self._queue(request), request.parameters["message"])
        return Response(dead_message_of(found.letter, found.message, BODY_MAX, found.sequence))

    async def delete_dead_letter(self, request: Request) -> Response:
        await self._dead_letters.delete(request.context, await self._queue(request), request.parameters["message"])
        return Response(status=204)

    async def redrive_dead_letters(self, request: Request) -> Response:
        body: RedriveRequest = request.body
        _check_range(body.filter)
        count, task = await self._redriver.start(request.context, request.parameters["queue"], body)
        return Response(Redriven(count=count, task=task_of(task) if task else None), status=202 if task else 200)

    async def move_messages(self, request: Request) -> Response:
        return Response(task_of(await self._mover.start(request.context, request.parameters["queue"], request.body)), status=202)

    async def purge_dead_letters(self, request: Request) -> Response:
        body: DeadLetterPurgeRequest = request.body
        _check_range(body.filter)
        record = await self._queue(request)
        count = await self._dead_letters.purge(request.context, record, body.filter, is_dry_run=body.dry_run)
        return Response(Purged(count=count, dry_run=body.dry_run))

    async def _queue(self, request: Request) -> QueueRecord:
        return await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])


def _check_range(wanted: DeadLetterFilter) -> None:
    if wanted.since is not None and wanted.until is not None and wanted.since > wanted.until:
        raise invalid_field("$.filter.from", "must not be after `to`")
