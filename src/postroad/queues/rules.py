"""What a queue, a message and a receipt are. Pure: no I/O, no clock."""

import hashlib
import struct
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.errors import TooLarge
from postroad.kernel.json import invalid_field
from postroad.kernel.names import dead_stream, dead_subject, queue_stream, queue_subject

LEASE_MS_MAX = 12 * 3600 * 1000
DELAY_MS_MAX = 15 * 86_400 * 1000
DEDUPE_MS_MAX = 30 * 86_400 * 1000
RETENTION_MS_MAX = 10 * 366 * 86_400 * 1000

Delay = Annotated[int, Meta(ge=0, le=LEASE_MS_MAX)]
LeaseMs = Annotated[int, Meta(ge=0, le=LEASE_MS_MAX, description="How long a pulled message is kept from others.")]


class QueueSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What a queue's owner may choose."""

    visibility_timeout_ms: LeaseMs | None = None  # in a stored queue it is always there: the tenant's default if none was chosen
    retention_ms: Annotated[
        int, Meta(ge=0, le=RETENTION_MS_MAX, description="How long a message is kept once it is ready; 0 is for ever.")
    ] = 0
    dedupe_window_ms: (
        Annotated[int, Meta(ge=1000, le=DEDUPE_MS_MAX, description="How long an idempotency key counts.")] | None
    ) = None
    max_attempts: Annotated[
        int, Meta(ge=0, le=1000, description="Deliveries before a message goes to the dead letters; 0: no limit.")
    ] = 10
    retry_delays_ms: Annotated[
        tuple[Delay, ...],
        Meta(
            min_length=1,
            max_length=32,
            description="The ladder of `retry`: how long to wait after each attempt, the last for all further.",
        ),
    ] = (1_000, 5_000, 30_000, 120_000, 600_000)
    max_messages: Annotated[int, Meta(ge=0, le=10**12, description="Over this, publishing is answered 507; 0: no limit.")] = 0
    replicas: Annotated[Literal[1, 3, 5] | None, Meta(description="Copies. The installation's default if left out.")] = None
    geo: (
        Annotated[str, Meta(min_length=1, max_length=64, pattern="^[A-Za-z0-9:_-]+$", description="Placement tag of the engine.")]
        | None
    ) = None
    schema: Annotated[dict[str, Any] | None, Meta(description="A JSON Schema that payloads must fit.")] = None
    expected_drain_seconds: (
        Annotated[int, Meta(ge=1, le=86_400 * 30, description="If the oldest message is older, something is wrong.")] | None
    ) = None
    archive: Annotated[bool, Meta(description="Have the pipeline keep the payloads, too.")] = False


class QueueState(StrEnum):
    """A queue's record is there before its stream is and goes after it, so at any moment one process at most works on the
    stream, and an interrupted one leaves a trace that the next can take up."""

    MAKING = "making"
    READY = "ready"
    DELETING = "deleting"


class QueueRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What is stored of a queue. `incarnation` tells it from an earlier queue of the same name."""

    v: int = 1
    state: QueueState
    tenant: str
    name: str
    incarnation: str
    settings: QueueSettings
    is_paused: bool = False
    created_at_ms: int
    updated_at_ms: int

    @property
    def stream(self) -> str:
        return queue_stream(self.tenant, self.name)

    @property
    def subject(self) -> str:
        return queue_subject(self.tenant, self.name)

    @property
    def consumer(self) -> str:
        """The name has the incarnation in it, so that what is settled late can never reach a successor's messages."""
        return f"work-{self.incarnation[-12:]}"

    @property
    def dead_stream(self) -> str:
        return dead_stream(self.tenant)

    @property
    def dead_subject(self) -> str:
        """What the subjects of its dead letters start with; the message's id follows."""
        return dead_subject(self.tenant, self.name)

    @property
    def owner(self) -> bytes:
        """Whom a receipt belongs to: it opens for this queue and no other, not even for one of the same name."""
        return f"{self.tenant}\0{self.name}\0{self.incarnation}".encode()


HeaderName = Annotated[str, Meta(min_length=1, max_length=256)]


class NewMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """A message to publish."""

    payload: Annotated[msgspec.Raw, Meta(description="Any JSON.")]
    headers: dict[HeaderName, str] = {}
    delay_ms: Annotated[
        int, Meta(ge=0, le=DELAY_MS_MAX, description="Deliver not before this many milliseconds have passed.")
    ] = 0
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    correlation_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of a message in a queue's stream: one JSON object, the payload's text as it was sent."""

    v: int
    id: str
    job: str
    at: int
    headers: dict[str, str] = {}
    corr: str | None = None
    trace: str | None = None
    payload: msgspec.Raw


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Format 1 of a message that was given up, on `d.<tenant>.<queue>.<message id>`: the message as it was stored, and why."""

    v: int
    reason: str
    last_error: str | None = None
    attempts: int
    first_failed_at: int | None = None
    dead_at: int
    message: msgspec.Raw


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Format 1 of what is remembered of a message's failed attempts until it is done or dead."""

    v: int = 1
    reason: str
    first_at: int
    last_at: int


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """Format 1 of what an idempotency key remembers, on `….idem.<hash>`: the first message's ids, and a hash of its body."""

    v: int
    body: str
    message: str
    job: str
    at: int


