"""HTTP routes of queues: list, create, change, show, delete, purge, pause, resume."""

import asyncio
from collections.abc import Sequence

from postroad.api.queue_list import QueuePage, QueueQuery
from postroad.api.queue_purging import QueuePurgeRequest
from postroad.api.queues import (
    BackendCannot,
    BackendUnavailable,
    PauseRequest,
    Purged,
    Queue,
    QueueNotFound,
    QueueSettingsChange,
    StrictQueueSettings,
)
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import Conflict, EngineRefused, EngineUnavailable, OptionIgnored, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.kernel.json import invalid_field
from postroad.queues.browsing import QueueBrowser
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.listing import QueueListing
from postroad.queues.message_removal import MessageRemoval
from postroad.queues.new_queues import features_of
from postroad.queues.responses import queue_of
from postroad.queues.sample_history import LatestSamples
from postroad.queues.stats import QueueStatsReader
from postroad.regions.placement import Placements

_TAG = "Queues"


class QueueRoutes:
    def __init__(
        self,
        lifecycle: QueueLifecycle,
        browser: QueueBrowser,
        removal: MessageRemoval,
        stats: QueueStatsReader,
        placements: Placements,
        samples: LatestSamples,
    ) -> None:
        self._lifecycle, self._browser, self._removal = lifecycle, browser, removal
        self._stats, self._placements = stats, placements
        self._listing = QueueListing(lifecycle, stats, samples)

    def table(self) -> Sequence[Route]:
        one, errors = "/v1/queues/{queue}", (QueueNotFound, EngineUnavailable, BackendUnavailable)
        return [
            Route(
                "GET",
                "/v1/queues",
                self.list_queues,
                Scope.READ,
                "List queues",
                _TAG,
                query=QueueQuery,
                response=QueuePage,
                description="`total` is the number of queues that match the filters.",
                sdk="queues.list",
                sdk_page="queues.list_page",
                allows_admin=True,
            ),
            Route(
                "PUT",
                one,
                self.put_queue,
                Scope.ADMIN,
                "Create a queue or replace its settings",
                _TAG,
                body=StrictQueueSettings,
                response=Queue,
                other_statuses=(201,),
                errors=(PreconditionFailed, EngineUnavailable, BackendUnavailable, EngineRefused, OptionIgnored),
                description="Settings that are left out get their defaults. The status is 201 if the queue is new.",
                sdk="queues.put",
                cli=Command("queues put"),
            ),
            Route(
                "PATCH",
                one,
                self.change_queue,
                Scope.ADMIN,
                "Change settings of a queue",
                _TAG,
                body=QueueSettingsChange,
                response=Queue,
                errors=(QueueNotFound, PreconditionFailed, EngineUnavailable, BackendUnavailable, EngineRefused, OptionIgnored),
                description="Settings that are left out keep their value; null restores the default. Another `geo` moves the "
                "queue while it is in use: a task `move-placement` shows the progress.",
                sdk="queues.update",
            ),
            Route(
                "GET",
                one,
                self.get_queue,
                Scope.READ,
                "Show a queue and its stats",
                _TAG,
                response=Queue,
                errors=errors,
                sdk="queues.get",
                cli=Command("queues show"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                one,
                self.delete_queue,
                Scope.ADMIN,
                "Delete a queue with its messages and dead letters",
                _TAG,
                status=204,
                errors=(QueueNotFound, Conflict, EngineUnavailable, BackendUnavailable),
                sdk="queues.delete",
            ),
            Route(
                "POST",
                f"{one}/purge",
                self.purge,
                Scope.WRITE,
                "Delete all messages of a queue",
                _TAG,
                body=QueuePurgeRequest,
                response=Purged,
                errors=(*errors, BackendCannot),
                description="Leased and delayed messages are included; dead letters are kept. With a filter, only messages that "
                "match are removed, and their jobs are cancelled.",
                sdk="queues.purge",
                repeatable=True,
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{one}/pause",
                self.pause,
                Scope.WRITE,
                "Pause deliveries of a queue",
                _TAG,
                body=PauseRequest,
                empty_body=PauseRequest(),
                response=Queue,
                errors=errors,
                description="Pulls return no messages, on all workers, until the queue is resumed. "
                "Publishing and acknowledging continue.",
                sdk="queues.pause",
                cli=Command("queues pause", done="paused {queue}"),
                repeatable=True,
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{one}/resume",
                self.resume,
                Scope.WRITE,
                "Resume deliveries of a queue",
                _TAG,
                response=Queue,
                errors=errors,
                sdk="queues.resume",
                cli=Command("queues resume", done="resumed {queue}"),
                repeatable=True,
                allows_admin=True,
            ),
        ]

    async def list_queues(self, request: Request) -> Response:
        return Response(await self._listing.page(request.caller, request.query))

    async def put_queue(self, request: Request) -> Response:
        record, is_new = await self._lifecycle.put(request.context, request.parameters["queue"], request.body)
        return Response(queue_of(record), status=201 if is_new else 200)

    async def change_queue(self, request: Request) -> Response:
        record = await self._lifecycle.change(request.context, request.parameters["queue"], request.body)
        return Response(queue_of(record))

    async def get_queue(self, request: Request) -> Response:
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])
        stats, placement = await asyncio.gather(self._stats.stats(record, is_fresh=True), self._placements.status(record.stream))
        return Response(queue_of(record, stats, placement, features_of(record)))

    async def delete_queue(self, request: Request) -> Response:
        await self._lifecycle.delete(request.context, request.parameters["queue"])
        return Response(status=204)

    async def purge(self, request: Request) -> Response:
        body: QueuePurgeRequest = request.body
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])
        if body.filter.since is not None and body.filter.until is not None and body.filter.since > body.filter.until:
            raise invalid_field("$.filter.from", "must not be after `to`")
        if body.filter.is_empty:
            count = await self._browser.purge(request.context, record, is_dry_run=body.dry_run)
        elif body.dry_run:
            count = await self._removal.count(record, body.filter)
        else:
            count = await self._removal.purge(request.context, record, body.filter)
        return Response(Purged(count=count, dry_run=body.dry_run))

    async def pause(self, request: Request) -> Response:
        body: PauseRequest = request.body
        return await self._set_paused(request, is_paused=True, reason=body.reason)

    async def resume(self, request: Request) -> Response:
        return await self._set_paused(request, is_paused=False)

    async def _set_paused(self, request: Request, *, is_paused: bool, reason: str | None = None) -> Response:
        name = request.parameters["queue"]
        record = await self._lifecycle.set_paused(request.context, name, is_paused=is_paused, reason=reason)
        return Response(queue_of(record))
