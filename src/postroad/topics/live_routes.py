"""HTTP routes of live reading: the messages of a topic as server-sent events, and of several over a WebSocket."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from postroad.api.live import SUBPROTOCOL, LiveSocketQuery
from postroad.api.topics import LiveEventId, TopicNotFound, TopicStreamQuery
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.security_headers import API
from postroad.http.websocket_frames import offered_subprotocols
from postroad.kernel.clock import Clock, epoch_ms
from postroad.kernel.errors import EngineUnavailable, InvalidParameter, MalformedRequest, UpgradeRequired
from postroad.kernel.identity import Scope
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.live import LiveTopics
from postroad.topics.live_events import live_events
from postroad.topics.live_position import ResumePoint, parse_event_id
from postroad.topics.live_socket import MultiplexedConnection, selection_for
from postroad.topics.rules import query_patterns

LIVE_RESOURCE = "live"
SOCKET_ERRORS = (UpgradeRequired, MalformedRequest, InvalidParameter, EngineUnavailable)
LIVE_HEADERS = (("Last-Event-ID", LiveEventId),)
LIVE_DESCRIPTION = (
    "Server-sent events: `message`, `ready` once the reader has caught up, `gap` if messages were removed before it read them, "
    "`reset` if its position is not one of this topic. From now on, or after `Last-Event-ID`, or from a sequence or a time."
)


class LiveTopicRoutes:
    def __init__(self, lifecycle: TopicLifecycle, live: LiveTopics, clock: Clock) -> None:
        self._lifecycle, self._live, self._clock = lifecycle, live, clock

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/stream",
                self.follow_topic,
                Scope.READ,
                "Read the messages of a topic live",
                "Topics",
                query=TopicStreamQuery,
                media="text/event-stream",
                resource="topic/{topic}",
                alternative_resource=LIVE_RESOURCE,
                accepts_jwt=True,
                headers=LIVE_HEADERS,
                errors=(TopicNotFound, InvalidParameter, EngineUnavailable),
                description=LIVE_DESCRIPTION,
            ),
            Route(
                "GET",
                "/v1/ws",
                self.open_live_socket,
                Scope.READ,
                "Read topics live over one WebSocket",
                "Topics",
                query=LiveSocketQuery,
                status=101,
                media="",
                resource=LIVE_RESOURCE,
                accepts_jwt=True,
                is_websocket=True,
                errors=SOCKET_ERRORS,
                description=(
                    f"Subprotocol `{SUBPROTOCOL}`: JSON text messages. The client sends `subscribe`, `unsubscribe`, `token` and "
                    "`ping`. A request that is no WebSocket handshake is refused with 426."
                ),
            ),
            Route(
                "GET",
                "/postroad-live.js",
                self.live_client,
                None,
                "JavaScript module for live reading",
                "Topics",
                media="text/javascript",
                description="An ES module without dependencies. Its types are at `/postroad-live.d.ts`.",
            ),
            Route(
                "GET",
                "/postroad-live.d.ts",
                self.live_client_types,
                None,
                "Types of the JavaScript module",
                "Topics",
                media="text/plain",
            ),
        ]

    async def live_client(self, _request: Request) -> Response:
        return _file_response("postroad-live.js", b"text/javascript; charset=utf-8")

    async def live_client_types(self, _request: Request) -> Response:
        return _file_response("postroad-live.d.ts", b"text/plain; charset=utf-8")

    async def follow_topic(self, request: Request) -> Response:
        query: TopicStreamQuery = request.query
        patterns = query_patterns(query.filter, "filter") or (">",)
        selection = selection_for(request.caller, request.parameters["topic"], patterns, query.latest_only or 0)
        resume = resume_point(request)
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["topic"])
        plan = await self._live.plan(
            record,
            selection,
            resume,
            from_sequence=query.from_sequence,
            from_ms=epoch_ms(query.from_time),
        )
        return live_events(self._live, plan, (request.draining,))

    async def open_live_socket(self, request: Request) -> Response:
        offered = offered_subprotocols(request.headers)
        if offered and SUBPROTOCOL not in offered:
            raise InvalidParameter(f"the supported subprotocol is {SUBPROTOCOL}")
        connection = MultiplexedConnection(request, self._live, self._clock, self._lifecycle)
        return Response(status=101, socket=connection, subprotocol=SUBPROTOCOL if offered else "")


@cache
def _file(name: str) -> bytes:
    return (files("postroad.topics") / name).read_bytes()


def _file_response(name: str, media: bytes) -> Response:
    headers = [(b"cache-control", b"public, max-age=3600")]
    return Response(_file(name), media=media, headers=headers, security=API)


def resume_point(request: Request) -> ResumePoint | None:
    """The position in `Last-Event-ID`. Raises InvalidParameter."""
    text = request.header(b"last-event-id")
    return None if text is None else parse_event_id(text)
