"""Rules of the Durable Streams protocol for appends, decided from a snapshot of the stream. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from postroad.api.streams import (
    ContentTypeMismatch,
    OffsetGone,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
    StreamGone,
    StreamNotFound,
    media_type,
)
from postroad.kernel.errors import InvalidParameter, PostroadError, PreconditionFailed
from postroad.streams.offsets import Now, Position, Start, offset_text
from postroad.streams.records import ClosedBy, Producer, State, StreamRecord

SAFE_INTEGER = 2**53 - 1
PRODUCER_CHARS_MAX = 256
SEQ_CHARS_MAX = 256
PRODUCERS_MAX = 10_000

_DIGITS = re.compile(r"[0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class ProducerClaim:
    """Producer id, epoch and sequence from the request headers."""

    id: str
    epoch: int
    sequence: int


def parse_producer(producer: str | None, epoch: str | None, sequence: str | None) -> ProducerClaim | None:
    """Parse the three producer headers, which must be present together. Raises InvalidParameter."""
    if producer is None and epoch is None and sequence is None:
        return None
    if producer is None or epoch is None or sequence is None:
        raise InvalidParameter("Producer-Id, Producer-Epoch and Producer-Seq must be sent together")
    if not producer or len(producer) > PRODUCER_CHARS_MAX:
        raise InvalidParameter(f"Producer-Id has 1 to {PRODUCER_CHARS_MAX} characters")
    return ProducerClaim(producer, _parse_integer("Producer-Epoch", epoch), _parse_integer("Producer-Seq", sequence))


def _parse_integer(name: str, text: str) -> int:
    if not _DIGITS.fullmatch(text) or int(text) > SAFE_INTEGER:
        raise InvalidParameter(f"{name} is a whole number up to {SAFE_INTEGER}")
    return int(text)


def check_seq(text: str | None) -> str | None:
    """Raises InvalidParameter."""
    if text is not None and (not text or len(text) > SEQ_CHARS_MAX):
        raise InvalidParameter(f"Stream-Seq has 1 to {SEQ_CHARS_MAX} characters")
    return text


class AppendRequest(msgspec.Struct, frozen=True):
    """A request to append, to close, or both. `data` None: nothing to append. `fault`: an error of the body, raised by
    `decide`."""

    data: bytes | None
    content_type: str | None
    claim: ProducerClaim | None = None
    seq: str | None = None
    closes: bool = False
    fault: PostroadError | None = None

    @property
    def is_guarded(self) -> bool:
        """True if the outcome depends on earlier appends."""
        return self.claim is not None or self.seq is not None or self.closes


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """State of a stream as read by one process. `producers` None: not loaded. `stream` is its id, for errors."""

    record: StreamRecord | None
    record_at: int = 0  # sequence of the record
    last: int = 0  # sequence of the last message of any kind
    tail: int = 0  # sequence of the last data
    used_at_ms: int = 0  # time of the last read or write
    producers: Mapping[str, Producer] | None = None
    last_seq: str | None = None
    stream: str = ""

    @property
    def existing(self) -> StreamRecord:
        """The record of a stream that was found to exist. Raises StreamNotFound."""
        if self.record is None:
            raise StreamNotFound(f"there is no stream {self.stream!r}")
        return self.record


class AppendOutcome(msgspec.Struct, frozen=True):
    """Result of an append. `is_duplicate`: the same append was stored before."""

    next_offset: int
    is_closed: bool
    is_duplicate: bool = False
    claim: ProducerClaim | None = None


class StreamChange(msgspec.Struct, frozen=True):
    """Writes of an accepted append. Their sequences are not known yet."""

    request: AppendRequest
    record: StreamRecord | None = None  # the new record, if it changes
    producers: dict[str, Producer] | None = None


def is_expired(record: StreamRecord, used_at_ms: int, now_ms: int) -> bool:
    if record.expires_at_ms is not None:
        return now_ms >= record.expires_at_ms
    return record.ttl_seconds is not None and now_ms >= used_at_ms + record.ttl_seconds * 1000


def existing_record(snapshot: StreamSnapshot, now_ms: int) -> StreamRecord:
    """The record of a stream that is neither deleted nor expired. Raises StreamNotFound, StreamGone."""
    record = snapshot.record
    if record is None or record.state is State.DELETED:
        raise StreamNotFound(f"there is no stream {snapshot.stream!r}")
    if record.state is State.SOFT_DELETED:
        raise StreamGone(f"the stream {snapshot.stream!r} was deleted; its forks can still read its data")
    if is_expired(record, snapshot.used_at_ms, now_ms):
        raise StreamNotFound(f"the stream {snapshot.stream!r} has expired")
    return record


def start_of(record: StreamRecord, position: Position, tail: int) -> int:
    """The offset at which a read begins. Raises OffsetGone."""
    if isinstance(position, Now):
        return tail
    if isinstance(position, Start):
        return record.trimmed_to
    check_not_trimmed(record, position)
    return position


def check_not_trimmed(record: StreamRecord, offset: int) -> None:
    """Raises OffsetGone if data after the offset was dropped."""
    if offset < record.trimmed_to:
        start = offset_text(record.trimmed_to)
        raise OffsetGone(f"the stream {record.id!r} begins at {start}", headers=[("Stream-Start-Offset", start)])


def decide(snapshot: StreamSnapshot, request: AppendRequest, now_ms: int) -> StreamChange | AppendOutcome:
    """The writes of a new append, or the outcome of a repeated one. Raises the protocol's errors, checked in the protocol's
    order."""
    record = existing_record(snapshot, now_ms)
    if request.data is None and not request.closes:
        raise request.fault or InvalidParameter("the body is empty: there is nothing to append")
    if request.data is not None and request.content_type is None:
        raise InvalidParameter("the header Content-Type is missing or invalid")
    if request.closes and record.is_session_stream:
        raise PreconditionFailed("a session's stream cannot be closed; delete the session")
    if record.is_closed:
        return _decide_closed(snapshot, record, request)
    if request.data is not None and media_type(request.content_type or "") != media_type(record.content_type):
        raise ContentTypeMismatch(f"the content type of the stream {snapshot.stream!r} is {record.content_type!r}")
    change = _decide_producer(snapshot, request)
    if isinstance(change, AppendOutcome):
        return change
    if request.seq is not None and snapshot.last_seq is not None and request.seq.encode() <= snapshot.last_seq.encode():
        raise SequenceConflict(f"the last Stream-Seq was {snapshot.last_seq[:64]!r}")
    if request.fault is not None:
        raise request.fault
    changed = _changed_record(record, request)
    return change if changed is None else msgspec.structs.replace(change, record=changed)


def _decide_closed(snapshot: StreamSnapshot, record: StreamRecord, request: AppendRequest) -> AppendOutcome:
    """A repeated close is a duplicate; everything else is refused."""
    claim = request.claim
    if claim is not None and record.closed_by == ClosedBy(claim.id, claim.epoch, claim.sequence):
        return AppendOutcome(snapshot.tail, is_closed=True, is_duplicate=True, claim=claim)
    if claim is None and request.data is None:
        return AppendOutcome(snapshot.tail, is_closed=True, is_duplicate=True)
    headers = [("Stream-Closed", "true"), ("Stream-Next-Offset", offset_text(snapshot.tail))]
    raise StreamClosed(f"the stream {snapshot.stream!r} is closed", headers=headers)


def _decide_producer(snapshot: StreamSnapshot, request: AppendRequest) -> StreamChange | AppendOutcome:
    claim = request.claim
    if claim is None:
        return StreamChange(request)
    before = (snapshot.producers or {}).get(claim.id)
    if before is not None and claim.epoch < before.epoch:
        raise ProducerFenced(f"the producer's epoch is {before.epoch}", headers=[("Producer-Epoch", str(before.epoch))])
    if before is not None and claim.epoch == before.epoch:
        if claim.sequence <= before.sequence:
            accepted = ProducerClaim(claim.id, before.epoch, before.sequence)
            return AppendOutcome(snapshot.tail, is_closed=False, is_duplicate=True, claim=accepted)
        expected = before.sequence + 1
    elif before is not None and claim.sequence != 0:
        raise InvalidParameter("a new epoch begins with Producer-Seq 0")
    else:
        expected = 0
    if claim.sequence != expected:
        headers = [("Producer-Expected-Seq", str(expected)), ("Producer-Received-Seq", str(claim.sequence))]
        raise ProducerGap(f"the expected Producer-Seq is {expected}", headers=headers)
    if before is None and len(snapshot.producers or {}) >= PRODUCERS_MAX:
        raise InvalidParameter(f"a stream has at most {PRODUCERS_MAX} producers")
    return StreamChange(request, producers={claim.id: Producer(claim.epoch, claim.sequence)})


def _changed_record(record: StreamRecord, request: AppendRequest) -> StreamRecord | None:
    """The record after the append, None if it does not change. The first guarded append sets `guarded_from`."""
    begins_guard = record.guarded_from is None and (request.claim is not None or request.seq is not None)
    if not (request.closes or begins_guard):
        return None
    claim = request.claim
    closed_by = ClosedBy(claim.id, claim.epoch, claim.sequence) if request.closes and claim is not None else None
    return msgspec.structs.replace(
        record,
        is_closed=request.closes,
        closed_by=closed_by,
        guarded_from=0 if begins_guard else record.guarded_from,
    )


def with_change(snapshot: StreamSnapshot, change: StreamChange, now_ms: int) -> StreamSnapshot:
    """The snapshot for the next decision in the same batch. Sequences are unknown; the caller updates the producers."""
    return replace(
        snapshot,
        record=change.record or snapshot.record,
        last_seq=change.request.seq if change.request.seq is not None else snapshot.last_seq,
        used_at_ms=max(snapshot.used_at_ms, now_ms),
    )
