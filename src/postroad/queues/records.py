"""Stored formats of queues: queue, message, dead letter, cancelled message, failure, idempotency marker, receipt. Pure."""

import struct

import msgspec
from msgspec.structs import replace

from postroad.api.queues import (
    ENGINE,
    Backend,
    DeadLetterOrigin,
    Priority,
    StrictQueueSettings,
)
from postroad.jetstream.deliveries import DeliveryRef
from postroad.jetstream.stream_lifecycle import StreamOwner
from postroad.kernel.clock import rfc3339
from postroad.kernel.ids import check_id, id_bytes, id_text
from postroad.kernel.names import dead_stream, dead_subject, queue_stream, queue_subject
from postroad.kernel.spans import SpanContext, Tracer
from postroad.queues.rules import GROUP_TOKEN_CHARS
from postroad.tracing.messaging import TracedMessage

ACK_MARK = b"done"  # payload of the marker of a message that is done
UNIQUE, PRIORITY, DEFERRED = "unique", "priority", "deferred"  # features of a queue
_READY = {"high": "high", "normal": "ready", "low": "low"}  # last token of the subjects of messages that are ready, by priority
_RECEIPT_PRIORITIES: tuple[Priority, ...] = ("normal", "high", "low")  # by their number in a receipt


class QueueRecord(StreamOwner, frozen=True, kw_only=True):
    """A queue in the registry."""

    settings: StrictQueueSettings
    is_paused: bool = False
    pause_reason: str | None = None
    features: tuple[str, ...] = ()  # that its messages use, and its consumer is configured for
    consumer_lease_ms: int = 0  # the lease that its consumer gives by itself (0: none), as of its creation
    replicas: int | None = None  # that the engine keeps; None in records of earlier versions
    purged_at_ms: int = 0  # by an API that limits how often
    backend: Backend = ENGINE  # where its messages are
    long_lease_ms: int = 0  # longest lease that its queue in RabbitMQ was declared for; 0: that of the installation's settings

    @property
    def is_readable(self) -> bool:
        """True if its stream has all its messages. Else only those that are delayed or wait for a retry can be read."""
        return self.backend == ENGINE

    @property
    def stream(self) -> str:
        return queue_stream(self.tenant, self.name)

    @property
    def subject(self) -> str:
        return queue_subject(self.tenant, self.name)

    @property
    def consumer(self) -> str:
        """Contains the incarnation, so that a late ack never applies to a message of a later queue with the same name."""
        return f"work-{self.incarnation[-12:]}"

    def consumer_of(self, priority: Priority) -> str:
        """Each priority has a consumer of its own."""
        return self.consumer if priority == "normal" else f"{self.consumer}-{priority}"

    @property
    def is_ordered(self) -> bool:
        return self.settings.ordered

    def shown_sequence(self, sequence: int) -> int | None:
        """The sequence of a message if it has a meaning for users."""
        return sequence if self.settings.ordered else None

    def group_subject(self, token: str) -> str:
        """Subject of the messages of a group of an ordered queue."""
        return f"{self.subject}.g.{token}"

    def state_subject(self, token: str) -> str:
        """Subject of the record of a group."""
        return f"{self.subject}.s.{token}"

    @property
    def has_deferred(self) -> bool:
        """True if messages of a noisy group were ever deferred."""
        return DEFERRED in self.features

    def wait_subject(self, token: str) -> str:
        """Subject of the deferred messages of a group."""
        return f"{self.subject}.wait.{token}"

    @property
    def moved_subject(self) -> str:
        """Subject of the record of the deferred messages that were moved back."""
        return f"{self.subject}.moved"

    @property
    def deferred_subjects(self) -> tuple[str, ...]:
        """Subjects of messages that are ready and held back. They move to those of `ready_subjects`, never the other way."""
        return (self.wait_subject("*"),) if self.has_deferred else ()

    @property
    def has_priority(self) -> bool:
        """True if a message with another priority than `normal` was ever published to the queue."""
        return PRIORITY in self.features

    @property
    def priorities(self) -> tuple[Priority, ...]:
        """The priorities that its messages can have, the highest first."""
        return ("high", "normal", "low") if PRIORITY in self.features else ("normal",)

    @property
    def has_unique(self) -> bool:
        """True if a message with a unique key was ever published to the queue."""
        return UNIQUE in self.features

    @property
    def ready_subjects(self) -> tuple[str, ...]:
        """Subjects of the messages that a consumer gets, now or after their lease or delay."""
        if self.is_ordered:
            return (self.group_subject("*"),)
        plain = tuple(ready_subject(self.subject, one) for one in self.priorities)
        return (
            (*plain, *(ready_subject(f"{self.subject}.unique.*", one) for one in self.priorities)) if self.has_unique else plain
        )

    def consumer_subjects(self, priority: Priority) -> tuple[str, ...]:
        """Subjects that the consumer of a priority delivers. The first unique key changes only the consumer of `normal`."""
        subjects = ready_subject(self.subject, priority), ready_subject(f"{self.subject}.unique.*", priority)
        return subjects[:1] if priority == "normal" and not self.has_unique else subjects

    @property
    def delayed_subjects(self) -> tuple[str, ...]:
        if self.is_ordered:  # a delay is that of the queue: its messages stay where they are
            return ()
        return (f"{self.subject}.later.*", f"{self.subject}.unique.*.later") if self.has_unique else (f"{self.subject}.later.*",)

    def scheduled_subjects(self, message_id: str) -> tuple[str, ...]:
        """Where a message can be until it is due. In a stream that is an outbox, messages wait for their retries, too."""
        later = f"{self.subject}.later.{message_id}"
        return (later,) if self.is_readable else (later, self.retry_subject(message_id))

    def retry_subject(self, message_id: str) -> str:
        """Where a message waits for its next attempt, in a stream that is an outbox."""
        return f"{self.subject}.retry.{message_id}"

    def ack_marker_subject(self, sequence: int, copy: str) -> str:
        """Where a message of another backend is marked as done, by its number in the lease log and its copy."""
        return f"{self.subject}.acked.{sequence}.{copy or '0'}"

    @property
    def dead_stream(self) -> str:
        return dead_stream(self.tenant)

    @property
    def dead_subject(self) -> str:
        """Prefix of the subjects of its dead letters; the message id follows."""
        return dead_subject(self.tenant, self.name)

    @property
    def owner(self) -> bytes:
        """Context of a receipt's signature: a receipt is valid for this incarnation of this queue only."""
        return f"{self.tenant}\0{self.name}\0{self.incarnation}".encode()


