"""HTTP route of the tenant's events: a live stream over server-sent events."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.api.cloudevents import telemetry_event
from postroad.api.telemetry import EventPosition, EventStreamQuery
from postroad.crypto.position_encryption import PositionCipher, PositionInvalid
from postroad.http.cloudevents import accepted_events
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.http.sse import event_stream, frame, id_frame
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.shared_tail import SharedTails
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source
from postroad.kernel.errors import EngineUnavailable, InvalidParameter
from postroad.kernel.event import Event, event_name
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.matching import pattern, pattern_matches
from postroad.telemetry.frames import STREAMS, frame_subject, unpack

EventTails = SharedTails[Source, Entry]
_SKIPPED_MAX = 1000  # frames without an event for a client, until it gets its position


class EventVisibility:
    """Reads the type of a stored event, and decides whether a caller may see it.

    Keys that are restricted to some resources see the events of these resources only.
    """

    def __init__(self, types: Iterable[type[Event]] = ()) -> None:
        self._resources = {event_name(one): one.resource for one in types if one.resource is not None}
        names = sorted({field for _, field in self._resources.values()} | {"source", "target", "queue", "key_id"})
        fields: list[Any] = [("event", str, ""), *((name, str | None, None) for name in names)]
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(msgspec.defstruct("_EventHeader", fields))

    def type_of(
        self,
        caller: Caller,
        line: bytes,
        *,
        source: str | None = None,
        target: str | None = None,
        queue: str | None = None,
        key: str | None = None,
    ) -> str | None:
        """The type of the event; None if the caller may not see it, it is not of the source, target, queue or key, or the line
        is not an event: a foreign entry in the stream must not break the readers."""
        try:
            header = self._decoder.decode(line)
        except (ValueError, RecursionError):  # not JSON, of another type, or not UTF-8
            return None
        is_chosen = source in (None, header.source) and target in (None, header.target)
        is_chosen = is_chosen and queue in (None, header.queue) and key in (None, header.key_id)
        return header.event if header.event and is_chosen and self._is_visible(caller, header) else None

    def _is_visible(self, caller: Caller, header: Any) -> bool:
        if caller.allowed is None:
            return True
        services = [one for one in (caller.own_service(header.source), caller.own_service(header.target)) if one]
        if services and not any(caller.may_use("service", one) for one in services):
            return False
        resource = self._resources.get(header.event)
        if resource is None:
            return bool(services)
        kind, field = resource
        name = getattr(header, field)
        return name is not None and caller.may_use(kind, name)


class TelemetryRoutes:
    """`visibility` is set once all capabilities are built."""

    def __init__(self, connection: Connection, positions: PositionCipher) -> None:
        self._connection, self._position_cipher = connection, positions
        self._tails: EventTails = SharedTails(connection, lambda source: source, lambda _source: lambda entry: entry)
        self.visibility = EventVisibility()

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
                    "At least once: after a reconnect some events may come again with the same `event_id`. With "
                    "`format=cloudevents`, or `application/cloudevents+json` in the header `Accept`, `data` is a CloudEvents 1.0 "
                    "event."
                ),
                allows_admin=True,
            )
        ]

    async def stream(self, request: Request) -> Response:
        query: EventStreamQuery = request.query
        wanted = pattern(query.events)
        last_event_id = request.header(b"last-event-id") or query.last_event_id
        positions = await self._positions(request.caller.tenant, last_event_id)
        has_envelope = query.format == "cloudevents" or accepted_events(request) is not None
        source, target = (_full_name(request.caller.tenant, one) for one in (query.source, query.target))
        return event_stream(
            request,
            self._frames(
                request.caller,
                _Wanted(wanted, source, target, query.queue, query.key, query.max_per_second, has_envelope),
                positions,
                is_new=last_event_id is None,
            ),
        )

    async def _positions(self, tenant: str, last_event_id: str | None) -> dict[str, int]:
        if last_event_id is not None:
            try:
                known = dict(zip(STREAMS, self._position_cipher.decrypt(tenant, last_event_id), strict=False))
            except PositionInvalid as exc:
                raise InvalidParameter("Last-Event-ID was not sent by this stream; connect without it") from exc
        else:
            known = {}
        # An id of an earlier version lacks the streams that were added since: these are read from now on.
        return {stream: known[stream] if stream in known else await self._newest_position(stream, tenant) for stream in STREAMS}

    async def _newest_position(self, stream: str, tenant: str) -> int:
        position = self._tails.position(_source(stream, tenant))
        if position is not None:
            return position
        info = await stream_info(self._connection, stream)
        return info.state.last_seq if info else 0

    async def _frames(
        self, caller: Caller, wanted: "_Wanted", positions: dict[str, int], *, is_new: bool
    ) -> AsyncIterator[bytes]:
        """The last event of a frame has the id: a client that reconnects within a frame gets the whole frame again.

        The position is also sent at the start, and after many frames without an event for the client: one that is interrupted
        then misses nothing, and does not have all these frames read again.
        """
        if is_new:
            yield id_frame(self._event_id(caller.tenant, positions))
        thinning, skipped = Thinning(wanted.max_per_second), 0
        async for stream, entry in _merged(self._tails, caller.tenant, positions):
            positions[stream] = entry.sequence
            typed = [
                (
                    self.visibility.type_of(
                        caller, line, source=wanted.source, target=wanted.target, queue=wanted.queue, key=wanted.key
                    ),
                    line,
                )
                for line in unpack(entry.payload)
            ]
            chosen = [(name, line) for name, line in typed if name is not None and pattern_matches(wanted.events, name)]
            chosen, left_out = thinning.choose(chosen, asyncio.get_running_loop().time())
            skipped = 0 if chosen else skipped + 1
            if not (chosen or left_out or skipped >= _SKIPPED_MAX):
                continue
            event_id = self._event_id(caller.tenant, positions)
            if left_out:
                thinned = b'{"event":"telemetry.thinned","left_out":%d}' % left_out
                data = telemetry_event(thinned, "telemetry.thinned", event_id, caller.tenant) if wanted.has_envelope else thinned
                yield frame(data, event="telemetry.thinned")
            for index, (name, line) in enumerate(chosen, 1):
                if wanted.has_envelope:
                    line = _in_envelope(line, name, caller.tenant)
                yield frame(line, event=name, event_id=event_id if index == len(chosen) else None)
            if skipped >= _SKIPPED_MAX:
                skipped = 0
                yield id_frame(event_id)

    def _event_id(self, tenant: str, positions: Mapping[str, int]) -> str:
        return self._position_cipher.encrypt(tenant, *(positions[name] for name in STREAMS))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Pattern of event types; sender and target of commands, as `<tenant>/<service>`; queue, and id of the key."""

    events: str
    source: str | None
    target: str | None
    queue: str | None = None
    key: str | None = None
    max_per_second: int | None = None
    has_envelope: bool = False  # of CloudEvents