encode_message = msgspec.json.Encoder().encode
decode_message = msgspec.json.Decoder(StoredMessage).decode
decode_marker = msgspec.json.Decoder(Marker).decode
decode_dead = msgspec.json.Decoder(DeadLetter).decode
decode_failure = msgspec.json.Decoder(Failure).decode


def read_message(payload: bytes) -> StoredMessage:
    """A message of ours. Raises ValueError for anything else: who has access to the engine may have put it into the stream."""
    try:
        if not payload.isascii():
            payload.decode()  # msgspec.Raw skips over strings without looking at them
        stored = decode_message(payload)
        uuid.UUID(stored.id), uuid.UUID(stored.job), rfc3339(stored.at)
    except (RecursionError, OverflowError, OSError) as exc:
        raise ValueError("nested too deeply, or of no time that there is") from exc
    return stored


def retry_delay_ms(settings: QueueSettings, attempt: int) -> int:
    """How long to wait after this attempt, by the queue's ladder."""
    ladder = settings.retry_delays_ms
    return ladder[min(max(attempt, 1), len(ladder)) - 1]


def is_spent(settings: QueueSettings, attempt: int) -> bool:
    """Whether this attempt was the last that the queue allows."""
    return 0 < settings.max_attempts <= attempt


@dataclass(frozen=True, slots=True)
class MessageLimits:
    headers_max: int
    headers_bytes_max: int


def check_message(message: NewMessage, limits: MessageLimits, bytes_max: int, path: str = "$") -> None:
    """Raises TooLarge, or BodyInvalid with the path."""
    if len(bytes(message.payload)) > bytes_max:
        raise TooLarge(f"the payload at {path}.payload has {len(bytes(message.payload))} bytes; at most {bytes_max} are allowed")
    if not message.headers:
        return
    if len(message.headers) > limits.headers_max:
        raise invalid_field(f"{path}.headers", f"{len(message.headers)} headers; at most {limits.headers_max} are allowed")
    if sum(len(name.encode()) + len(value.encode()) for name, value in message.headers.items()) > limits.headers_bytes_max:
        raise invalid_field(f"{path}.headers", f"names and values are over {limits.headers_bytes_max} bytes together")


def body_hash(message: NewMessage) -> str:
    """The same for bodies that mean the same: white space and the order of keys do not count."""
    try:
        payload = msgspec.json.decode(message.payload)
    except msgspec.DecodeError:  # a number that no machine type holds: then its text is what counts
        payload = bytes(message.payload)
    seen: dict[str, Any] = {
        "payload": payload,
        "headers": message.headers,
        "delayMs": message.delay_ms,
        "correlationId": message.correlation_id,
    }
    return hashlib.sha256(msgspec.json.encode(seen, order="deterministic")).hexdigest()


def marker_token(key_id: str, idempotency_key: str) -> str:
    """An idempotency key belongs to the API key that used it, in one queue."""
    return hashlib.sha256(f"{key_id}\0{idempotency_key}".encode()).hexdigest()[:40]


_RECEIPT = struct.Struct(">BQQIQQQ16s16s")
_RECEIPT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Receipt:
    """One delivery of one message to one consumer: all that settling it needs, so that any worker can."""

    stream_sequence: int
    consumer_sequence: int
    attempt: int
    stored_at_ns: int
    leased_at_ms: int
    deadline_ms: int
    message_id: str
    job_id: str

    def to_bytes(self) -> bytes:
        return _RECEIPT.pack(
            _RECEIPT_VERSION,
            self.stream_sequence,
            self.consumer_sequence,
            self.attempt,
            self.stored_at_ns,
            self.leased_at_ms,
            self.deadline_ms,
            uuid.UUID(self.message_id).bytes,
            uuid.UUID(self.job_id).bytes,
        )

    @classmethod
    def from_bytes(cls, body: bytes) -> "Receipt":
        """Raises ValueError if it is of another version."""
        if len(body) != _RECEIPT.size or body[0] != _RECEIPT_VERSION:
            raise ValueError("not a receipt of version 1")
        _, stream_sequence, consumer_sequence, attempt, stored_at, leased_at, deadline, message, job = _RECEIPT.unpack(body)
        return cls(
            stream_sequence,
            consumer_sequence,
            attempt,
            stored_at,
            leased_at,
            deadline,
            str(uuid.UUID(bytes=message)),
            str(uuid.UUID(bytes=job)),
        )


class Published(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    message_id: str
    job_id: str
    enqueued_at: Timestamp


class LeasedMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    receipt_id: str
    message_id: str
    job_id: str
    payload: msgspec.Raw
    headers: dict[str, str]
    attempt: int
    enqueued_at: Timestamp
    correlation_id: str | UnsetType = UNSET
    traceparent: str | UnsetType = UNSET


def as_leased(stored: StoredMessage, attempt: int, receipt_id: str) -> LeasedMessage:
    return LeasedMessage(
        receipt_id=receipt_id,
        message_id=stored.id,
        job_id=stored.job,
        payload=stored.payload,
        headers=stored.headers,
        attempt=attempt,
        enqueued_at=rfc3339(stored.at),
        correlation_id=stored.corr if stored.corr is not None else UNSET,
        traceparent=stored.trace if stored.trace is not None else UNSET,
    )
