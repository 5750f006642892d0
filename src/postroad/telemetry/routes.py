"""A tenant's events as they happen, over server-sent events."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

import msgspec

from postroad.api.telemetry import EventPosition, EventStreamQuery
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.sse import event_stream, frame
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, follow
from postroad.kernel.errors import EngineUnavailable, InvalidParameter
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.matching import pattern, pattern_matches
from postroad.telemetry.frames import STREAMS, frame_subject, unpack

_POSITION = re.compile(r"(\d{1,18})-(\d{1,18})")


class _Head(msgspec.Struct):
    event: str = ""
    queue: str | None = None


_head_of = msgspec.json.Decoder(_Head).decode


class TelemetryRoutes:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def table(self) -> Sequence[Route]:
        return [
            Route(
                "GET",
                "/v1/telemetry/stream",
                self.stream,
                Scope.READ,
                "Follow the tenant's events",
                "Telemetry",
                query=EventStreamQuery,
                media="text/event-stream",
                resource="telemetry",
                headers=(("Last-Event-ID", EventPosition),),
                errors=(EngineUnavailable,),
                description=(
                    "Server-sent events, from now on or after `Last-Event-ID`. `event` is the type, `data` the event as JSON. "
                    "At least once: after a reconnect some events may come again with the same `event_id`."
                ),
            )
        ]

    async def stream(self, request: Request) -> Response:
        query: EventStreamQuery = request.query
        wanted = pattern(query.events)
        positions = await self._positions(request.header(b"last-event-id") or query.last_event_id)
        return event_stream(request, self._frames(request.caller, wanted, positions))

    async def _positions(self, last_event_id: str | None) -> dict[str, int]:
        if last_event_id is not None:
            found = _POSITION.fullmatch(last_event_id)
            if found is None:
                raise InvalidParameter("Last-Event-ID is not one that this stream gave out")
            return dict(zip(STREAMS, map(int, found.groups()), strict=True))
        infos = {stream: await stream_info(self._connection, stream) for stream in STREAMS}
        return {stream: info.state.last_seq if info else 0 for stream, info in infos.items()}

    async def _frames(self, caller: Caller, wanted: str, positions: dict[str, int]) -> AsyncIterator[bytes]:
        """The id is given with a frame's last event: who reconnects in the middle of a frame gets all of it again."""
        async for stream, entry in _merged(self._connection, caller.tenant, positions):
            positions[stream] = entry.sequence
            position = "-".join(str(positions[name]) for name in STREAMS)
            named = [(_head(line), line) for line in unpack(entry.payload)]
            chosen = [
                (head.event, line) for head, line in named if pattern_matches(wanted, head.event) and _may_see(caller, head)
            ]
            for index, (name, line) in enumerate(chosen, 1):
                yield frame(line, event=name, event_id=position if index == len(chosen) else None)


def _head(line: bytes) -> _Head:
    """The event's type and queue; nothing for what is no event. Somebody with access to the engine may have put anything there,
    and a reader that stumbled over it would do so again each time it comes back."""
    try:
        return _head_of(line)
    except (ValueError, RecursionError):  # not JSON, another shape, or not UTF-8
        return _Head()


def _may_see(caller: Caller, head: _Head) -> bool:
    """A key that is kept to some queues sees their events and no others."""
    return caller.allowed is None or (head.queue is not None and caller.may_use("queue", head.queue))


async def _merged(connection: Connection, tenant: str, positions: dict[str, int]) -> AsyncIterator[tuple[str, Entry]]:
    """The entries of all event streams, in the order in which they arrive."""
    ready: asyncio.Queue[tuple[str, Entry]] = asyncio.Queue(maxsize=64)

    async def copy(stream: str, after: int) -> None:
        async for entry in follow(connection, Source(stream, frame_subject(stream, tenant)), after):
            await ready.put((stream, entry))

    copies = [asyncio.create_task(copy(stream, after)) for stream, after in positions.items()]
    try:
        while True:
            coming = asyncio.ensure_future(ready.get())
            try:
                await asyncio.wait({coming, *copies}, return_when=asyncio.FIRST_COMPLETED)
                for ended in (task for task in copies if task.done()):
                    ended.result()  # they only end by an error: the reader's connection breaks off, and it comes back
                yield await coming
            finally:
                coming.cancel()
    finally:
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
