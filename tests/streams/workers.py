"""The stream objects of one process: connection, store and streams. Two of them act as two workers."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import ensure_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import Overloaded
from postroad.kernel.usage_counters import UsageCounters
from postroad.streams.capability import StreamsCapability
from postroad.streams.lifecycle import CreateResult, CreateStream, ForkOf
from postroad.streams.rules import AppendOutcome, AppendRequest, ProducerClaim
from postroad.streams.service import Streams
from postroad.streams.store import StreamName, StreamStore
from postroad.telemetry.frames import frame_streams
from postroad.telemetry.outbox import Outbox
from tests.gateway import ShiftedClock

TEXT = "text/plain"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Worker:
    connection: Connection
    store: StreamStore
    streams: Streams
    clock: ShiftedClock
    outbox: Outbox
    usage: UsageCounters

    async def close(self) -> None:
        with contextlib.suppress(TimeoutError):  # the server may be stopped
            async with asyncio.timeout(1):
                await self.outbox.drain()
        await self.connection.close()

    async def create(self, name: StreamName, body: bytes = b"", content_type: str | None = TEXT, **wanted: Any) -> CreateResult:
        return await self.streams.create(None, name, CreateStream(content_type=content_type, **wanted), body)

    async def fork(
        self, name: StreamName, source: StreamName, offset: int | None = None, sub_offset: int = 0, **wanted: Any
    ) -> CreateResult:
        """`content_type` defaults to that of the source."""
        body: bytes = wanted.pop("body", b"")
        return await self.streams.create(None, name, CreateStream(fork=ForkOf(source.id, offset, sub_offset), **wanted), body)

    async def append(
        self,
        name: StreamName,
        data: bytes | None,
        claim: tuple[str, int, int] | None = None,
        *,
        seq: str | None = None,
        closes: bool = False,
        content_type: str = TEXT,
    ) -> AppendOutcome:
        producer_claim = None if claim is None else ProducerClaim(*claim)
        return await self.streams.append(
            None, name, AppendRequest(data, content_type if data is not None else None, producer_claim, seq, closes)
        )

    async def append_in_time(
        self, name: StreamName, data: bytes, claim: tuple[str, int, int] | None = None, **more: Any
    ) -> AppendOutcome:
        """Append like a client that retries when there are too many concurrent writers."""
        while True:
            try:
                return await self.append(name, data, claim, **more)
            except Overloaded:
                continue

    async def read_all(self, name: StreamName, position: int = 0) -> list[bytes]:
        """Read to the end, chunk by chunk."""
        return [payload for _, payloads in await self.chunks(name, position) for payload in payloads]

    async def chunks(self, name: StreamName, position: int = 0) -> list[tuple[int, list[bytes]]]:
        found: list[tuple[int, list[bytes]]] = []
        while True:
            chunk = await self.streams.read(name, position)
            if chunk.payloads:
                assert chunk.next_offset > position
            found.append((chunk.next_offset, list(chunk.payloads)))
            if chunk.is_end:
                return found
            assert len(found) < 20 or any(payloads for _, payloads in found[-20:]), (
                "reads make progress; a new append may be visible only in a later read"
            )
            position = chunk.next_offset

    async def tail(self, name: StreamName) -> int:
        return (await self.streams.snapshot(name)).tail

    async def subjects(self, tenant: str) -> list[str]:
        """Subjects of everything stored for the tenant's streams except the directory, in order, without the tenant."""
        found: list[str] = []
        position, is_end = 1, False
        while not is_end:
            page = await stream_reader.read(self.connection, f"S_{tenant}", ">", position, 1000)
            subjects = [entry.subject for entry in page.entries if not entry.subject.startswith("i.")]
            found += [subject.replace(f".{tenant}.", ".", 1) for subject in subjects]
            position, is_end = page.next_sequence, page.is_end
        return found


OpenWorker = Callable[[], Awaitable[Worker]]


async def open_worker(url: str) -> Worker:
    connection = Connection(ConnectionSettings((url,), name="tests-streams"))
    await connection.open(deadline=10)
    clock = ShiftedClock()
    committers = Committers(connection, CommitPolicy(), WriteBufferLimit(256 * 1024 * 1024))
    store, outbox, usage = (
        StreamStore(connection, committers, 1),
        Outbox(committers, now_ms),
        UsageCounters(StreamsCapability.usage),
    )
    for spec in frame_streams(1):
        await ensure_stream(connection, spec)
    return Worker(connection, store, Streams(store, outbox, usage, clock), clock, outbox, usage)
