"""Messages as RabbitMQ has them, and the names of its queues."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.commands import Basic

from postroad.api.queues import DeadLetterOrigin, StrictQueueSettings
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.errors import BodyInvalid
from postroad.kernel.ids import new_id
from postroad.queues.rabbitmq.markers import is_purged
from postroad.queues.rabbitmq.messages import body_of, death_reason, properties_of, read, returned, sequence_of
from postroad.queues.rabbitmq.names import check_name, dead_queue, main_queue
from postroad.queues.records import QueueRecord, Receipt, StoredMessage, TokenRef

NAMES = st.text(min_size=1, max_size=20)


def stored(**more: object) -> StoredMessage:
    fields = {"v": 1, "id": new_id(), "job": new_id(), "at": 1_700_000_000_123, "payload": msgspec.Raw(b'{"n": 1}'), **more}
    return StoredMessage(**fields)  # type: ignore[arg-type]


@given(
    st.dictionaries(NAMES | st.sampled_from(["x-postroad-job", "Traceparent", "x-death", "n" * 256]), st.text(max_size=20)),
    st.none() | st.text(min_size=1, max_size=256),
    st.integers(0, 1000),
)
def test_a_message_is_read_as_it_was_written(headers: dict[str, str], corr: str | None, attempts: int) -> None:
    origin = DeadLetterOrigin(queue="a", reason="r", attempts=2, dead_at="2026-01-01T00:00:00.000Z")
    message = stored(headers=headers, corr=corr, attempts=attempts, trace="00-a", by="k", expires=5, dead=origin, redrive="t")
    found = read(body_of(message), properties_of(message), is_redelivered=False, now_ms=0)
    assert msgspec.structs.replace(found.stored, payload=message.payload) == message
    assert bytes(found.stored.payload) == bytes(message.payload)
    assert (found.attempt, found.copy, found.is_native) == (attempts + 1, "0", False)


def test_a_message_that_was_delivered_before_may_be_settled() -> None:
    message = stored()
    properties = properties_of(message)
    assert not read(b"1", properties, is_redelivered=False, now_ms=0).may_be_settled
    assert read(b"1", properties, is_redelivered=True, now_ms=0).may_be_settled
    assert read(b"1", properties_of(message, copy="7"), is_redelivered=False, now_ms=0).may_be_settled
    assert properties.headers is not None
    properties.headers["x-delivery-count"] = 2
    again = read(b"1", properties, is_redelivered=False, now_ms=0)
    assert again.may_be_settled and again.attempt == 3


@pytest.mark.parametrize(("copy", "kept"), [("", "0"), ("7", "7")])
def test_the_copy_of_a_returned_message_has_the_same_attempt_and_may_be_settled(copy: str, kept: str) -> None:
    message = stored(attempts=3)
    properties = properties_of(message, copy=copy)
    assert properties.headers is not None
    for deliveries in (0, 2):
        properties.headers["x-delivery-count"] = deliveries
        before = read(b"1", properties, is_redelivered=False, now_ms=0)
        again = read(b"1", returned(properties), is_redelivered=False, now_ms=0)
        assert (again.attempt, again.copy, again.stored.id) == (before.attempt, kept, message.id)
        assert again.may_be_settled


@given(st.binary(max_size=50), st.dictionaries(NAMES, st.integers() | st.booleans() | st.none() | st.text(max_size=5)))
def test_any_message_of_a_native_program_can_be_read(body: bytes, headers: dict[str, object]) -> None:
    found = read(body, Basic.Properties(headers=headers), is_redelivered=False, now_ms=5)  # type: ignore[arg-type]
    assert found.is_native and found.stored.at == 5 and found.attempt == 1
    msgspec.json.decode(found.stored.payload)


def test_a_native_message_has_the_time_at_which_it_was_seen() -> None:
    found = read(b"1", Basic.Properties(timestamp=datetime(2001, 2, 3, tzinfo=UTC)), is_redelivered=False, now_ms=5)
    assert (found.stored.at, found.stored.headers) == (5, {"amqp-timestamp": "2001-02-03T00:00:00Z"})


def test_a_purge_includes_what_came_into_the_outbox_before_it() -> None:
    assert [is_purged(copy, 7) for copy in ("0", "6", "7", "8", "word")] == [False, True, False, False, False]


def test_an_altered_header_makes_a_message_a_native_one() -> None:
    properties = properties_of(stored())
    assert properties.headers is not None
    properties.headers["x-postroad-job"] = "not an id"
    assert read(b"1", properties, is_redelivered=False, now_ms=0).is_native


def test_the_reason_of_a_death_is_that_of_the_latest() -> None:
    assert death_reason({"x-death": [{"reason": "rejected"}, {"reason": "expired"}]}) == "rejected"
    assert death_reason({"x-death": "?"}) == death_reason(None) == death_reason({}) == ""


def test_queues_of_one_queue_have_names_that_no_other_queue_has() -> None:
    settings = StrictQueueSettings()
    record = QueueRecord(
        state=RecordState.READY, tenant="t", name="a", incarnation="i", settings=settings, created_at_ms=0, updated_at_ms=0
    )
    assert (main_queue("p", record), dead_queue("p", record)) == ("p.t.a", "p.t.a.dlq")
    check_name("a.retry.1")
    with pytest.raises(BodyInvalid):
        check_name("a.dlq")


def test_a_receipt_carries_the_token_of_the_backend() -> None:
    message_id = new_id()
    receipt = Receipt(sequence_of(message_id), 3, 2, 5, 6, 7, message_id, new_id(), token=b"t" * 20)
    assert Receipt.from_bytes(receipt.to_bytes()) == receipt
    assert receipt.ref == TokenRef(receipt.stream_sequence, 3, 2, 5, b"t" * 20)
    with pytest.raises(ValueError, match="not a receipt"):
        Receipt.from_bytes(receipt.to_bytes() + b"x" * 60)
