"""What the Durable Streams protocol demands of an append, decided from what is known of the stream. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from postroad.kernel.errors import (
    ContentTypeMismatch,
    InvalidParameter,
    PostroadError,
    PreconditionFailed,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
    StreamGone,
    StreamNotFound,
)
from postroad.streams.offsets import offset_text
from postroad.streams.records import ClosedBy, Producer, State, StreamRecord, media_type

SAFE_INTEGER = 2**53 - 1
PRODUCER_CHARS_MAX = 256
SEQ_CHARS_MAX = 256
PRODUCERS_MAX = 10_000

_DIGITS = re.compile(r"[0-9]{1,16}")


@dataclass(frozen=True, slots=True)
class ProducerClaim:
    """Who says to be appending, and the how-manieth time."""

    id: str
    epoch: int
    sequence: int


def parse_producer(producer: str | None, epoch: str | None, sequence: str | None) -> ProducerClaim | None:
    """From the three headers, all or none. Raises InvalidParameter."""
    if producer is None and epoch is None and sequence is None:
        return None
    if producer is None or epoch is None or sequence is None:
        raise InvalidParameter("Producer-Id, Producer-Epoch and Producer-Seq come together")
    if not producer or len(producer) > PRODUCER_CHARS_MAX:
        raise InvalidParameter(f"Producer-Id has 1 to {PRODUCER_CHARS_MAX} characters")
    return ProducerClaim(producer, _count("Producer-Epoch", epoch), _count("Producer-Seq", sequence))


def _count(name: str, text: str) -> int:
    if not _DIGITS.fullmatch(text) or int(text) > SAFE_INTEGER:
        raise InvalidParameter(f"{name} is a whole number up to {SAFE_INTEGER}")
    return int(text)


class AppendRequest(msgspec.Struct, frozen=True):
    """What somebody wants to be done to a stream: append, close, or both at once.

    `data` None: nothing is appended. `fault`: what is wrong with the body, to be said in its turn.
    """

    data: bytes | None
    content_type: str | None
    claim: ProducerClaim | None = None
    seq: str | None = None
    closes: bool = False
    fault: PostroadError | None = None

    @property
    def is_guarded(self) -> bool:
        """Whether it depends on what was appended before."""
        return self.claim is not None or self.seq is not None or self.closes


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """What one process knows of a stream. `producers` None: not loaded."""

    record: StreamRecord | None
    record_at: int = 0  # the record's sequence
    last: int = 0  # of whatever was written to the stream
    tail: int = 0  # of its data
    touched_at_ms: int = 0
    producers: Mapping[str, Producer] | None = None
    last_seq: str | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What became of a wish. `is_duplicate`: it had been done before."""

    next_offset: int
    is_closed: bool
    is_duplicate: bool = False
    claim: ProducerClaim | None = None


class Change(msgspec.Struct, frozen=True):
    """What a wish changes. The sequence it gets is not known yet."""

    request: AppendRequest
    record: StreamRecord | None = None  # a new record, if it changes that
    producers: dict[str, Producer] | None = None


def is_expired(record: StreamRecord, touched_at_ms: int, now_ms: int) -> bool:
    if record.expires_at_ms is not None:
        return now_ms >= record.expires_at_ms
    return record.ttl_seconds is not None and now_ms >= touched_at_ms + record.ttl_seconds * 1000


def found(known: StreamSnapshot, now_ms: int) -> StreamRecord:
    """The stream's record. Raises StreamNotFound, StreamGone."""
    record = known.record
    if record is None or record.state is State.DELETED:
        raise StreamNotFound("there is no such stream")
    if record.state is State.HIDDEN:
        raise StreamGone("the stream was deleted; streams forked from it still have what it had")
    if is_expired(record, known.touched_at_ms, now_ms):
        raise StreamNotFound("the stream has expired")
    return record


