"""Rules of queues: retries, message limits, idempotency. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from postroad.api.queues import DELAY_MS_MAX, RETENTION_MS_MAX, NewMessage, Priority, QueueSettings
from postroad.kernel.errors import TooLarge
from postroad.kernel.json import invalid_field

_BY_PRIORITY: tuple[Priority, ...] = ("high", "normal", "low")
# The orders in which pulls take messages, in turn. One pull of ten begins with `normal`, and one with `low`, so that these are
# delivered, too, while there are always messages with a higher priority.
PULL_ORDERS: tuple[tuple[Priority, ...], ...] = (
    *(_BY_PRIORITY,) * 4,
    ("normal", "high", "low"),
    *(_BY_PRIORITY,) * 4,
    ("low", "high", "normal"),
)
GROUP_TOKEN_CHARS = 32
DEDUPE_WINDOW_MS = 300_000  # of `dedupeId`, if the queue has no other
_JSON_BYTES_MAX = 6 * 1024 * 1024  # of a text with escapes: the engine takes messages of 8 MiB
_CONSUMER_LEASE_MS_MIN, _CONSUMER_LEASE_MS_MAX = 1_000, 60_000


def retry_delay_ms(settings: QueueSettings, attempt: int) -> int:
    """The delay after this attempt."""
    delays = settings.retry_delays_ms
    return delays[min(max(attempt, 1), len(delays)) - 1]


def consumer_lease_ms(settings: QueueSettings) -> int:
    """The lease that the consumer of a new queue gives by itself, or 0.

    It is also the time after which the messages return that were on their way to a worker that died, so it is never long.
    """
    lease_ms = settings.visibility_timeout_ms or 0
    return lease_ms if _CONSUMER_LEASE_MS_MIN <= lease_ms <= _CONSUMER_LEASE_MS_MAX else 0


def is_last_attempt(settings: QueueSettings, attempt: int) -> bool:
    """True if the queue allows no attempt after this one."""
    return 0 < settings.max_attempts <= attempt


def is_final_nack(settings: QueueSettings, attempt: int, action: str) -> bool:
    """True if a nack dead-letters the message: on request, or because a retry is not allowed any more."""
    return action == "dlq" or (action == "retry" and is_last_attempt(settings, attempt))


def delay_after_nack_ms(settings: QueueSettings, attempt: int, action: str, delay_ms: int | None) -> int:
    """The delay of the next delivery after a nack; `delay_ms` is the one that was asked for."""
    if delay_ms is not None:
        return delay_ms
    return retry_delay_ms(settings, attempt) if action == "retry" else 0


@dataclass(frozen=True, slots=True)
class MessageLimits:
    headers_max: int
    headers_bytes_max: int


def check_message(message: NewMessage, limits: MessageLimits, bytes_max: int, now_ms: int, path: str = "$") -> None:
    """Raises TooLarge, or BodyInvalid with the path."""
    if message.run_at is not None:
        _check_run_at(message, now_ms, path)
    if message.expires_at is not None:
        _check_expiry(message, now_ms, path)
    size = len(bytes(message.payload))
    if size > bytes_max and (size := _text_bytes(bytes(message.payload))) > bytes_max:
        raise TooLarge(f"the payload at {path}.payload has {size} bytes; at most {bytes_max} are allowed")
    untyped = next((name for name in message.header_types if name not in message.headers), None)
    if untyped is not None:
        raise invalid_field(f"{path}.headerTypes", f"there is no header {untyped[:100]!r}")
    if not message.headers:
        return
    if len(message.headers) > limits.headers_max:
        raise invalid_field(f"{path}.headers", f"{len(message.headers)} headers; at most {limits.headers_max} are allowed")
    if len("".join([*message.headers, *message.headers.values()]).encode()) > limits.headers_bytes_max:
        raise invalid_field(f"{path}.headers", f"names and values are over {limits.headers_bytes_max} bytes together")


def _text_bytes(payload: bytes) -> int:
    """The size of a payload. That of a JSON string is the size of its text: quotes and escapes do not count."""
    if payload[:1] != b'"' or len(payload) > _JSON_BYTES_MAX:
        return len(payload)
    try:
        return len(msgspec.json.decode(payload, type=str).encode())
    except (msgspec.DecodeError, UnicodeEncodeError):
        return len(payload)


def _check_run_at(message: NewMessage, now_ms: int, path: str) -> None:
    if message.delay_ms:
        raise invalid_field(f"{path}.runAt", "send either `runAt` or `delayMs`")
    if delay_ms_of(message, now_ms) > DELAY_MS_MAX:
        raise invalid_field(f"{path}.runAt", f"at most {DELAY_MS_MAX} ms ahead, like `delayMs`")


def _check_expiry(message: NewMessage, now_ms: int, path: str) -> None:
    left = expires_at_ms(message) - now_ms
    if left <= delay_ms_of(message, now_ms):
        raise invalid_field(f"{path}.expiresAt", "must be later than now and than the first delivery")
    if left > RETENTION_MS_MAX:
        raise invalid_field(f"{path}.expiresAt", f"at most {RETENTION_MS_MAX} ms ahead")


def expires_at_ms(message: NewMessage) -> int:
    """0 if the message has no expiry of its own."""
    return 0 if message.expires_at is None else epoch_ms(message.expires_at)


def delay_ms_of(message: NewMessage, now_ms: int, default_ms: int = 0) -> int:
    """The time before the first delivery. A `runAt` that has passed is now."""
    if message.run_at is not None:
        return max(0, epoch_ms(message.run_at) - now_ms)
    return default_ms if message.delay_ms is None else message.delay_ms


def epoch_ms(time: datetime) -> int:
    return int(time.timestamp() * 1000)


def body_hash(message: NewMessage) -> str:
    """A hash that does not depend on white space and the order of keys."""
    try:
        payload = msgspec.json.decode(message.payload)
    except msgspec.DecodeError:  # a number out of range: its text is compared instead
        payload = bytes(message.payload)
    fields: dict[str, Any] = {
        "payload": payload,
        "headers": message.headers,
        "delayMs": message.delay_ms or 0,
        "correlationId": message.correlation_id,
    }
    if message.run_at is not None:  # hashes of messages without it stay as they are stored
        fields["runAt"] = epoch_ms(message.run_at)
    if message.expires_at is not None:
        fields["expiresAt"] = epoch_ms(message.expires_at)
    if message.header_types:
        fields["headerTypes"] = message.header_types
    if message.unique_key is not None:
        fields["uniqueKey"] = message.unique_key
    if message.priority != "normal":
        fields["priority"] = message.priority
    if message.group_id is not None:
        fields["groupId"] = message.group_id
    if message.dedupe_id is not None:
        fields["dedupeId"] = message.dedupe_id
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()


def marker_token(key_id: str, idempotency_key: str) -> str:
    """Last token of a marker's subject. Idempotency keys are separate for each API key and queue."""
    return hashlib.sha256(f"{key_id}\0{idempotency_key}".encode()).hexdigest()[:40]


