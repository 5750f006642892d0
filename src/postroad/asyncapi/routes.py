"""HTTP route of the AsyncAPI document."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

from postroad import __version__
from postroad.api.asyncapi import AsyncApiQuery
from postroad.asyncapi.document import Inventory, Source, StreamSource, TelemetryPart, document, telemetry_part
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.event import Event
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.json import encode
from postroad.queues.lifecycle import QueueLifecycle
from postroad.streams.listing import StreamListing
from postroad.topics.lifecycle import TopicLifecycle


class AsyncApiRoutes:
    """`event_types` are set once all capabilities are built."""

    def __init__(self, queues: QueueLifecycle, topics: TopicLifecycle, streams: StreamListing, public_url: str | None) -> None:
        self._queues, self._topics, self._streams, self._public_url = queues, topics, streams, public_url
        self.event_types: Sequence[type[Event]] = ()
        self._telemetry: TelemetryPart | None = None

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/asyncapi.json",
                self.get_asyncapi,
                Scope.READ,
                "Show the AsyncAPI document of the tenant",
                "AsyncAPI",
                query=AsyncApiQuery,
                response=dict[str, Any],
                errors=(EngineUnavailable,),
                description="AsyncAPI 3: the queues and topics that the key may use, with their JSON Schemas, durable streams, "
                "and the events of the tenant. Sorted by name; `info` says what was left out.",
                sdk="asyncapi.get",
                allows_admin=True,
            )
        ]

    async def get_asyncapi(self, request: Request) -> Response:
        query: AsyncApiQuery = request.query
        inventory = await self._inventory(request.caller, query.limit)
        url = request.base_url(self._public_url)
        # Schemas may have megabytes: not in the event loop.
        return Response(await asyncio.to_thread(self._encoded, inventory, url, query.limit))

    def _encoded(self, inventory: Inventory, url: str, limit: int) -> bytes:
        if self._telemetry is None:
            self._telemetry = telemetry_part(self.event_types)
        return encode(document(inventory, self._telemetry, __version__, url, limit))

    async def _inventory(self, caller: Caller, limit: int) -> Inventory:
        queues = list(itertools.islice(self._queues.records(caller), limit + 1))
        topics = self._topics.page(caller, limit, None)
        streams = await self._streams.page(caller.tenant, "", None, limit, lambda stream: caller.may_use("stream", stream))
        cut = {
            "queues": len(queues) > limit,
            "topics": topics.next_cursor is not None,
            "streams": streams.next_cursor is not None,
        }
        return Inventory(
            caller.tenant,
            [Source(one.name, one.settings.schema, dict(one.settings.tags)) for one in queues[:limit]],
            [Source(one.name, one.settings.schema, dict(one.settings.tags)) for one in topics.items],
            [StreamSource(one.name.id, one.snapshot.record.content_type) for one in streams.items if one.snapshot.record],
            [name for name, is_cut in cut.items() if is_cut],
        )
