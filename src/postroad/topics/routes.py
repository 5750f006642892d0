"""HTTP routes of topics: list, create, show, change, delete, purge."""

import asyncio
from collections.abc import Sequence

import msgspec

from postroad.api.queues import Purged
from postroad.api.topics import (
    DeleteTopicQuery,
    PurgeTopicRequest,
    StrictTopicSettings,
    Topic,
    TopicInUse,
    TopicNotFound,
    TopicPage,
    TopicQuery,
    TopicSettingsChange,
    TopicStats,
)
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.jetstream.process_counts import ProcessCounts
from postroad.kernel.errors import Conflict, EngineRefused, EngineUnavailable, OptionIgnored
from postroad.kernel.identity import Scope
from postroad.kernel.json import at_field
from postroad.regions.placement import Placements
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.reading import TopicReader
from postroad.topics.records import TopicRecord, topic_of
from postroad.topics.rules import check_pattern

_TAG = "Topics"
_ONE = "/v1/topics/{topic}"
_COLUMNS = ("name", "stats.messages", "stats.bytes", "stats.last_sequence", "settings.retention_ms", "created_at")
_STATS_CONCURRENCY = 32


class TopicRoutes:
    def __init__(
        self, lifecycle: TopicLifecycle, reader: TopicReader, connections: ProcessCounts, placements: Placements
    ) -> None:
        self._lifecycle, self._reader, self._connections, self._placements = lifecycle, reader, connections, placements
        self._stats_slots = asyncio.Semaphore(_STATS_CONCURRENCY)

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/topics",
                self.list_topics,
                Scope.READ,
                "List topics",
                _TAG,
                query=TopicQuery,
                response=TopicPage,
                sdk="topics.list",
                allows_admin=True,
            ),
            Route(
                "PUT",
                _ONE,
                self.put_topic,
                Scope.ADMIN,
                "Create a topic or replace its settings",
                _TAG,
                body=StrictTopicSettings,
                response=Topic,
                other_statuses=(201,),
                errors=(EngineUnavailable, EngineRefused, OptionIgnored),
                description="Settings that are left out get their defaults. The status is 201 if the topic is new. "
                "Messages stay, unless a lower limit or retention drops them.",
                sdk="topics.put",
                cli=Command("topics put"),
            ),
            Route(
                "PATCH",
                _ONE,
                self.update_topic,
                Scope.ADMIN,
                "Change settings of a topic",
                _TAG,
                body=TopicSettingsChange,
                response=Topic,
                errors=(TopicNotFound, EngineUnavailable, EngineRefused, OptionIgnored),
                description="Settings that are left out keep their values. Another `geo` moves the topic while it is in use: "
                "a task `move-placement` shows the progress.",
                sdk="topics.update",
                cli=Command("topics update"),
            ),
            Route(
                "GET",
                _ONE,
                self.get_topic,
                Scope.READ,
                "Show a topic and its stats",
                _TAG,
                response=Topic,
                errors=(TopicNotFound, EngineUnavailable),
                sdk="topics.get",
                cli=Command("topics show"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                _ONE,
                self.delete_topic,
                Scope.ADMIN,
                "Delete a topic with its messages",
                _TAG,
                query=DeleteTopicQuery,
                status=204,
                errors=(TopicNotFound, TopicInUse, Conflict, EngineUnavailable),
                sdk="topics.delete",
            ),
            Route(
                "POST",
                f"{_ONE}/purge",
                self.purge_topic,
                Scope.WRITE,
                "Delete messages of a topic",
                _TAG,
                body=PurgeTopicRequest,
                response=Purged,
                errors=(TopicNotFound, EngineUnavailable),
                description="All messages, or those whose subject matches a pattern, up to a sequence if one is given. "
                "The sequences of the other messages stay.",
                sdk="topics.purge",
                allows_admin=True,
                repeatable=True,
            ),
        ]

    async def list_topics(self, request: Request) -> Response:
        query: TopicQuery = request.query
        page = self._lifecycle.page(request.caller, query.limit, query.cursor, query.name)
        stats = await asyncio.gather(*map(self._stats, page.items)) if query.stats else [None] * len(page.items)
        topics = [topic_of(record, found) for record, found in zip(page.items, stats, strict=True)]
        return Response(TopicPage(items=topics, next_cursor=page.next_cursor))

    async def _stats(self, record: TopicRecord) -> TopicStats | None:
        """None if they cannot be read now: the list is of use without them."""
        async with self._stats_slots:
            try:
                return await self._counted(record)
            except (TopicNotFound, EngineUnavailable):
                return None

    async def _counted(self, record: TopicRecord) -> TopicStats:
        """The stats with the live readers. Raises TopicNotFound, EngineUnavailable."""
        stats = await self._reader.stats(record)
        return msgspec.structs.replace(stats, connections=self._connections.total(record.stream))

    async def put_topic(self, request: Request) -> Response:
        record, is_new = await self._lifecycle.put(request.context, request.parameters["topic"], request.body)
        return Response(topic_of(record), status=201 if is_new else 200)

    async def update_topic(self, request: Request) -> Response:
        return Response(topic_of(await self._lifecycle.update(request.context, request.parameters["topic"], request.body)))

    async def get_topic(self, request: Request) -> Response:
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["topic"])
        stats, placement = await asyncio.gather(self._counted(record), self._placements.status(record.stream))
        return Response(topic_of(record, stats, placement))

    async def delete_topic(self, request: Request) -> Response:
        query: DeleteTopicQuery = request.query
        await self._lifecycle.delete(request.context, request.parameters["topic"], cascade=query.cascade)
        return Response(status=204)

    async def purge_topic(self, request: Request) -> Response:
        body: PurgeTopicRequest = request.body
        with at_field("$.subject"):
            pattern = check_pattern(body.subject or ">")
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["topic"])
        count = await self._reader.purge(request.context, record, pattern, body.to_sequence, is_dry_run=body.dry_run)
        return Response(Purged(count=count, dry_run=body.dry_run))
