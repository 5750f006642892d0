"""Durable streams on the engine: one engine stream per tenant, and for each durable stream these subjects of it.

    s.<tenant>.<id>.d    data, one message per append; its sequence is the offset behind it
    s.<tenant>.<id>.m    records of what the stream is; the last one holds, and every append is fenced by it
    a.<tenant>.<id>      when it was last read, if it has a sliding lifetime; the last one holds
    p.<tenant>.<id>      what is known of its producers up to some offset; the last one holds

An append that depends on what was appended before (producers, Stream-Seq, closing) is fenced by the last message of
`s.<tenant>.<id>.*`, any other by the record alone, so that those of several processes do not get in each other's way.
"""

from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committer, Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, delete_stream, ensure_stream, purge_stream, stream_info
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import republish
from postroad.kernel.errors import StreamNotFound
from postroad.kernel.ids import new_id
from postroad.kernel.names import escape, stream_subject, streams_store
from postroad.streams.records import (
    Checkpoint,
    Producer,
    StreamRecord,
    decode_checkpoint,
    decode_record,
    encode_record,
    resolved,
)
from postroad.streams.rules import ProducerClaim, StreamSnapshot

PRODUCER = "Ds-Producer"
SEQ = "Ds-Seq"
_DEDUPE_NS = 60 * 1_000_000_000
_SCAN = 512

log = structlog.get_logger("postroad.streams")


@dataclass(frozen=True, slots=True)
class Name:
    """A durable stream, by its tenant and id."""

    tenant: str
    id: str

    @property
    def store(self) -> str:
        return streams_store(self.tenant)

    @property
    def subject(self) -> str:
        return stream_subject(self.tenant, self.id)

    @property
    def data(self) -> str:
        return f"{self.subject}.d"

    @property
    def record(self) -> str:
        return f"{self.subject}.m"

    @property
    def everything(self) -> str:
        return f"{self.subject}.*"

    @property
    def access(self) -> str:
        return f"a.{self.tenant}.{escape(self.id)}"

    @property
    def checkpoint(self) -> str:
        return f"p.{self.tenant}.{escape(self.id)}"


def store_spec(tenant: str, replicas: int) -> StreamSpec:
    kinds = ("s", "a", "p", "f", "g", "x")  # the last three are what sessions add (`sessions/records.py`)
    subjects = tuple(f"{kind}.{tenant}.>" for kind in kinds)
    options = {
        "allow_atomic": True,
        "allow_rollup_hdrs": True,
        "duplicate_window": _DEDUPE_NS,
        "num_replicas": replicas,
        "republish": republish(f"s.{tenant}.>"),
    }
    return StreamSpec(streams_store(tenant), subjects, options)


def precondition(subject: str, last: int) -> str:
    """Header lines: store this only if `last` is the sequence of what was last stored under `subject`."""
    return f"Nats-Expected-Last-Subject-Sequence: {last}\r\nNats-Expected-Last-Subject-Sequence-Subject: {subject}\r\n"


def data_draft(name: Name, data: bytes, claim: ProducerClaim | None, seq: str | None, condition: str = "") -> PendingMessage:
    lines = condition
    if claim is not None:
        lines += f"{PRODUCER}: {quote(claim.id, safe='')} {claim.epoch} {claim.sequence}\r\n"
    if seq is not None:
        lines += f"{SEQ}: {quote(seq, safe='')}\r\n"
    return PendingMessage(name.data, data, new_id(), lines, bool(condition), _rests_on(name, condition))


def record_draft(name: Name, record: StreamRecord, condition: str = "") -> PendingMessage:
    return PendingMessage(name.record, encode_record(record), new_id(), condition, bool(condition), _rests_on(name, condition))


def _rests_on(name: Name, condition: str) -> str:
    return name.subject if condition and name.everything in condition else ""


