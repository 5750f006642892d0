"""HTTP route of subscriptions of the type `sse`: a stored selection of a topic's messages, read live."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from postroad.api.stream_subscriptions import SubscriptionNotFound
from postroad.api.topics import LivePositionQuery, TopicNotFound
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.sse import event_stream
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import epoch_ms
from postroad.kernel.errors import EngineUnavailable, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.subscriptions.content_filter import ContentFilter
from postroad.subscriptions.received_message import ReceivedMessage
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.service import Subscriptions
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.live import LiveTopics, Selection
from postroad.topics.live_routes import LIVE_DESCRIPTION, LIVE_HEADERS, resume_point


class LiveSubscriptionRoutes:
    def __init__(
        self,
        subscriptions: Subscriptions,
        table: ReplicatedTable[SubscriptionRecord],
        topics: TopicLifecycle,
        live: LiveTopics,
    ) -> None:
        self._subscriptions, self._table, self._topics, self._live = subscriptions, table, topics, live
        self._readers: dict[str, set[asyncio.Event]] = {}
        table.on_change(self._record_changed)

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/subscriptions/{subscription}/stream",
                self.follow_subscription,
                Scope.READ,
                "Read a subscription live",
                "Subscriptions",
                query=LivePositionQuery,
                media="text/event-stream",
                resource="subscription/{subscription}",
                headers=LIVE_HEADERS,
                errors=(SubscriptionNotFound, TopicNotFound, PreconditionFailed, InvalidParameter, EngineUnavailable),
                description=f"For subscriptions of the type `sse`. {LIVE_DESCRIPTION}",
            )
        ]

    async def follow_subscription(self, request: Request) -> Response:
        query: LivePositionQuery = request.query
        resume = resume_point(request)
        subscription = await self._subscriptions.find(request.caller, request.parameters["subscription"])
        if not subscription.is_read_live:
            raise PreconditionFailed("only subscriptions of the type sse are read live")
        if not subscription.is_active:
            raise PreconditionFailed(f"the subscription is {subscription.state}; resume it first")
        topic = await self._topics.find(request.caller.tenant, subscription.topic)
        if topic.incarnation != subscription.topic_incarnation:
            raise SubscriptionNotFound("the topic of the subscription was deleted")
        frames = await self._live.open(
            topic, _selection(subscription), resume, from_sequence=query.from_sequence, from_ms=epoch_ms(query.from_time)
        )
        ended = asyncio.Event()
        return event_stream(request, self._registered(subscription, frames, ended), ended=ended)

    async def _registered(
        self, record: SubscriptionRecord, frames: AsyncIterator[bytes], ended: asyncio.Event
    ) -> AsyncIterator[bytes]:
        """The frames of a reader that ends when its subscription changes."""
        key = record.key
        readers = self._readers.setdefault(key, set())
        readers.add(ended)
        try:
            if self._table.get(key) != record:  # changed since it was read
                return
            async for one in frames:
                yield one
        finally:
            readers.discard(ended)
            if not readers and self._readers.get(key) is readers:
                del self._readers[key]
            close = getattr(frames, "aclose", None)
            if close is not None:
                await close()

    def _record_changed(self, key: str, _record: SubscriptionRecord | None) -> None:
        """End the readers of a subscription that was changed, paused or deleted. They reconnect to the changed one."""
        for ended in self._readers.get(key, ()):
            ended.set()


def _selection(record: SubscriptionRecord) -> Selection:
    if record.content_filter is None:
        return Selection(record.patterns)
    content = ContentFilter(record.content_filter)
    return Selection(record.patterns, (record.id, record.updated_at_ms), lambda stored: ReceivedMessage(stored).passes(content))