def ready_subject(place: str, priority: Priority) -> str:
    """Subject of a ready message; `place` is the subject of the queue, or that of the message's unique key."""
    return f"{place}.{_READY[priority]}"


def priority_of(subject: str) -> Priority:
    """Priority of a ready message on this subject of its queue."""
    last = subject.rpartition(".")[2]
    return "high" if last == "high" else "low" if last == "low" else "normal"


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of a message in a queue's stream: a JSON object with the payload as it was sent. In an ordered queue it is on
    `….g.<hash of its group>`; in another one as follows.

    It is on `….ready`, or on `….high` or `….low` if that is its priority, and on `….later.<id>` while it is delayed. `unique` is
    the token of its unique key: then it is on `….unique.<token>.ready` (`.high`, `.low`) or `….later`, at most one for a token.
    A message that is deferred, because its group has more than its share, is on `….wait.<hash of its group>`.
    """

    v: int
    id: str
    job: str
    at: int
    expires: int = 0
    unique: str = ""
    priority: Priority = "normal"
    headers: dict[str, str] = {}
    types: dict[str, str] = {}  # of headers that are not strings for SQS clients
    corr: str | None = None
    trace: str | None = None
    by: str = ""  # id of the key that published it
    source: str = ""  # sender of the command that the message is; set by the dispatcher only, unlike headers
    dead: DeadLetterOrigin | None = None  # of a message in a dead-letter queue
    group: str = ""
    dedupe: str = ""  # its `dedupeId`, in an ordered queue
    redrive: str = ""  # id of the task that moved it back to the queue
    attempts: int = 0  # that were made before the message was stored again for the next one, in a backend that needs it
    payload: msgspec.Raw


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of a dead letter, on `d.<tenant>.<queue>.<message id>`: the stored message and the reason."""

    v: int
    reason: str
    last_error: str | None = None
    attempts: int
    first_failed_at: int | None = None
    dead_at: int
    message: msgspec.Raw


class CancelledMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of a cancelled message, on `d.<tenant>.<queue>.<message id>.cancelled`.

    A worker may have the message until `lease_until`; it can be retried until `kept_until`.
    """

    v: int
    reason: str | None = None
    attempts: int = 0
    lease_until: int = 0
    cancelled_at: int
    kept_until: int
    message: msgspec.Raw


MAX_ATTEMPTS_REACHED = "maxAttempts reached"


def with_last_error(letter: DeadLetter) -> DeadLetter:
    """The reason of a message that failed too often is its last error, as far as one is known."""
    if letter.reason != MAX_ATTEMPTS_REACHED or not letter.last_error:
        return letter
    return msgspec.structs.replace(letter, reason=letter.last_error)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Format 1 of the failures of a message, kept while it is retried. `reason` is that of the latest one."""

    v: int = 1
    reason: str
    first_at: int
    last_at: int


class Marker(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of a used idempotency key, on `….idem.<hash>`: the ids of the first message and a hash of its body.

    `note` is that of a `DeliveryMarker`.
    """

    v: int
    body: str
    message: str
    job: str
    at: int
    note: str = ""


class SequenceMarker(msgspec.Struct, frozen=True, kw_only=True):
    """Format 1 of the last message of a numbered sequence, on `….last.<hash>`: its number and ids."""

    v: int = 1
    number: int
    message: str = ""
    job: str = ""
    at: int = 0


encode_message = msgspec.json.Encoder().encode
decode_message = msgspec.json.Decoder(StoredMessage).decode
decode_marker = msgspec.json.Decoder(Marker).decode
decode_sequence_marker = msgspec.json.Decoder(SequenceMarker).decode
decode_dead_letter = msgspec.json.Decoder(DeadLetter).decode
decode_cancelled_message = msgspec.json.Decoder(CancelledMessage).decode
decode_failure = msgspec.json.Decoder(Failure).decode


def read_message(payload: bytes) -> StoredMessage:
    """Decode and check a stored message. Raises ValueError: other clients of the NATS server can write to the stream."""
    try:
        if not payload.isascii():
            payload.decode()  # msgspec.Raw does not check the encoding of strings
        stored = decode_message(payload)
        check_id(stored.id)
        check_id(stored.job)
        rfc3339(stored.at)
    except (RecursionError, OverflowError, OSError) as exc:
        raise ValueError("the message is nested too deeply, or its time is out of range") from exc
    return stored


_RECEIPT = struct.Struct(">BQQIQQQ16s16s")
_RECEIPT_VERSION, _PRIORITY_RECEIPT_VERSION = 1, 2  # the latter has one more byte
_GROUP_RECEIPT_VERSION, _TOKEN_RECEIPT_VERSION = 3, 4
_TOKEN_BYTES_MAX = 64
_TRACED = 0x80  # in the byte of the version
_TRACE_ID_BYTES, _TRACE_BYTES = 16, 24
_GROUP_BYTES = GROUP_TOKEN_CHARS // 2


class TokenRef(DeliveryRef, frozen=True):
    """A delivery that its numbers do not identify: its backend needs the token, too."""

    token: bytes


class Receipt(msgspec.Struct, frozen=True):
    """One delivery of a message to a consumer. It has everything that ack, nack and extend need, on any worker."""

    stream_sequence: int
    consumer_sequence: int
    attempt: int
    stored_at_ns: int
    leased_at_ms: int
    deadline_ms: int
    message_id: str
    job_id: str
    priority: Priority = "normal"
    group: str = ""  # token of the group, in an ordered queue
    token: bytes = b""  # of the backend
    trace: bytes = b""  # ids of the trace and span that published the message, if the trace is sampled

    @property
    def ref(self) -> DeliveryRef:
        if self.token:
            return TokenRef(self.stream_sequence, self.consumer_sequence, self.attempt, self.stored_at_ns, self.token)
        return DeliveryRef(self.stream_sequence, self.consumer_sequence, self.attempt, self.stored_at_ns)

    def to_bytes(self) -> bytes:
        """Version 1, version 2 with the number of the priority at its end if it is not normal, version 3 with the group, or
        version 4 with the token. A trace is at the very end, and sets a bit of the version."""
        if self.trace:
            untraced = replace(self, trace=b"").to_bytes()
            return bytes([untraced[0] | _TRACED]) + untraced[1:] + self.trace
        if self.token:
            return self._pack(_TOKEN_RECEIPT_VERSION) + self.token
        if self.group:
            return self._pack(_GROUP_RECEIPT_VERSION) + bytes.fromhex(self.group)
        if self.priority == "normal":
            return self._pack(_RECEIPT_VERSION)
        return self._pack(_PRIORITY_RECEIPT_VERSION) + bytes([_RECEIPT_PRIORITIES.index(self.priority)])

    def _pack(self, version: int) -> bytes:
        delivery = self.stream_sequence, self.consumer_sequence, self.attempt, self.stored_at_ns
        times = self.leased_at_ms, self.deadline_ms
        return _RECEIPT.pack(version, *delivery, *times, id_bytes(self.message_id), id_bytes(self.job_id))

    @classmethod
    def from_bytes(cls, body: bytes) -> "Receipt":
        """Raises ValueError if it has another version."""
        priority: Priority = "normal"
        group, token, trace = "", b"", b""
        if len(body) >= _RECEIPT.size + _TRACE_BYTES and body[0] & _TRACED:
            trace, body = body[-_TRACE_BYTES:], bytes([body[0] & ~_TRACED]) + body[1:-_TRACE_BYTES]
        if _RECEIPT.size < len(body) <= _RECEIPT.size + _TOKEN_BYTES_MAX and body[0] == _TOKEN_RECEIPT_VERSION:
            token, body = body[_RECEIPT.size :], body[: _RECEIPT.size]
        elif len(body) == _RECEIPT.size + _GROUP_BYTES and body[0] == _GROUP_RECEIPT_VERSION:
            group, body = body[-_GROUP_BYTES:].hex(), body[:-_GROUP_BYTES]
        elif len(body) == _RECEIPT.size + 1 and body[0] == _PRIORITY_RECEIPT_VERSION and body[-1] < len(_RECEIPT_PRIORITIES):
            priority, body = _RECEIPT_PRIORITIES[body[-1]], body[:-1]
        elif len(body) != _RECEIPT.size or body[0] != _RECEIPT_VERSION:
            raise ValueError("not a receipt of version 1, 2, 3 or 4")
        _, sequence, consumer, attempt, stored, leased, deadline, message, job = _RECEIPT.unpack(body)
        ids = id_text(message), id_text(job)
        return cls(sequence, consumer, attempt, stored, leased, deadline, *ids, priority, group, token, trace)

    def traced(self) -> TracedMessage:
        """What spans show of the delivery."""
        context = SpanContext(self.trace[:_TRACE_ID_BYTES].hex(), self.trace[_TRACE_ID_BYTES:].hex()) if self.trace else None
        return TracedMessage(self.message_id, self.job_id, self.attempt, context)


def trace_of(tracer: Tracer | None, message: StoredMessage) -> bytes:
    """What the receipt of a message has of its trace: nothing unless the trace is sampled."""
    context = None if tracer is None or message.trace is None else tracer.sampled_context(message.trace)
    return b"" if context is None else bytes.fromhex(context.trace_id + context.span_id)