class Store:
    """Reads and writes the streams of all tenants."""

    def __init__(self, connection: Connection, committers: Committers, replicas: int) -> None:
        self.connection, self._committers, self._replicas = connection, committers, replicas
        self._ensured: set[str] = set()

    async def ensure(self, tenant: str) -> None:
        """The tenant's engine stream, made when it is first needed."""
        if tenant not in self._ensured:
            await ensure_stream(self.connection, store_spec(tenant, self._replicas))
            self._ensured.add(tenant)

    async def purge_subject(self, tenant: str, subject: str, before: int) -> None:
        await purge_stream(self.connection, streams_store(tenant), subject, before=before)

    async def exists(self, tenant: str) -> bool:
        """Whether the tenant ever had streams."""
        return tenant in self._ensured or await stream_info(self.connection, streams_store(tenant)) is not None

    def committer(self, name: Name) -> Committer:
        return self._committers.of(name.store)

    async def delete_all(self, tenant: str) -> None:
        self._ensured.discard(tenant)
        self._committers.forget(streams_store(tenant), StreamNotFound("the tenant was deleted"))
        await delete_stream(self.connection, streams_store(tenant))

    # What is known of a stream

    async def known(self, name: Name, *, with_producers: bool = False) -> StreamSnapshot:
        """All that is stored about a stream at this moment."""
        await self.ensure(name.tenant)
        known = self._known(name, await stream_reader.newest(self.connection, name.store, (name.everything, name.access)))
        return await self._with_producers(name, known) if with_producers else known

    def _known(self, name: Name, entries: list[Entry]) -> StreamSnapshot:
        known = StreamSnapshot(None)
        for entry in entries:
            if entry.subject == name.record:
                known = replace(known, record=resolved(decode_record(entry.payload), entry.sequence), record_at=entry.sequence)
            elif entry.subject == name.data:
                known = replace(known, tail=entry.sequence)
            if entry.subject != name.access:
                known = replace(known, last=max(known.last, entry.sequence))
            known = replace(known, touched_at_ms=max(known.touched_at_ms, entry.at_ms))
        record = known.record
        if record is None:
            return known
        tail = known.tail if known.tail > record.born else record.base  # older data are of a stream that had this name before
        return replace(known, tail=tail)

    async def record(self, name: Name) -> StreamRecord | None:
        """The stream's record alone, which is quicker."""
        await self.ensure(name.tenant)
        entry = await stream_reader.last(self.connection, name.store, name.record)
        return None if entry is None else resolved(decode_record(entry.payload), entry.sequence)

    async def _with_producers(self, name: Name, known: StreamSnapshot) -> StreamSnapshot:
        """Read what was appended since the last checkpoint; if no append was ever guarded there is nothing to read."""
        record = known.record
        if record is None or record.guarded_from is None:
            return replace(known, producers={}, last_seq=None)
        producers: dict[str, Producer] = {}
        last_seq: str | None = None
        after = record.guarded_from
        saved = await stream_reader.last(self.connection, name.store, name.checkpoint)
        if saved is not None and (checkpoint := decode_checkpoint(saved.payload)).born == record.born:
            producers, last_seq, after = dict(checkpoint.producers), checkpoint.last_seq, checkpoint.at
        scanned = 0
        while after < known.tail:
            # Who has one fewer than there are would take an append for new that was made before.
            page = await stream_reader.read_to(self.connection, name.store, name.data, after + 1, known.tail, _SCAN)
            for entry in page.entries:
                if entry.sequence > known.last:  # written since; the fence will tell
                    break
                last_seq = _note(entry, producers) or last_seq
                scanned += 1
            after = page.next_sequence - 1
            if page.is_end:
                break
        known = replace(known, producers=producers, last_seq=last_seq)
        if scanned > 2 * _SCAN:
            await self.save_checkpoint(name, known)
        return known

    async def save_checkpoint(self, name: Name, known: StreamSnapshot) -> None:
        if known.record is None or known.producers is None:
            return
        checkpoint = Checkpoint(born=known.record.born, at=known.last, producers=dict(known.producers), last_seq=known.last_seq)
        await self.committer(name).append(
            PendingMessage(name.checkpoint, encode_record(checkpoint), new_id(), "Nats-Rollup: sub\r\n")
        )

    async def touch(self, name: Name) -> None:
        """Somebody read the stream just now."""
        await self.committer(name).append(PendingMessage(name.access, b"", new_id(), "Nats-Rollup: sub\r\n"))

    # Reading and removing

    @property
    def may_lag(self) -> bool:
        """Whether what is read may end before the stream does, as a replica has not got all of it yet."""
        return self.connection.settings.has_replicas

    async def read(self, name: Name, after: int, limit: int, bytes_max: int) -> stream_reader.Page:
        return await stream_reader.read(self.connection, name.store, name.data, after + 1, limit, bytes_max)

    async def purge(self, name: Name, before: int) -> None:
        """Everything of the stream that was written before this sequence."""
        for subject in (name.everything, name.access, name.checkpoint):
            await purge_stream(self.connection, name.store, subject, before=before)

    async def last_sequence(self, tenant: str) -> int:
        """Of all that is stored of the tenant's streams."""
        info = await stream_info(self.connection, streams_store(tenant))
        return 0 if info is None else info.state.last_seq

    async def page_of_records(self, tenant: str, from_sequence: int, limit: int) -> stream_reader.Page:
        """Records of the tenant's streams, old ones too, in the order in which they were written."""
        return await stream_reader.read(self.connection, streams_store(tenant), f"s.{tenant}.*.m", from_sequence, limit)


def _note(entry: Entry, producers: dict[str, Producer]) -> str | None:
    """Enter what an append says of its producer; returns its Stream-Seq."""
    said = entry.headers.get(PRODUCER)
    if said is not None:
        producer, epoch, sequence = said.split(" ")
        producers[unquote(producer)] = Producer(int(epoch), int(sequence))
    seq = entry.headers.get(SEQ)
    return None if seq is None else unquote(seq)
