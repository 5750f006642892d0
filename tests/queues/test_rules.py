import struct
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from postroad.kernel.errors import BodyInvalid, TooLarge
from postroad.queues.rules import (
    Marker,
    MessageLimits,
    NewMessage,
    QueueRecord,
    QueueSettings,
    QueueState,
    Receipt,
    StoredMessage,
    as_leased,
    body_hash,
    check_message,
    decode_marker,
    decode_message,
    encode_message,
    marker_token,
)

# Receipts

_U64 = st.integers(0, 2**64 - 1)
_IDS = st.uuids().map(str)
_RECEIPTS = st.builds(
    Receipt,
    stream_sequence=_U64,
    consumer_sequence=_U64,
    attempt=st.integers(0, 2**32 - 1),
    stored_at_ns=_U64,
    leased_at_ms=_U64,
    deadline_ms=_U64,
    message_id=_IDS,
    job_id=_IDS,
)
ONE = Receipt(1, 2, 3, 4, 5, 6, str(uuid.UUID(int=7)), str(uuid.UUID(int=8)))


@given(_RECEIPTS)
def test_a_receipt_comes_back_as_it_was(receipt: Receipt) -> None:
    assert Receipt.from_bytes(receipt.to_bytes()) == receipt


@given(_RECEIPTS, _RECEIPTS)
def test_different_receipts_are_different_bytes(one: Receipt, other: Receipt) -> None:
    assert (one.to_bytes() == other.to_bytes()) == (one == other)


def test_a_receipt_begins_with_its_version() -> None:
    assert ONE.to_bytes()[0] == 1
    assert ONE.to_bytes() == struct.pack(">BQQIQQQ", 1, 1, 2, 3, 4, 5, 6) + bytes(15) + b"\x07" + bytes(15) + b"\x08"


@given(st.integers(0, 255).filter(lambda version: version != 1))
def test_a_receipt_of_another_version_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="version 1"):
        Receipt.from_bytes(bytes([version]) + ONE.to_bytes()[1:])


@given(st.binary(max_size=100))
def test_what_has_another_length_is_no_receipt(body: bytes) -> None:
    assume(len(body) != len(ONE.to_bytes()))
    with pytest.raises(ValueError, match="not a receipt"):
        Receipt.from_bytes(body)


# When two bodies are the same

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def message(payload: bytes = b"1", **more: Any) -> NewMessage:
    return NewMessage(payload=msgspec.Raw(payload), **more)


def spaced(value: object) -> bytes:
    """The same JSON with other white space and the keys of objects in the other order."""
    return msgspec.json.format(msgspec.json.encode(_turned(value)), indent=3)


def _turned(value: object) -> object:
    if isinstance(value, dict):
        return {name: _turned(one) for name, one in reversed(list(value.items()))}
    return [_turned(one) for one in value] if isinstance(value, list) else value


@given(_JSON)
def test_white_space_and_the_order_of_keys_do_not_count(payload: object) -> None:
    assert body_hash(message(spaced(payload))) == body_hash(message(msgspec.json.encode(payload)))


@given(_JSON, _JSON)
def test_other_payloads_are_other_bodies(one: object, other: object) -> None:
    assume(msgspec.json.encode(one, order="deterministic") != msgspec.json.encode(other, order="deterministic"))
    assert body_hash(message(msgspec.json.encode(one))) != body_hash(message(msgspec.json.encode(other)))


@pytest.mark.parametrize(
    "other", [message(b"2"), message(headers={"a": "b"}), message(delay_ms=1), message(correlation_id="c"), message(b'"1"')]
)
def test_everything_that_a_consumer_or_a_clock_sees_counts(other: NewMessage) -> None:
    assert body_hash(other) != body_hash(message())


def test_the_idempotency_key_itself_does_not_count() -> None:
    assert body_hash(message(idempotency_key="a")) == body_hash(message(idempotency_key="b"))


def test_the_order_of_headers_does_not_count() -> None:
    assert body_hash(message(headers={"a": "1", "b": "2"})) == body_hash(message(headers={"b": "2", "a": "1"}))


@pytest.mark.parametrize("payload", [b"1e400", b"9" * 5000, b"[" * 100 + b"]" * 100, b"123456789012345678901234567890"])
def test_any_payload_that_can_be_published_has_a_hash(payload: bytes) -> None:
    assert body_hash(message(payload)) == body_hash(message(payload))
    assert body_hash(message(payload)) != body_hash(message())


