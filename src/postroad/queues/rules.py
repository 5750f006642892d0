"""What a queue, a message and a receipt are. Pure: no I/O, no clock."""

import hashlib
import struct
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import TooLarge
from postroad.kernel.json import invalid_field
from postroad.kernel.names import queue_stream, queue_subject

LEASE_MS_MAX = 12 * 3600 * 1000
DELAY_MS_MAX = 15 * 86_400 * 1000
DEDUPE_MS_MAX = 30 * 86_400 * 1000
RETENTION_MS_MAX = 10 * 366 * 86_400 * 1000

LeaseMs = Annotated[int, Meta(ge=0, le=LEASE_MS_MAX, description="How long a pulled message is kept from others.")]


class QueueSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What a queue's owner may choose."""

    visibility_timeout_ms: LeaseMs = 30_000
    retention_ms: Annotated[
        int, Meta(ge=0, le=RETENTION_MS_MAX, description="How long a message is kept once it is ready; 0 is for ever.")
    ] = 0
    dedupe_window_ms: (
        Annotated[int, Meta(ge=1000, le=DEDUPE_MS_MAX, description="How long an idempotency key counts.")] | None
    ) = None
    max_messages: Annotated[int, Meta(ge=0, le=10**12, description="Over this, publishing is answered 507; 0: no limit.")] = 0
    replicas: (
        Annotated[int, Meta(ge=1, le=5, description="Copies: 1, 3 or 5. The installation's default if left out.")] | None
    ) = None


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


@dataclass(frozen=True, slots=True)
class MessageLimits:
    bytes_max: int
    headers_max: int
    headers_bytes_max: int


def check_message(message: NewMessage, limits: MessageLimits, path: str = "$") -> None:
    """Raises TooLarge, or BodyInvalid with the path."""
    if len(bytes(message.payload)) > limits.bytes_max:
        raise TooLarge(
            f"the payload at {path}.payload has {len(bytes(message.payload))} bytes; at most {limits.bytes_max} are allowed"
        )
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
    enqueued_at: str


class LeasedMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    receipt_id: str
    message_id: str
    job_id: str
    payload: msgspec.Raw
    headers: dict[str, str]
    attempt: int
    enqueued_at: str
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
