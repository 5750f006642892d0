"""Storage of durable streams: one JetStream stream per tenant, and these subjects for each durable stream.

    s.<tenant>.<id>.d    data, one message per append; its sequence is the offset after it
    s.<tenant>.<id>.m    records with the stream's properties; the last one counts
    a.<tenant>.<id>      empty message at the last read, if the stream has a TTL; the last one counts
    p.<tenant>.<id>      checkpoint of the producers; the last one counts
    r.<tenant>.<id>      marks a stream with retention; the last one counts (`retention.py`)
    i.<tenant>.…         directory of the tenant's streams (`directory.py`)

An append that depends on earlier appends (producer, `Stream-Seq`, close) is stored only if the last message of
`s.<tenant>.<id>.*` has not changed. Any other append depends on the record alone, so that appends of several processes do not
conflict.
"""

from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

import msgspec

from postroad.api.streams import StreamNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committer, Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, delete_stream, ensure_stream, purge_stream, stream_info
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import republish
from postroad.kernel.ids import new_id
from postroad.kernel.names import escape, stream_subject, streams_store
from postroad.streams.records import (
    Checkpoint,
    Producer,
    StreamRecord,
    decode_checkpoint,
    decode_record,
    encode_record,
    resolve,
)
from postroad.streams.rules import ProducerClaim, StreamSnapshot

LAST_ONLY = "Nats-Rollup: sub\r\n"  # the message replaces all earlier ones of its subject
_PRODUCER = "Ds-Producer"
_SEQ = "Ds-Seq"
_DEDUPE_NS = 60 * 1_000_000_000
_PRODUCERS_PAGE = 512


@dataclass(frozen=True, slots=True)
class StreamName:
    """Tenant and id of a durable stream, and its subjects."""

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
    def data_and_record(self) -> str:
        return f"{self.subject}.*"

    @property
    def last_read(self) -> str:
        return f"a.{self.tenant}.{escape(self.id)}"

    @property
    def checkpoint(self) -> str:
        return f"p.{self.tenant}.{escape(self.id)}"

    @property
    def retention(self) -> str:
        return f"r.{self.tenant}.{escape(self.id)}"


def store_spec(tenant: str, replicas: int) -> StreamSpec:
    kinds = ("s", "a", "p", "i", "r", "f", "g", "x")  # the last three belong to sessions (`sessions/records.py`)
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
    """Header lines: store the message only if the last one of `subject` has the sequence `last`."""
    return f"Nats-Expected-Last-Subject-Sequence: {last}\r\nNats-Expected-Last-Subject-Sequence-Subject: {subject}\r\n"


def data_message(
    name: StreamName, data: bytes, claim: ProducerClaim | None, seq: str | None, condition: str = "", message_id: str = ""
) -> PendingMessage:
    """`message_id`: that of an earlier attempt, if there was one."""
    headers = condition
    if claim is not None:
        headers += f"{_PRODUCER}: {quote(claim.id, safe='')} {claim.epoch} {claim.sequence}\r\n"
    if seq is not None:
        headers += f"{_SEQ}: {quote(seq, safe='')}\r\n"
    precondition_subject = _precondition_subject(name, condition)
    return PendingMessage(name.data, data, message_id or new_id(), headers, bool(condition), precondition_subject)


def record_message(name: StreamName, record: StreamRecord, condition: str = "") -> PendingMessage:
    """A new record, which counts as use of the stream."""
    if record.used_at_ms:
        record = msgspec.structs.replace(record, used_at_ms=0)
    precondition_subject = _precondition_subject(name, condition)
    return PendingMessage(name.record, encode_record(record), new_id(), condition, bool(condition), precondition_subject)


def trim_message(name: StreamName, record: StreamRecord, condition: str) -> PendingMessage:
    """A record with a later start, in place of all earlier ones; no use of the stream."""
    return PendingMessage(name.record, encode_record(record), new_id(), LAST_ONLY + condition, is_conditional=True)