class _EventId(msgspec.Struct):
    event_id: str = ""
    timestamp: str = ""


_decode_id = msgspec.json.Decoder(_EventId).decode


def _in_envelope(line: bytes, name: str, tenant: str) -> bytes:
    found = _decode_id(line)
    return telemetry_event(line, name, found.event_id, tenant, found.timestamp)


class Thinning:
    """Leaves out events above a rate. Pure."""

    def __init__(self, max_per_second: int | None) -> None:
        self._max = max_per_second
        self._second = self._shown = self._left_out = 0

    def choose(self, events: list[tuple[str, bytes]], now: float) -> tuple[list[tuple[str, bytes]], int]:
        """The events to send, and the number of those that were left out in the seconds before this one."""
        if self._max is None:
            return events, 0
        left_out = 0
        if int(now) != self._second:
            self._second, self._shown, left_out, self._left_out = int(now), 0, self._left_out, 0
        shown = events[: max(0, self._max - self._shown)]
        self._shown += len(shown)
        self._left_out += len(events) - len(shown)
        return shown, left_out


def _full_name(tenant: str, service: str | None) -> str | None:
    return service if service is None or "/" in service else f"{tenant}/{service}"


def _source(stream: str, tenant: str) -> Source:
    return Source(stream, frame_subject(stream, tenant))


async def _merged(tails: EventTails, tenant: str, positions: dict[str, int]) -> AsyncIterator[tuple[str, Entry]]:
    """The entries of all event streams, in the order of arrival."""
    ready: asyncio.Queue[tuple[str, Entry]] = asyncio.Queue(maxsize=64)

    async def copy(stream: str, after: int) -> None:
        async with aclosing(tails.follow(_source(stream, tenant), after)) as entries:
            async for entry in entries:
                await ready.put((stream, entry))

    copies = [asyncio.create_task(copy(stream, after)) for stream, after in positions.items()]
    try:
        while True:
            coming = asyncio.ensure_future(ready.get())
            try:
                await asyncio.wait({coming, *copies}, return_when=asyncio.FIRST_COMPLETED)
                for ended in (task for task in copies if task.done()):
                    ended.result()  # a copy ends by an error only: the response breaks off, and the client reconnects
                yield await coming
            finally:
                coming.cancel()
    finally:
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