def delivery_token(owner: str, key: str) -> str:
    """Last token of the subject of a delivery's marker. No API key has the id `deliver`, so it is not that of a publisher."""
    return hashlib.sha256(f"deliver\0{len(owner)}\0{owner}\0{key}".encode()).hexdigest()[:40]


def unique_token(unique_key: str) -> str:
    """Names the key in the subjects of its message. Unique keys are separate for each queue."""
    return hashlib.sha256(unique_key.encode()).hexdigest()[:40]


@lru_cache(maxsize=16_384)
def group_token(group: str) -> str:
    """Names the group in the subjects of its messages and of its record."""
    return hashlib.sha256(group.encode()).hexdigest()[:GROUP_TOKEN_CHARS]


def dedupe_id_of(message: NewMessage, settings: QueueSettings) -> str | None:
    """The `dedupeId` of a message in an ordered queue: its own, or the SHA-256 of its content; None if it has none."""
    if message.dedupe_id is not None or not settings.dedupe_by_content:
        return message.dedupe_id
    payload = bytes(message.payload)
    if payload[:1] == b'"':  # of a JSON string, its text: the body that SQS hashes
        try:
            payload = msgspec.json.decode(payload, type=str).encode()
        except (msgspec.DecodeError, UnicodeEncodeError):
            return hashlib.sha256(payload).hexdigest()
    return hashlib.sha256(payload).hexdigest()


def dedupe_token(dedupe_id: str, group: str, settings: QueueSettings) -> str:
    """Last token of the subject of a `dedupeId`."""
    scope = group.encode() if settings.dedupe_scope == "group" else b""
    return hashlib.sha256(b"%d\0%b%b" % (len(scope), scope, dedupe_id.encode())).hexdigest()[:40]


def check_for_queue(message: NewMessage, settings: QueueSettings, path: str = "$", *, is_in_engine: bool = True) -> None:
    """Check what depends on the queue and where its messages are. Raises BodyInvalid with the path."""
    if not settings.ordered:
        if message.dedupe_id is not None:
            raise invalid_field(f"{path}.dedupeId", "the queue is not ordered; send an `idempotencyKey` instead")
        if not is_in_engine:
            _check_for_rabbitmq(message, path)
        return
    refused = {
        "delayMs": (message.delay_ms is not None, "an ordered queue has one delay for all messages, its setting `delayMs`"),
        "runAt": (message.run_at is not None, "an ordered queue has one delay for all messages, its setting `delayMs`"),
        "priority": (
            message.priority != "normal",
            "an ordered queue delivers messages in the order in which they were published",
        ),
        "uniqueKey": (message.unique_key is not None, "an ordered queue has `dedupeId` instead"),
    }
    _refuse_given(refused, path)


def _check_for_rabbitmq(message: NewMessage, path: str) -> None:
    refused = {
        "priority": (message.priority != "normal", "the queue is in RabbitMQ and has no priorities"),
        "uniqueKey": (message.unique_key is not None, "the queue is in RabbitMQ; send an `idempotencyKey` instead"),
        "groupId": (message.group_id is not None, "the queue is in RabbitMQ, which has no fairness between groups"),
    }
    _refuse_given(refused, path)


def _refuse_given(refused: Mapping[str, tuple[bool, str]], path: str) -> None:
    for field, (is_given, reason) in refused.items():
        if is_given:
            raise invalid_field(f"{path}.{field}", reason)


def sequence_token(sequence: str) -> str:
    """Last token of the subject of a sequence's marker."""
    return hashlib.sha256(sequence.encode()).hexdigest()[:40]
