"""Counts commands without a route, by target and command, from the frames of `COMMANDS`. Runs in the leader of the control role.

The counts of a tenant are stored with the position up to which they hold, so that each command counts once, whenever the process
is killed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
import structlog

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, follow_batches
from postroad.kernel.errors import Conflict, PostroadError
from postroad.kernel.event import PLATFORM
from postroad.route_health.records import MisrouteRecord, TenantMisroutes, with_misroutes
from postroad.telemetry.frames import unpack

_STREAM, _SUBJECT = "COMMANDS", "command.>"
_MARK = b'"route-missing"'
_FRAMES_MAX, _BYTES_MAX = 1000, 4 * 1024 * 1024
_FLUSH_SECONDS = 1.0
_RETRY_SECONDS = 1.0

log = structlog.get_logger("postroad.route_health")


class _Failed(msgspec.Struct, frozen=True):
    """The fields of `snavio.command.failed` that are counted."""

    event: str = ""
    source: str = ""
    target: str = ""
    command_name: str = msgspec.field(name="command.name", default="")
    reason: str = ""
    timestamp: str = ""


_decode = msgspec.json.Decoder(_Failed).decode


class MisrouteCounter:
    """`is_deleted` returns whether a tenant was deleted: nothing about it is stored any more."""

    def __init__(
        self, connection: Connection, table: ReplicatedTable[TenantMisroutes], is_deleted: Callable[[str], bool]
    ) -> None:
        self._connection, self._table, self._is_deleted = connection, table, is_deleted
        self._found: dict[str, list[tuple[int, MisrouteRecord]]] = {}  # with the sequences of their frames
        self._position = self._stored_position = 0

    async def run(self) -> None:
        """Count until cancelled. After an interruption it continues at the stored position."""
        while True:
            try:
                await self._follow()
            except (PostroadError, Conflict) as problem:
                log.warning("misroutes_not_counted", code=problem.code, detail=problem.detail)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self) -> None:
        self._found = {}
        self._position = await self._start()
        await self._put(PLATFORM, TenantMisroutes(position=self._position))
        self._stored_position = self._position
        source = Source(_STREAM, _SUBJECT, is_only_subject=True)
        batches = follow_batches(self._connection, source, self._position, entries_max=_FRAMES_MAX, bytes_max=_BYTES_MAX)
        async with aclosing(_with_ticks(batches, _FLUSH_SECONDS)) as ticked:
            async for batch in ticked:
                for entry in batch or ():
                    self._count(entry)
                if batch is None:
                    await self._flush()

    async def _start(self) -> int:
        """The position to continue at: the stored one, or the end of the stream at the first start."""
        record = await self._table.refresh(PLATFORM)
        info = await stream_info(self._connection, _STREAM)
        end = info.state.last_seq if info else 0
        return end if record is None or record.position > end else record.position

    def _count(self, entry: Entry) -> None:
        self._position = entry.sequence
        if _MARK not in entry.payload:
            return
        tenant = entry.subject.partition(".")[2]
        known = self._table.get(tenant)
        if known is not None and known.position >= entry.sequence:
            return
        found = self._found.setdefault(tenant, [])
        for line in unpack(entry.payload):
            if _MARK in line:
                one = _failure(line)
                if one is not None:
                    at = one.timestamp
                    found.append((entry.sequence, MisrouteRecord(one.target, one.command_name, 1, at, at, one.source)))

    async def _flush(self) -> None:
        """Store the counts of each tenant, then the position. Raises Conflict if another process counts, too."""
        if self._position == self._stored_position:
            return
        position = self._position
        while self._found:
            tenant, found = next(iter(self._found.items()))
            known = self._table.get(tenant) or TenantMisroutes()
            new = [one for sequence, one in found if sequence > known.position]  # a former leader may have counted the others
            if new and not self._is_deleted(tenant):
                await self._put(tenant, with_misroutes(known, new, position))
            del self._found[tenant]
        await self._put(PLATFORM, TenantMisroutes(position=position))
        self._stored_position = position

    async def _put(self, key: str, record: TenantMisroutes) -> None:
        if self._table.get(key) is None:
            await self._table.create(key, record)
        else:
            await self._table.update(key, record, self._table.revision(key))


def _failure(line: bytes) -> _Failed | None:
    try:
        found = _decode(line)
    except (ValueError, RecursionError):
        return None
    return found if found.event == "snavio.command.failed" and found.reason == "route-missing" else None


async def _with_ticks(batches: AsyncGenerator[list[Entry], None], seconds: float) -> AsyncGenerator[list[Entry] | None, None]:
    """The batches, and None after every interval."""
    loop = asyncio.get_running_loop()
    due = loop.time() + seconds
    coming: asyncio.Task[list[Entry]] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(batches))
            await asyncio.wait({coming}, timeout=max(0.0, due - loop.time()))
            if coming.done():
                batch, coming = coming.result(), None
                yield batch
            if loop.time() >= due:
                due = loop.time() + seconds
                yield None
    finally:
        if coming is not None:
            coming.cancel()
        await asyncio.gather(*([coming] if coming is not None else []), return_exceptions=True)
        await batches.aclose()