def _precondition_subject(name: StreamName, condition: str) -> str:
    return name.subject if condition and name.data_and_record in condition else ""


class StreamStore:
    """Reads and writes the streams of all tenants."""

    def __init__(self, connection: Connection, committers: Committers, replicas: int) -> None:
        self.connection, self._committers, self._replicas = connection, committers, replicas
        self._ensured: set[str] = set()

    async def ensure(self, tenant: str) -> None:
        """Create the tenant's JetStream stream before its first use."""
        if tenant not in self._ensured:
            await ensure_stream(self.connection, store_spec(tenant, self._replicas))
            self._ensured.add(tenant)

    async def exists(self, tenant: str) -> bool:
        """True if the tenant has a JetStream stream."""
        return tenant in self._ensured or await stream_info(self.connection, streams_store(tenant)) is not None

    def committer(self, name: StreamName) -> Committer:
        return self._committers.of(name.store)

    def committer_of(self, tenant: str) -> Committer:
        return self._committers.of(streams_store(tenant))

    async def delete_all(self, tenant: str) -> None:
        self._ensured.discard(tenant)
        self._committers.forget(streams_store(tenant), StreamNotFound("the tenant was deleted"))
        await delete_stream(self.connection, streams_store(tenant))

    # Snapshots

    async def snapshot(self, name: StreamName, *, with_producers: bool = False) -> StreamSnapshot:
        """Current state of a stream, whether it exists or not."""
        await self.ensure(name.tenant)
        entries = await stream_reader.newest(self.connection, name.store, (name.data_and_record, name.last_read))
        snapshot = snapshot_of(name, entries)
        return await self._with_producers(name, snapshot) if with_producers else snapshot

    async def record(self, name: StreamName) -> StreamRecord | None:
        """The record alone; faster than `snapshot`."""
        await self.ensure(name.tenant)
        entry = await stream_reader.last(self.connection, name.store, name.record)
        return None if entry is None else resolve(decode_record(entry.payload), entry.sequence)

    async def _with_producers(self, name: StreamName, snapshot: StreamSnapshot) -> StreamSnapshot:
        """Add the producers: the last checkpoint, and the data after it. Without guarded appends there is nothing to read."""
        record = snapshot.record
        if record is None or record.guarded_from is None:
            return replace(snapshot, producers={}, last_seq=None)
        producers: dict[str, Producer] = {}
        last_seq: str | None = None
        after = record.guarded_from
        saved = await stream_reader.last(self.connection, name.store, name.checkpoint)
        if saved is not None and (checkpoint := decode_checkpoint(saved.payload)).incarnation == record.incarnation:
            producers, last_seq, after = dict(checkpoint.producers), checkpoint.last_seq, checkpoint.at
        scanned = 0
        while after < snapshot.tail:
            # The scan must be complete: a missing entry would let a repeated append pass as new.
            page = await stream_reader.read_to(self.connection, name.store, name.data, after + 1, snapshot.tail, _PRODUCERS_PAGE)
            for entry in page.entries:
                if entry.sequence > snapshot.last:  # written after the snapshot: the precondition detects it
                    break
                last_seq = _apply_headers(entry, producers) or last_seq
                scanned += 1
            after = page.next_sequence - 1
            if page.is_end:
                break
        snapshot = replace(snapshot, producers=producers, last_seq=last_seq)
        if scanned > 2 * _PRODUCERS_PAGE:
            await self.save_checkpoint(name, snapshot)
        return snapshot

    async def confirm(self, name: StreamName, snapshot: StreamSnapshot) -> None:
        """Return if the snapshot was still current after it was read. Raises Conflict if something has been written since.

        During a partition a leader that was replaced answers reads for some seconds more, but it can store nothing: only a
        write shows that a snapshot was not its.
        """
        await self.save_checkpoint(name, snapshot, precondition(name.data_and_record, snapshot.last))

    async def save_checkpoint(self, name: StreamName, snapshot: StreamSnapshot, condition: str = "") -> None:
        if snapshot.record is None or snapshot.producers is None:
            return
        checkpoint = Checkpoint(
            incarnation=snapshot.record.incarnation,
            at=snapshot.last,
            producers=dict(snapshot.producers),
            last_seq=snapshot.last_seq,
        )
        message = PendingMessage(
            name.checkpoint,
            encode_record(checkpoint),
            new_id(),
            LAST_ONLY + condition,
            bool(condition),
            _precondition_subject(name, condition),
        )
        await self.committer(name).append(message, uses_reserve=True)

    async def save_read_time(self, name: StreamName) -> None:
        """Store the current time as the time of the last read."""
        await self.committer(name).append(PendingMessage(name.last_read, b"", new_id(), LAST_ONLY), uses_reserve=True)

    # Data and records

    @property
    def may_lag(self) -> bool:
        """True if a read may end before the stream does, because a replica is behind."""
        return self.connection.settings.has_replicas

    async def read(self, name: StreamName, after: int, limit: int, bytes_max: int) -> stream_reader.Page:
        return await stream_reader.read(self.connection, name.store, name.data, after + 1, limit, bytes_max)

    async def read_records(self, tenant: str, from_sequence: int, limit: int) -> stream_reader.Page:
        """Records of all streams of the tenant in the order of their writing, superseded ones included."""
        return await stream_reader.read(self.connection, streams_store(tenant), f"s.{tenant}.*.m", from_sequence, limit)

    async def last_sequence(self, tenant: str) -> int:
        info = await stream_info(self.connection, streams_store(tenant))
        return 0 if info is None else info.state.last_seq

    async def purge(self, name: StreamName, before: int) -> None:
        """Remove everything of the stream that has a lower sequence."""
        for subject in (name.data_and_record, name.last_read, name.checkpoint, name.retention):
            await self.purge_subject(name.tenant, subject, before)

    async def purge_subject(self, tenant: str, subject: str, before: int) -> int:
        """Remove everything of a subject that has a lower sequence; returns the number of messages."""
        return await purge_stream(self.connection, streams_store(tenant), subject, before=before)


