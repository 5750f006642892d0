"""HTTP routes of queues: list, create, change, show, delete, purge, pause, resume."""

from collections.abc import Sequence

from postroad.api.queue_list import QueuePage, QueueQuery
from postroad.api.queues import (
    Purged,
    PurgeRequest,
    Queue,
    QueueNotFound,
    QueueSettingsChange,
    StrictQueueSettings,
)
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import Conflict, EngineRefused, EngineUnavailable, OptionIgnored
from postroad.kernel.identity import Scope
from postroad.queues.browsing import QueueBrowser
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.listing import QueueListing
from postroad.queues.records import queue_of
from postroad.queues.stats import QueueStatsReader

_TAG = "Queues"


class QueueRoutes:
    def __init__(self, lifecycle: QueueLifecycle, browser: QueueBrowser, stats: QueueStatsReader) -> None:
        self._lifecycle, self._browser, self._stats = lifecycle, browser, stats
        self._listing = QueueListing(lifecycle, stats)

    def table(self) -> Sequence[Route]:
        one, errors = "/v1/queues/{queue}", (QueueNotFound, EngineUnavailable)
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
                errors=(EngineUnavailable, EngineRefused, OptionIgnored),
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
                errors=(QueueNotFound, EngineUnavailable, EngineRefused, OptionIgnored),
                description="Settings that are left out keep their value; null restores the default.",
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
                errors=(QueueNotFound, Conflict, EngineUnavailable),
                sdk="queues.delete",
            ),
            Route(
                "POST",
                f"{one}/purge",
                self.purge,
                Scope.WRITE,
                "Delete all messages of a queue",
                _TAG,
                body=PurgeRequest,
                response=Purged,
                errors=errors,
                description="Leased and delayed messages are included; dead letters are kept.",
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
        return Response(queue_of(record, await self._stats.stats(record, is_fresh=True)))

    async def delete_queue(self, request: Request) -> Response:
        await self._lifecycle.delete(request.context, request.parameters["queue"])
        return Response(status=204)

    async def purge(self, request: Request) -> Response:
        body: PurgeRequest = request.body
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])
        count = await self._browser.purge(request.context, record, is_dry_run=body.dry_run)
        return Response(Purged(count=count, dry_run=body.dry_run))

    async def pause(self, request: Request) -> Response:
        return await self._set_paused(request, is_paused=True)

    async def resume(self, request: Request) -> Response:
        return await self._set_paused(request, is_paused=False)

    async def _set_paused(self, request: Request, *, is_paused: bool) -> Response:
        record = await self._lifecycle.set_paused(request.context, request.parameters["queue"], is_paused=is_paused)
        return Response(queue_of(record))
