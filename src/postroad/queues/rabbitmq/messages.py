"""Messages as they are in RabbitMQ: body, properties, headers. Pure.

The body is the payload as it was sent. The ids, the time and the attempt are properties and `x-postroad-…` headers, user headers
are headers, and the fields that AMQP has no place for are the JSON in `x-postroad-more`. Messages of native programs lack the
headers: they get ids and a time when they are leased first. Their `timestamp` says nothing about when they came into the queue.
"""

import base64
import hashlib
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from pamqp.commands import Basic

from postroad.kernel.ids import check_id, id_bytes, new_id
from postroad.queues.records import StoredMessage

JOB, ATTEMPT, AT, COPY, MORE = (f"x-postroad-{name}" for name in ("job", "attempt", "at", "copy", "more"))
DIRECT_COPY = "0"  # of a message that was published directly, not by way of the outbox
ENCODING = "x-postroad-encoding"  # of the payload of a native message that is not text: `base64`
_NATIVE_ID, _NATIVE_TIME = "amqp-message-id", "amqp-timestamp"  # headers with the properties of a native message
_TRACE = "traceparent"
_SHORT_BYTES_MAX = 255  # of an AMQP short string: names of headers, properties
_DELIVERY_COUNT, _DEATHS = "x-delivery-count", "x-death"
_ELSEWHERE = ("v", "id", "job", "at", "corr", "trace", "headers", "payload", "attempts")
_MESSAGE_HEADERS_MAX = 64  # of a native message, as of others