def snapshot_of(name: StreamName, entries: list[Entry]) -> StreamSnapshot:
    """The state of a stream from the newest entries of its subjects."""
    snapshot = StreamSnapshot(None, stream=name.id)
    for entry in entries:
        if entry.subject == name.record:
            record = resolve(decode_record(entry.payload), entry.sequence)
            snapshot = replace(snapshot, record=record, record_at=entry.sequence)
        elif entry.subject == name.data:
            snapshot = replace(snapshot, tail=entry.sequence)
        if entry.subject != name.last_read:
            snapshot = replace(snapshot, last=max(snapshot.last, entry.sequence))
        is_trim = entry.subject == name.record and snapshot.record is not None and snapshot.record.used_at_ms
        used_at_ms = snapshot.record.used_at_ms if is_trim and snapshot.record is not None else entry.at_ms
        snapshot = replace(snapshot, used_at_ms=max(snapshot.used_at_ms, used_at_ms))
    if snapshot.record is None:
        return snapshot
    # Older data belongs to an earlier incarnation.
    is_own = snapshot.tail > snapshot.record.incarnation
    return replace(snapshot, tail=snapshot.tail if is_own else max(snapshot.record.base, snapshot.record.trimmed_to))


def _apply_headers(entry: Entry, producers: dict[str, Producer]) -> str | None:
    """Update the producers from the headers of an append; returns its `Stream-Seq`."""
    claim = entry.headers.get(_PRODUCER)
    if claim is not None:
        producer, epoch, sequence = claim.split(" ")
        producers[unquote(producer)] = Producer(int(epoch), int(sequence))
    seq = entry.headers.get(_SEQ)
    return None if seq is None else unquote(seq)