def decide(known: StreamSnapshot, request: AppendRequest, now_ms: int) -> Change | Outcome:
    """Either what is to be written, or the outcome of what was done before. Raises what the protocol answers otherwise.

    The order of the checks is the protocol's.
    """
    record = found(known, now_ms)
    if request.data is None and not request.closes:
        raise request.fault or InvalidParameter("the body is empty: there is nothing to append")
    if request.data is not None and request.content_type is None:
        raise InvalidParameter("say what the body is: Content-Type is missing")
    if request.closes and record.is_session_stream:
        raise PreconditionFailed("a session's stream is not closed: the session is deleted")
    if record.is_closed:
        return _of_a_closed_one(known, record, request)
    if request.data is not None and media_type(request.content_type or "") != media_type(record.content_type):
        raise ContentTypeMismatch(f"the stream is of {record.content_type!r}")
    change = _producer_change(known, request)
    if isinstance(change, Outcome):
        return change
    if request.seq is not None and known.last_seq is not None and request.seq.encode() <= known.last_seq.encode():
        raise SequenceConflict(f"the last Stream-Seq was {known.last_seq[:64]!r}")
    if request.fault is not None:
        raise request.fault
    changed = _changed_record(record, request)
    return change if changed is None else msgspec.structs.replace(change, record=changed)


def _of_a_closed_one(known: StreamSnapshot, record: StreamRecord, request: AppendRequest) -> Outcome:
    claim = request.claim
    if claim is not None and record.closed_by == ClosedBy(claim.id, claim.epoch, claim.sequence):
        return Outcome(known.tail, is_closed=True, is_duplicate=True, claim=claim)
    if claim is None and request.data is None:
        return Outcome(known.tail, is_closed=True, is_duplicate=True)
    headers = [("Stream-Closed", "true"), ("Stream-Next-Offset", offset_text(known.tail))]
    raise StreamClosed("the stream is closed", headers=headers)


def _producer_change(known: StreamSnapshot, request: AppendRequest) -> Change | Outcome:
    claim = request.claim
    if claim is None:
        return Change(request)
    before = (known.producers or {}).get(claim.id)
    if before is not None and claim.epoch < before.epoch:
        raise ProducerFenced(f"the producer's epoch is {before.epoch} by now", headers=[("Producer-Epoch", str(before.epoch))])
    if before is not None and claim.epoch == before.epoch:
        if claim.sequence <= before.sequence:
            accepted = ProducerClaim(claim.id, before.epoch, before.sequence)
            return Outcome(known.tail, is_closed=False, is_duplicate=True, claim=accepted)
        expected = before.sequence + 1
    elif before is not None and claim.sequence != 0:
        raise InvalidParameter("a new epoch begins with Producer-Seq 0")
    else:
        expected = 0
    if claim.sequence != expected:
        headers = [("Producer-Expected-Seq", str(expected)), ("Producer-Received-Seq", str(claim.sequence))]
        raise ProducerGap(f"the next one would be {expected}", headers=headers)
    if before is None and len(known.producers or {}) >= PRODUCERS_MAX:
        raise InvalidParameter(f"a stream has at most {PRODUCERS_MAX} producers")
    return Change(request, producers={claim.id: Producer(claim.epoch, claim.sequence)})


def _changed_record(record: StreamRecord, request: AppendRequest) -> StreamRecord | None:
    """The record after the wish, None if it stays. The first guarded append says so in it."""
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


def after(known: StreamSnapshot, change: Change, now_ms: int) -> StreamSnapshot:
    """What is known once the change is made, as far as it matters to the next decision: its sequences come later, and what it
    changes of the producers is the caller's to note."""
    return replace(
        known,
        record=change.record or known.record,
        last_seq=change.request.seq if change.request.seq is not None else known.last_seq,
        touched_at_ms=max(known.touched_at_ms, now_ms),
    )


def check_seq(text: str | None) -> str | None:
    if text is not None and (not text or len(text) > SEQ_CHARS_MAX):
        raise InvalidParameter(f"Stream-Seq has 1 to {SEQ_CHARS_MAX} characters")
    return text
