"""Search of what happened to commands, in the stored outcome events, within a budget of events, bytes and time.

The outcome events of the last 14 days are on `COMMANDS`, or of less if it has reached its share of the store; earlier commands
are in the lake of the pipeline.
"""

import asyncio
from dataclasses import dataclass, field

import msgspec

from postroad.api.command_search import CommandQuery, FoundCommand
from postroad.commands.rules import target_of
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.kernel.clock import epoch_ms, rfc3339
from postroad.kernel.identity import Caller
from postroad.telemetry.frames import frame_subject, unpack_archived

_STREAM = "COMMANDS"
_PREFIX = b'{"event":"snavio.command.'
_OUTCOMES = {f"snavio.command.{name}": name for name in ("delivered", "failed", "invalid", "duplicate")}
_PAGE_FRAMES = 50
_PAGE_BYTES = 512 * 1024  # a page is filtered without interruption, but for the turns of other requests after each frame
_FOUND_BYTES_MAX = 8 * 1024 * 1024
_SCANNED_MAX = 20_000
_SECONDS_MAX = 0.5


class _Outcome(msgspec.Struct):
    """The fields of an outcome event that a search needs."""

    event: str
    timestamp: str
    source: str
    command_id: str | None = None
    target: str | None = None
    command_name: str | None = msgspec.field(name="command.name", default=None)
    reason: str | None = None
    detail: str | None = None
    path: str | None = None
    escalated: str | None = None
    dispatch_latency_ms: float | None = None
    message_id: str | None = None
    replay_id: str | None = None
    replay_reason: str | None = None


class _Archived(msgspec.Struct):
    sent_at: str | None = None
    payload: str | None = None
    payload_bytes: int = 0


_decode = msgspec.json.Decoder(_Outcome).decode
_decode_archived = msgspec.json.Decoder(_Archived).decode


@dataclass(slots=True)
class FoundCommands:
    """The commands found, the number of outcomes compared, and the frame and line to continue from, None at the end.

    Earlier commands than `available_from_ms` cannot be found. None: there are none.
    """

    items: list[FoundCommand] = field(default_factory=list)
    scanned: int = 0
    position: tuple[int, int] | None = None
    available_from_ms: int | None = None


class OutcomeFilter:
    """The conditions of a search, prepared for many events. Most events are ruled out by their bytes."""

    def __init__(self, caller: Caller, query: CommandQuery) -> None:
        self._caller, self._query, self._tenant = caller, query, caller.tenant
        self._id = None if query.id is None else query.id.lower()
        self._source = _full_name(caller.tenant, query.source)
        self._target = _full_name(caller.tenant, query.target)
        since, until = epoch_ms(query.since), epoch_ms(query.until)
        self._since = None if since is None else rfc3339(since)
        self._until = None if until is None else rfc3339(until)
        texts = (self._source, query.command, query.replay, None if query.outcome is None else f"command.{query.outcome}")
        self._needles = [text.encode() for text in texts if text is not None]

    def read(self, line: bytes) -> _Outcome | None:
        """The outcome event, if the line is one that matches."""
        if not all(needle in line for needle in self._needles):
            return None
        try:
            event = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return event if event.event in _OUTCOMES and self._matches(event) else None

    def _matches(self, event: _Outcome) -> bool:
        query = self._query
        return (
            (self._id is None or (event.command_id or "").lower() == self._id)
            and (self._source is None or event.source == self._source)
            and (self._target is None or _full_name(self._tenant, event.target) == self._target)
            and (query.command is None or event.command_name == query.command)
            and (query.outcome is None or _OUTCOMES[event.event] == query.outcome)
            and (query.reason is None or event.reason == query.reason)
            and (query.replay is None or event.replay_id == query.replay)
            and (self._since is None or event.timestamp >= self._since)
            and (self._until is None or event.timestamp < self._until)
            and self._caller.may_use("service", event.source.partition("/")[2])
        )


class CommandSearch:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def find(self, caller: Caller, query: CommandQuery, position: tuple[int, int] | None) -> FoundCommands:
        """Commands of the tenant that match, oldest first, from a position on. Raises EngineUnavailable."""
        loop = asyncio.get_running_loop()
        deadline, found, size = loop.time() + _SECONDS_MAX, FoundCommands(), 0
        wanted = OutcomeFilter(caller, query)
        found.available_from_ms = await self._available_from_ms()
        sequence, first_line = position or (await self._first(caller.tenant, query), 0)
        while True:
            async with self._connection.scans:
                page = await stream_reader.read(
                    self._connection, _STREAM, frame_subject(_STREAM, caller.tenant), sequence, _PAGE_FRAMES, _PAGE_BYTES
                )
            for entry in page.entries:
                for number, (line, archived) in enumerate(unpack_archived(entry.payload)):
                    if number < first_line or not line.startswith(_PREFIX):
                        continue
                    if found.scanned >= _SCANNED_MAX or len(found.items) >= query.limit or size > _FOUND_BYTES_MAX:
                        found.position = (entry.sequence, number)
                        return found
                    found.scanned += 1
                    event = wanted.read(line)
                    if event is not None:
                        item = _found(event, archived, query.body_max)
                        size += len(item.payload or item.payload_start or "") + len(line)
                        found.items.append(item)
                first_line = 0
                await asyncio.sleep(0)
            sequence = page.next_sequence
            if page.is_end:
                return found
            if loop.time() >= deadline:
                found.position = (sequence, 0)
                return found

    async def _available_from_ms(self) -> int | None:
        """When the oldest frame was stored that is left. An earlier command may have left the stream."""
        info = await stream_info(self._connection, _STREAM)
        return None if info is None or not info.state.messages else stream_reader.time_ms(info.state.first_ts)

    async def _first(self, tenant: str, query: CommandQuery) -> int:
        """The frame to begin with. An event is stored after it happened, so none before the time is missed."""
        since = epoch_ms(query.since)
        if since is None:
            return 1
        page = await stream_reader.read_since(self._connection, _STREAM, frame_subject(_STREAM, tenant), since, 1)
        return page.entries[0].sequence if page.entries else 2**62


def _full_name(tenant: str, text: str | None) -> str | None:
    """`<tenant>/<service>`, or the text if it names no service."""
    place = None if text is None else target_of(tenant, text)
    return text if place is None else "/".join(place)


def _found(event: _Outcome, line: bytes | None, body_max: int) -> FoundCommand:
    archived = _Archived()
    if line is not None:
        try:
            archived = _decode_archived(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            archived = _Archived()
    text = archived.payload if body_max else None
    is_whole = text is not None and archived.payload_bytes <= body_max
    return FoundCommand(
        at=event.timestamp,
        outcome=_OUTCOMES[event.event],
        command_id=event.command_id,
        source=event.source,
        target=event.target,
        command=event.command_name,
        reason=event.reason,
        detail=event.detail or None,
        path=event.path,
        escalated=event.escalated,
        dispatch_latency_ms=event.dispatch_latency_ms,
        message_id=event.message_id,
        sent_at=archived.sent_at,
        payload=text if is_whole else None,
        payload_start=None if is_whole or text is None else text.encode()[:body_max].decode(errors="ignore"),
        payload_bytes=None if line is None else archived.payload_bytes,
        replay_id=event.replay_id,
        replay_reason=event.replay_reason,
    )