@given(st.tuples(_IDS, st.text()), st.tuples(_IDS, st.text()))
def test_an_idempotency_key_belongs_to_the_key_that_used_it(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (marker_token(*one) == marker_token(*other)) == (one == other)


@given(st.text(min_size=1))
def test_a_markers_token_is_a_nats_token(key: str) -> None:
    token = marker_token("key", key)
    assert len(token) == 40 and token.isalnum()


# Limits of a message

LIMITS = MessageLimits(headers_max=2, headers_bytes_max=20)


@pytest.mark.parametrize(
    "good",
    [
        message(b'"12345678"'),
        message(headers={}),
        message(headers={"a": "1", "b": "2"}),
        message(headers={"a" * 10: "b" * 10}),
        message(headers={"a" * 10: "\xe9" * 5}),
    ],
)
def test_a_message_at_its_limits_is_taken(good: NewMessage) -> None:
    check_message(good, LIMITS, 10)


def test_a_payload_over_the_limit_is_too_large() -> None:
    with pytest.raises(TooLarge, match=r"\$\.payload has 11 bytes; at most 10"):
        check_message(message(b'"123456789"'), LIMITS, 10)


@pytest.mark.parametrize(
    "headers", [{"a": "", "b": "", "c": ""}, {"a" * 10: "b" * 11}, {"\xe9" * 5: "\xe9" * 6}, {"a": "x" * 20}]
)
def test_headers_over_the_limit_are_named(headers: dict[str, str]) -> None:
    with pytest.raises(BodyInvalid) as refused:
        check_message(message(headers=headers), LIMITS, 10, "$.messages[3]")
    [fault] = msgspec.convert(refused.value.extra["errors"], list[dict[str, str]])
    assert fault["path"] == "$.messages[3].headers"


# Stored forms


def test_a_stored_message_keeps_the_payloads_text() -> None:
    text = b'{"a" : 1.0 ,\n "b":[1e3, 12345678901234567890123]}'
    stored = StoredMessage(v=1, id="i", job="j", at=5, payload=msgspec.Raw(text))
    encoded = encode_message(stored)
    assert text in encoded
    assert bytes(decode_message(encoded).payload) == text


def test_what_an_earlier_version_has_stored_stays_readable() -> None:
    full = b'{"v":1,"id":"i","job":"j","at":5,"headers":{"a":"b"},"corr":"c","trace":"t","payload":[1, 2]}'
    decoded = decode_message(full)
    assert (decoded.id, decoded.job, decoded.at, decoded.headers, decoded.corr, decoded.trace) == (
        "i",
        "j",
        5,
        {"a": "b"},
        "c",
        "t",
    )
    assert encode_message(decoded) == full
    assert decode_message(b'{"v":1,"id":"i","job":"j","at":5,"payload":1}').headers == {}
    marker = b'{"v":1,"body":"h","message":"m","job":"j","at":5}'
    assert decode_marker(marker) == Marker(v=1, body="h", message="m", job="j", at=5)
    record = (
        b'{"v":1,"state":"ready","tenant":"acme","name":"a.b","incarnation":"x","settings":{"visibilityTimeoutMs":30000,'
        b'"retentionMs":0,"dedupeWindowMs":null,"maxMessages":0,"replicas":null},"createdAtMs":1,"updatedAtMs":2}'
    )
    read = msgspec.json.decode(record, type=QueueRecord)
    assert (read.state, read.settings, read.stream, read.subject) == (
        QueueState.READY,
        QueueSettings(visibility_timeout_ms=30_000),
        "Q_acme__a_db",
        "q.acme.a_db",
    )


def test_a_leased_message_leaves_out_what_it_does_not_have() -> None:
    bare = StoredMessage(v=1, id="i", job="j", at=1_700_000_000_123, payload=msgspec.Raw(b"[ 1 ]"))
    assert msgspec.json.encode(as_leased(bare, 2, "r")) == (
        b'{"receiptId":"r","messageId":"i","jobId":"j","payload":[ 1 ],"headers":{},"attempt":2,'
        b'"enqueuedAt":"2023-11-14T22:13:20.123Z"}'
    )


def record_of(tenant: str, name: str, incarnation: str) -> QueueRecord:
    return QueueRecord(
        state=QueueState.READY,
        tenant=tenant,
        name=name,
        incarnation=incarnation,
        settings=QueueSettings(),
        created_at_ms=0,
        updated_at_ms=0,
    )


_TENANTS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,5}", fullmatch=True)
_NAMES = st.from_regex(r"[A-Za-z0-9_.:-]{1,6}", fullmatch=True)


@given(st.tuples(_TENANTS, _NAMES, _IDS), st.tuples(_TENANTS, _NAMES, _IDS))
def test_a_receipt_belongs_to_one_queue_of_one_tenant_in_one_life(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assume(one != other)
    assert record_of(*one).owner != record_of(*other).owner


@given(st.tuples(_TENANTS, _NAMES), st.tuples(_TENANTS, _NAMES))
def test_no_two_queues_share_a_stream_or_a_subject(one: tuple[str, str], other: tuple[str, str]) -> None:
    assume(one != other)
    here, there = record_of(*one, "x"), record_of(*other, "x")
    assert here.stream != there.stream
    assert not f"{here.subject}.ready".startswith(f"{there.subject}.")


# Settings


@pytest.mark.parametrize(
    "settings",
    [
        {"visibilityTimeoutMs": -1},
        {"visibilityTimeoutMs": 12 * 3600 * 1000 + 1},
        {"retentionMs": -1},
        {"dedupeWindowMs": 999},
        {"dedupeWindowMs": 31 * 86_400_000},
        {"maxMessages": -1},
        {"replicas": 0},
        {"replicas": 6},
        {"visibilityTimeoutMs": 1.5},
        {"unknown": 1},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(settings, QueueSettings)
