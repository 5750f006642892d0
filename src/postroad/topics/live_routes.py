"""HTTP route of live reading: the messages of a topic as server-sent events."""

from collections.abc import Sequence

from postroad.api.topics import LiveEventId, TopicNotFound, TopicStreamQuery
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.sse import event_stream
from postroad.kernel.clock import epoch_ms
from postroad.kernel.errors import EngineUnavailable, InvalidParameter
from postroad.kernel.identity import Scope
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.live import LiveTopics, Selection
from postroad.topics.live_position import ResumePoint, parse_event_id
from postroad.topics.rules import check_pattern

LIVE_HEADERS = (("Last-Event-ID", LiveEventId),)
LIVE_DESCRIPTION = (
    "Server-sent events: `message`, `ready` once the reader has caught up, `gap` if messages were removed before it read them, "
    "`reset` if its position is not one of this topic. From now on, or after `Last-Event-ID`, or from a sequence or a time."
)


class LiveTopicRoutes:
    def __init__(self, lifecycle: TopicLifecycle, live: LiveTopics) -> None:
        self._lifecycle, self._live = lifecycle, live

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
                headers=LIVE_HEADERS,
                errors=(TopicNotFound, InvalidParameter, EngineUnavailable),
                description=LIVE_DESCRIPTION,
            )
        ]

    async def follow_topic(self, request: Request) -> Response:
        query: TopicStreamQuery = request.query
        selection = Selection(tuple(check_pattern(one) for one in query.filter) or (">",))
        resume = resume_point(request)
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["topic"])
        frames = await self._live.open(
            record, selection, resume, from_sequence=query.from_sequence, from_ms=epoch_ms(query.from_time)
        )
        return event_stream(request, frames)


def resume_point(request: Request) -> ResumePoint | None:
    """The position in `Last-Event-ID`. Raises InvalidParameter."""
    text = request.header(b"last-event-id")
    return None if text is None else parse_event_id(text)
