"""Stored formats: receipts, messages, markers, queue records."""

import struct
import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from postroad.api.queues import StrictQueueSettings
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.queues.records import Marker, QueueRecord, Receipt, StoredMessage, decode_marker, decode_message, encode_message
from postroad.queues.responses import message_of

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
    priority=st.sampled_from(["normal", "high", "low"]),
    trace=st.just(b"") | st.binary(min_size=24, max_size=24),
)
ONE = Receipt(1, 2, 3, 4, 5, 6, str(uuid.UUID(int=7)), str(uuid.UUID(int=8)))


@given(_RECEIPTS)
def test_a_receipt_round_trips(receipt: Receipt) -> None:
    assert Receipt.from_bytes(receipt.to_bytes()) == receipt


@given(_RECEIPTS, _RECEIPTS)
def test_different_receipts_have_different_bytes(one: Receipt, other: Receipt) -> None:
    assert (one.to_bytes() == other.to_bytes()) == (one == other)


def test_a_receipt_starts_with_its_version() -> None:
    assert ONE.to_bytes()[0] == 1
    assert ONE.to_bytes() == struct.pack(">BQQIQQQ", 1, 1, 2, 3, 4, 5, 6) + bytes(15) + b"\x07" + bytes(15) + b"\x08"


def test_a_receipt_of_another_priority_has_version_2() -> None:
    for priority, number in (("high", 1), ("low", 2)):
        body = replace(ONE, priority=priority).to_bytes()
        assert body == b"\x02" + ONE.to_bytes()[1:] + bytes([number])
        with pytest.raises(ValueError, match="version 1, 2, 3 or 4"):
            Receipt.from_bytes(body[:-1])
        with pytest.raises(ValueError, match="version 1, 2, 3 or 4"):
            Receipt.from_bytes(body[:-1] + b"\x03")


@pytest.mark.parametrize("more", [{}, {"priority": "high"}, {"group": "ab" * 16}, {"token": b"t" * 20}])
def test_a_trace_is_at_the_end_of_a_receipt_of_any_version(more: dict[str, Any]) -> None:
    plain = replace(ONE, **more)
    traced = replace(plain, trace=bytes(range(1, 25)))
    assert traced.to_bytes() == bytes([plain.to_bytes()[0] | 0x80]) + plain.to_bytes()[1:] + bytes(range(1, 25))
    assert Receipt.from_bytes(traced.to_bytes()) == traced
    context = traced.traced().context
    assert context is not None
    assert context.trace_id + context.span_id == bytes(range(1, 25)).hex()
    assert plain.traced().context is None


@given(st.integers(0, 255).filter(lambda version: version != 1))
def test_a_receipt_of_another_version_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="version 1"):
        Receipt.from_bytes(bytes([version]) + ONE.to_bytes()[1:])


@given(st.binary(max_size=100))
def test_bytes_of_another_length_are_not_a_receipt(body: bytes) -> None:
    assume(len(body) != len(ONE.to_bytes()))
    with pytest.raises(ValueError, match="not a receipt"):
        Receipt.from_bytes(body)


# Messages and queues


def test_a_stored_message_keeps_the_text_of_the_payload() -> None:
    text = b'{"a" : 1.0 ,\n "b":[1e3, 12345678901234567890123]}'
    stored = StoredMessage(v=1, id="i", job="j", at=5, payload=msgspec.Raw(text))
    encoded = encode_message(stored)
    assert text in encoded
    assert bytes(decode_message(encoded).payload) == text


def test_records_of_earlier_versions_are_readable() -> None:
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
        RecordState.READY,
        StrictQueueSettings(visibility_timeout_ms=30_000),
        "Q_acme__a_db",
        "q.acme.a_db",
    )


def test_a_message_leaves_out_absent_fields() -> None:
    bare = StoredMessage(v=1, id="i", job="j", at=1_700_000_000_123, payload=msgspec.Raw(b"[ 1 ]"))
    assert msgspec.json.encode(message_of(bare, 2, "r")) == (
        b'{"receiptId":"r","messageId":"i","jobId":"j","payload":[ 1 ],"headers":{},"attempt":2,'
        b'"enqueuedAt":"2023-11-14T22:13:20.123Z"}'
    )


def record_of(tenant: str, name: str, incarnation: str) -> QueueRecord:
    return QueueRecord(
        state=RecordState.READY,
        tenant=tenant,
        name=name,
        incarnation=incarnation,
        settings=StrictQueueSettings(),
        created_at_ms=0,
        updated_at_ms=0,
    )


_TENANTS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,5}", fullmatch=True)
_NAMES = st.from_regex(r"[A-Za-z0-9_.:-]{1,6}", fullmatch=True)


@given(st.tuples(_TENANTS, _NAMES, _IDS), st.tuples(_TENANTS, _NAMES, _IDS))
def test_a_receipt_is_valid_for_one_tenant_queue_and_incarnation(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
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
        msgspec.convert(settings, StrictQueueSettings)


def test_a_receipt_of_an_ordered_queue_has_version_3_with_the_group() -> None:
    receipt = replace(ONE, group="0123456789abcdef" * 2)
    body = receipt.to_bytes()
    assert body == b"\x03" + ONE.to_bytes()[1:] + bytes.fromhex("0123456789abcdef" * 2)
    assert Receipt.from_bytes(body) == receipt
    with pytest.raises(ValueError, match="version"):
        Receipt.from_bytes(body[:-1])
