"""Rules: body hashes, idempotency keys, message limits."""

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from postroad.api.queues import NewMessage
from postroad.kernel.errors import BodyInvalid, TooLarge
from postroad.queues.rules import MessageLimits, body_hash, check_message, marker_token

_IDS = st.uuids().map(str)

# Body hashes

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def message(payload: bytes = b"1", **more: Any) -> NewMessage:
    return NewMessage(payload=msgspec.Raw(payload), **more)


def spaced(value: object) -> bytes:
    """The same JSON with other white space and the keys of objects in the other order."""
    return msgspec.json.format(msgspec.json.encode(_reversed(value)), indent=3)


def _reversed(value: object) -> object:
    if isinstance(value, dict):
        return {name: _reversed(one) for name, one in reversed(list(value.items()))}
    return [_reversed(one) for one in value] if isinstance(value, list) else value


@given(_JSON)
def test_white_space_and_key_order_do_not_change_the_hash(payload: object) -> None:
    assert body_hash(message(spaced(payload))) == body_hash(message(msgspec.json.encode(payload)))


@given(_JSON, _JSON)
def test_different_payloads_have_different_hashes(one: object, other: object) -> None:
    assume(msgspec.json.encode(one, order="deterministic") != msgspec.json.encode(other, order="deterministic"))
    assert body_hash(message(msgspec.json.encode(one))) != body_hash(message(msgspec.json.encode(other)))


@pytest.mark.parametrize(
    "other", [message(b"2"), message(headers={"a": "b"}), message(delay_ms=1), message(correlation_id="c"), message(b'"1"')]
)
def test_every_field_that_affects_delivery_changes_the_hash(other: NewMessage) -> None:
    assert body_hash(other) != body_hash(message())


def test_the_idempotency_key_does_not_change_the_hash() -> None:
    assert body_hash(message(idempotency_key="a")) == body_hash(message(idempotency_key="b"))


def test_the_order_of_headers_does_not_change_the_hash() -> None:
    assert body_hash(message(headers={"a": "1", "b": "2"})) == body_hash(message(headers={"b": "2", "a": "1"}))


@pytest.mark.parametrize("payload", [b"1e400", b"9" * 5000, b"[" * 100 + b"]" * 100, b"123456789012345678901234567890"])
def test_every_valid_payload_has_a_hash(payload: bytes) -> None:
    assert body_hash(message(payload)) == body_hash(message(payload))
    assert body_hash(message(payload)) != body_hash(message())


@given(st.tuples(_IDS, st.text()), st.tuples(_IDS, st.text()))
def test_idempotency_keys_are_separate_for_each_api_key(one: tuple[str, str], other: tuple[str, str]) -> None:
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
def test_a_message_at_the_limits_is_accepted(good: NewMessage) -> None:
    check_message(good, LIMITS, 10, 0)


def test_a_payload_over_the_limit_is_too_large() -> None:
    with pytest.raises(TooLarge, match=r"\$\.payload has 11 bytes; at most 10"):
        check_message(message(b"12345678901"), LIMITS, 10, 0)


def test_the_size_of_a_json_string_is_that_of_its_text() -> None:
    check_message(message(b'"12345\\n6789"'), LIMITS, 10, 0)
    with pytest.raises(TooLarge, match=r"\$\.payload has 11 bytes; at most 10"):
        check_message(message('"123456789é"'.encode()), LIMITS, 10, 0)


@pytest.mark.parametrize(
    "headers", [{"a": "", "b": "", "c": ""}, {"a" * 10: "b" * 11}, {"\xe9" * 5: "\xe9" * 6}, {"a": "x" * 20}]
)
def test_headers_over_the_limit_are_refused_with_their_path(headers: dict[str, str]) -> None:
    with pytest.raises(BodyInvalid) as refused:
        check_message(message(headers=headers), LIMITS, 10, 0, "$.messages[3]")
    [fault] = msgspec.convert(refused.value.extra["errors"], list[dict[str, str]])
    assert fault["path"] == "$.messages[3].headers"
