"""What a user can do with durable streams."""

from collections.abc import AsyncIterator

from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, follow
from postroad.kernel.clock import Clock
from postroad.kernel.errors import TooLarge
from postroad.kernel.names import streams_store, unescape
from postroad.kernel.usage_counters import UsageCounters
from postroad.streams.appender import StreamAppenders
from postroad.streams.events import StreamClosed
from postroad.streams.lifecycle import CreateResult, CreateStream, StreamLifecycle
from postroad.streams.offsets import Place, offset_text
from postroad.streams.reading import Chunk, Reading
from postroad.streams.records import State, StreamRecord, decode_record
from postroad.streams.rules import AppendRequest, Outcome, StreamSnapshot
from postroad.streams.store import Name, Store
from postroad.telemetry.outbox import Outbox

_PAGE = 500
_HEAD_ROOM = 4096  # for what stands in a stored message's head


class Streams:
    def __init__(self, store: Store, outbox: Outbox, traffic: UsageCounters, clock: Clock) -> None:
        self.store, self._outbox, self._clock = store, outbox, clock
        self._reading = Reading(store, clock)
        self._lives = StreamLifecycle(store, self._reading, outbox, clock)
        self._lanes = StreamAppenders(store, traffic, clock)

    async def create(self, name: Name, wanted: CreateStream, body: bytes = b"", *, key_id: str = "") -> CreateResult:
        """The stream as it is wanted, new or found as such. Raises StreamExists, InvalidParameter, MalformedJson; for a fork also
        StreamNotFound and NotNow of its source."""
        return await self._lives.create(name, wanted, body, key_id)

    async def append(self, name: Name, wish: AppendRequest, *, key_id: str = "") -> Outcome:
        """Append, close, or both. Returns once it would survive a crash; raises what `rules.decide` does, EngineUnavailable."""
        if wish.data is not None and len(wish.data) + _HEAD_ROOM > self.store.connection.max_payload:
            raise TooLarge(f"an append has at most {self.store.connection.max_payload - _HEAD_ROOM} bytes")
        outcome = await self._lanes.of(name).submit(wish)
        if wish.closes and not outcome.is_duplicate:
            self._outbox.record(None, StreamClosed(tenant=name.tenant, stream_id=name.id, key_id=key_id))
        return outcome

    async def look(self, name: Name, *, touches: bool = False) -> StreamSnapshot:
        """The stream as it is now; `touches` if that counts as use. Raises StreamNotFound, StreamGone."""
        return await self._reading.look(name, touches=touches)

    async def read(self, name: Name, place: Place) -> Chunk:
        """The data after a place, as much as fits an answer. Counts as use. Raises StreamNotFound, StreamGone."""
        return await self._reading.read(name, place)

    async def read_on(self, name: Name, record: StreamRecord, place: int) -> Chunk:
        """As `read`, of a stream that was found and whose reading was counted when it began. Nothing, if it is no more."""
        chunk = await self._reading.chunk(name, record, place)
        now = await self.store.record(name)
        if now is None or now.born != record.born:  # what was read may be of another stream of this name
            return Chunk(record, (), place, place, is_end=False, is_closed=False)
        return chunk

    async def delete(self, name: Name, *, key_id: str = "") -> None:
        """Raises StreamNotFound, StreamGone."""
        await self._lives.delete(name, key_id)

    async def delete_all(self, tenant: str) -> None:
        self._lanes.forget(tenant)
        await self.store.delete_all(tenant)

    async def end_expired(self, tenant: str) -> int:
        """How many streams of the tenant had expired, and are gone now."""
        ended = 0
        for stream in await self.paths(tenant):
            ended += await self._lives.end_if_expired(Name(tenant, stream))
        return ended

    # For what follows all streams of a tenant

    async def paths(self, tenant: str) -> list[str]:
        """The streams that there are, expired ones that nobody has noticed included."""
        found: dict[str, bool] = {}
        position = 1
        if not await self.store.exists(tenant):
            return []
        while True:
            page = await self.store.page_of_records(tenant, position, _PAGE)
            for entry in page.entries:
                record = decode_record(entry.payload)
                found[record.id] = record.state is State.LIVE
            position = page.next_sequence
            if page.is_end:
                return [stream for stream, is_live in found.items() if is_live]

    async def tail(self, tenant: str, path: str) -> str | None:
        known = await self.store.known(Name(tenant, path))
        if known.record is None or known.record.state is not State.LIVE:
            return None
        return offset_text(known.tail)

    async def append_json(self, tenant: str, path: str, element: bytes) -> None:
        await self.append(Name(tenant, path), AppendRequest(element, "application/json"))

    async def appended(self, tenant: str) -> AsyncIterator[tuple[str, str]]:
        """Where each stream of the tenant ends, each time that something was written to it."""
        await self.store.ensure(tenant)
        source = Source(streams_store(tenant), f"s.{tenant}.>")
        async for entry in follow(self.store.connection, source, await self.store.last_sequence(tenant)):
            yield _path_of(entry), offset_text(entry.sequence)


def _path_of(entry: Entry) -> str:
    return unescape(entry.subject.split(".")[2])