class _More(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    fields: dict[str, Any] = {}
    headers: dict[str, str] = {}  # whose names AMQP cannot carry, or has a meaning for
    corr: str | None = None


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message of RabbitMQ. `attempt` counts this delivery. `copy`: which of the copies of the message it is.

    `is_native`: it has no ids of ours in RabbitMQ; those of `stored` are new. `may_be_settled`: it was delivered before, or
    stored more than once, so an acknowledgement of it may exist.
    """

    stored: StoredMessage
    attempt: int
    copy: str
    is_native: bool
    may_be_settled: bool


def _is_plain(name: str) -> bool:
    lowered = name.lower()
    return not lowered.startswith("x-") and lowered != _TRACE and len(name.encode()) <= _SHORT_BYTES_MAX


def properties_of(message: StoredMessage, *, copy: str = "", expiration_ms: int = 0) -> Basic.Properties:
    """The properties of a message that is stored now, for its first delivery or its next attempt."""
    headers: dict[str, Any] = {name: value for name, value in message.headers.items() if _is_plain(name)}
    corr = message.corr if message.corr is not None and len(message.corr.encode()) <= _SHORT_BYTES_MAX else None
    more = _More(
        fields=_other_fields(message),
        headers={name: value for name, value in message.headers.items() if name not in headers},
        corr=message.corr if corr is None else None,
    )
    headers |= {JOB: message.job, ATTEMPT: message.attempts + 1, AT: message.at}
    if copy:
        headers[COPY] = copy
    if message.trace:
        headers[_TRACE] = message.trace
    encoded = msgspec.json.encode(more)
    if encoded != b"{}":
        headers[MORE] = encoded.decode()
    return Basic.Properties(
        content_type="application/json",
        delivery_mode=2,
        message_id=message.id,
        correlation_id=corr,
        timestamp=datetime.fromtimestamp(message.at // 1000, UTC),
        expiration=str(expiration_ms) if expiration_ms else None,
        headers=headers,
    )


def _other_fields(message: StoredMessage) -> dict[str, Any]:
    """The fields that AMQP has no place for, if they are not the defaults."""
    names = [one for one in msgspec.structs.fields(StoredMessage) if one.name not in _ELSEWHERE]
    values = {one.name: getattr(message, one.name) for one in names}
    plain = {name: value for name, value in values.items() if value}
    if plain.get("priority") == "normal":
        del plain["priority"]
    return msgspec.to_builtins(plain)  # type: ignore[no-any-return]


def returned(properties: Basic.Properties) -> Basic.Properties:
    """The properties of the copy that replaces a message which was delivered and not leased: that delivery does not count.

    It names its copy, so that an acknowledgement of the other one is found if a crash leaves both.
    """
    headers: dict[str, Any] = dict(properties.headers or {})
    made = copy(properties)
    attempt = _attempt_base(headers) + _deliveries(headers)
    headers.pop(_DELIVERY_COUNT, None)
    made.headers = {**headers, ATTEMPT: attempt, COPY: headers.get(COPY, DIRECT_COPY)}
    return made


def _attempt_base(headers: Mapping[str, Any]) -> int:
    before = headers.get(ATTEMPT)
    return before if isinstance(before, int) and before > 0 else 1


def _deliveries(headers: Mapping[str, Any]) -> int:
    count = headers.get(_DELIVERY_COUNT)
    return count if isinstance(count, int) else 0


def body_of(message: StoredMessage) -> bytes:
    return bytes(message.payload)


def read(body: bytes, properties: Basic.Properties, *, is_redelivered: bool, now_ms: int) -> ReceivedMessage:
    """Decode a message that was delivered by RabbitMQ. Never fails: a message that is not ours is a native one."""
    headers: Mapping[str, Any] = properties.headers or {}
    deliveries, base = _deliveries(headers), _attempt_base(headers)
    stored = _own(body, properties, headers, base)
    name = headers.get(COPY)
    is_native = stored is None
    return ReceivedMessage(
        stored or _native(body, properties, headers, now_ms),
        base + deliveries,
        name if isinstance(name, str) and name.isascii() and name.isalnum() else DIRECT_COPY,
        is_native,
        not is_native and (is_redelivered or deliveries > 0 or base > 1 or COPY in headers),
    )


def _own(body: bytes, properties: Basic.Properties, headers: Mapping[str, Any], base: int) -> StoredMessage | None:
    """The message as it was published through the API; None if it was not, or a native program has changed it."""
    try:
        job, at = headers.get(JOB), headers.get(AT)
        if not isinstance(job, str) or not isinstance(at, int) or not properties.message_id:
            return None
        check_id(properties.message_id)
        check_id(job)
        more = msgspec.json.decode(headers.get(MORE, "{}"), type=_More)
        user = {name: str(value) for name, value in headers.items() if _is_plain(name)} | more.headers
        fields = {name: value for name, value in more.fields.items() if name not in _ELSEWHERE}
        made = {
            "v": 1,
            "id": properties.message_id,
            "job": job,
            "at": at,
            "attempts": base - 1,
            "headers": user,
            "corr": properties.correlation_id or more.corr,
            "trace": headers.get(_TRACE),
            **fields,
        }
        stored = msgspec.convert({**made, "payload": None}, _Decoded)
        return StoredMessage(**{**msgspec.structs.asdict(stored), "payload": _payload(body)[0]})
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


class _Decoded(StoredMessage, frozen=True, kw_only=True):
    payload: None = None  # type: ignore[assignment]


def _native(body: bytes, properties: Basic.Properties, headers: Mapping[str, Any], now_ms: int) -> StoredMessage:
    """A message of a native program, with new ids; its own `message_id` if that is one of ours."""
    payload, encoding = _payload(body)
    user = {name: str(value) for name, value in list(headers.items())[:_MESSAGE_HEADERS_MAX] if _is_plain(name)}
    if encoding:
        user[ENCODING] = encoding
    message_id = properties.message_id or ""
    try:
        check_id(message_id)
        id_bytes(message_id)
    except ValueError:
        if message_id:
            user[_NATIVE_ID] = message_id
        message_id = new_id()
    if isinstance(properties.timestamp, datetime):
        user[_NATIVE_TIME] = properties.timestamp.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    trace = headers.get(_TRACE)
    return StoredMessage(
        v=1,
        id=message_id,
        job=new_id(),
        at=now_ms,
        headers=user,
        corr=properties.correlation_id or None,
        trace=trace if isinstance(trace, str) else None,
        payload=payload,
    )


def _payload(body: bytes) -> tuple[msgspec.Raw, str]:
    """The body as JSON, and how it is encoded: JSON as it is, other text as a string, anything else as base64."""
    try:
        body.decode()
        msgspec.json.decode(body)
        return msgspec.Raw(body), ""
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        pass
    try:
        return msgspec.Raw(msgspec.json.encode(body.decode())), ""
    except UnicodeDecodeError:
        return msgspec.Raw(msgspec.json.encode(base64.b64encode(body).decode())), "base64"


def death_reason(headers: Mapping[str, Any] | None) -> str:
    """Why RabbitMQ dead-lettered a message: `rejected`, `expired`, `delivery_limit`, `maxlen`; "" if it did not."""
    deaths = (headers or {}).get(_DEATHS)
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], dict):
        return ""
    reason = deaths[0].get("reason")
    return reason if isinstance(reason, str) else ""


def sequence_of(message_id: str, copy: str = DIRECT_COPY) -> int:
    """The number of a copy of a message in the lease log and among the markers: a message that returns from the dead letters
    has another copy, so its earlier deliveries do not count."""
    number = int.from_bytes(id_bytes(message_id)[-8:]) & ((1 << 62) - 1)
    return number if copy == DIRECT_COPY else number ^ int.from_bytes(hashlib.blake2b(copy.encode(), digest_size=7).digest())
