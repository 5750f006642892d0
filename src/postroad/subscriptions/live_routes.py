"""HTTP routes of subscriptions of the types `sse` and `websocket`: a stored selection of a topic's messages, read live."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from postroad.api.live import SUBPROTOCOL, LiveSubscriptionSocketQuery
from postroad.api.stream_subscriptions import SubscriptionNotFound
from postroad.api.subscriptions import DeliveryType
from postroad.api.topics import LivePositionQuery, TopicNotFound
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.websocket_frames import offered_subprotocols
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, epoch_ms
from postroad.kernel.errors import EngineUnavailable, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.subscriptions.content_filter import ContentFilter
from postroad.subscriptions.received_message import ReceivedMessage
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.service import Subscriptions
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.live import LivePlan, LiveTopics
from postroad.topics.live_events import live_events
from postroad.topics.live_message import Selection
from postroad.topics.live_position import ResumePoint, parse_event_id
from postroad.topics.live_routes import LIVE_DESCRIPTION, LIVE_HEADERS, SOCKET_ERRORS, resume_point
from postroad.topics.live_socket import SubscriptionConnection


class LiveSubscriptionRoutes:
    def __init__(
        self,
        subscriptions: Subscriptions,
        table: ReplicatedTable[SubscriptionRecord],
        topics: TopicLifecycle,
        live: LiveTopics,
        clock: Clock,
    ) -> None:
        self._subscriptions, self._table, self._topics, self._live, self._clock = subscriptions, table, topics, live, clock
        self._readers: dict[str, set[Callable[[], None]]] = {}  # by key of the subscription, what ends them
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
            ),
            Route(
                "GET",
                "/v1/ws/{subscription}",
                self.open_subscription_socket,
                Scope.READ,
                "Read a subscription over a WebSocket",
                "Subscriptions",
                query=LiveSubscriptionSocketQuery,
                status=101,
                media="",
                resource="subscription/{subscription}",
                is_websocket=True,
                errors=(SubscriptionNotFound, TopicNotFound, PreconditionFailed, *SOCKET_ERRORS),
                description=(
                    "For subscriptions of the type `websocket`. JSON text messages: `subscribed`, `message`, `ready`, `gap`, "
                    "`reset` and `position`. The client may send `token` and `ping`."
                ),
            ),
        ]

    async def follow_subscription(self, request: Request) -> Response:
        plan, subscription = await self._plan(request, DeliveryType.SSE, resume_point(request))
        ended = asyncio.Event()
        response = live_events(self._live, plan, (request.draining, ended))
        response.body = self._registered(subscription, response.body, ended)
        return response

    async def open_subscription_socket(self, request: Request) -> Response:
        query: LiveSubscriptionSocketQuery = request.query
        offered = offered_subprotocols(request.headers)
        resume = None if query.after is None else parse_event_id(query.after)
        plan, subscription = await self._plan(request, DeliveryType.WEBSOCKET, resume)

        def register(changed: Callable[[], None]) -> bool:
            """False if the subscription has changed since it was read."""
            self._readers.setdefault(subscription.key, set()).add(changed)
            return self._table.get(subscription.key) == subscription

        def unregister(changed: Callable[[], None]) -> None:
            self._unregister(subscription.key, changed)

        connection = SubscriptionConnection(request, self._live, self._clock, plan, register, unregister)
        return Response(status=101, socket=connection, subprotocol=SUBPROTOCOL if SUBPROTOCOL in offered else "")

    async def _plan(
        self, request: Request, kind: DeliveryType, resume: ResumePoint | None
    ) -> tuple[LivePlan, SubscriptionRecord]:
        query: LivePositionQuery = request.query
        subscription = await self._subscriptions.find(request.caller, request.parameters["subscription"])
        if subscription.delivery_type is not kind:
            raise PreconditionFailed(f"the type of the subscription is {subscription.delivery_type}, not {kind}")
        if not subscription.is_active:
            raise PreconditionFailed(f"the subscription is {subscription.state}; resume it first")
        topic = await self._topics.find(request.caller.tenant, subscription.topic)
        if topic.incarnation != subscription.topic_incarnation:
            raise SubscriptionNotFound("the topic of the subscription was deleted")
        plan = await self._live.plan(
            topic,
            _selection(subscription),
            resume,
            from_sequence=query.from_sequence,
            from_ms=epoch_ms(query.from_time),
            subscription=subscription.key,
        )
        return plan, subscription

    async def _registered(self, record: SubscriptionRecord, frames: Any, ended: asyncio.Event) -> AsyncIterator[bytes]:
        """The frames of a reader that ends when its subscription changes."""
        key = record.key
        self._readers.setdefault(key, set()).add(ended.set)
        try:
            if self._table.get(key) != record:  # changed since it was read
                return
            async for one in frames:
                yield one
        finally:
            self._unregister(key, ended.set)
            close = getattr(frames, "aclose", None)
            if close is not None:
                await close()

    def _record_changed(self, key: str, _record: SubscriptionRecord | None) -> None:
        """End the readers of a subscription that was changed, paused or deleted. They reconnect to the changed one."""
        for end in tuple(self._readers.get(key, ())):
            end()

    def _unregister(self, key: str, end: Callable[[], None]) -> None:
        readers = self._readers.get(key, set())
        readers.discard(end)
        if not readers:
            self._readers.pop(key, None)


def _selection(record: SubscriptionRecord) -> Selection:
    latest_ms = record.latest_only or 0
    if record.content_filter is None:
        return Selection(record.patterns, latest_ms=latest_ms)
    content = ContentFilter(record.content_filter)
    return Selection(
        record.patterns,
        (record.id, record.updated_at_ms),
        lambda stored: ReceivedMessage(stored).passes((content,)),
        latest_ms=latest_ms,
    )
