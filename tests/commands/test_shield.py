"""The shield: every reason, and that nothing but a valid signature passes."""

import hashlib
import hmac as reference
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.command_signing import command_signature, payload_hmac
from postroad.commands.registry_view import KnownSecret, Sender
from postroad.commands.rules import is_sampled, target_of
from postroad.commands.shield import Accepted, Invalid, ShieldPolicy, inspect
from tests.commands.senders import envelope

NOW = 1_800_000_000_000
POLICY = ShieldPolicy(256 * 1024, 60_000)
SECRET = "a" * 64
OLD = "b" * 64
SENDER = Sender(
    "acme",
    "billing",
    "i1",
    frozenset({"key"}),
    {
        "hmac-v2": KnownSecret(SECRET.encode(), None, True),
        "hmac-v1": KnownSecret(OLD.encode(), NOW + 1000, False),
        "hmac-v0": KnownSecret(OLD.encode(), NOW, False),
    },
    0,
)


def at(offset_seconds: float) -> str:
    moment = datetime.fromtimestamp(NOW / 1000, UTC) + timedelta(seconds=offset_seconds)
    return moment.isoformat().replace("+00:00", "Z")


def valid(**fields: Any) -> dict[str, Any]:
    return envelope(SECRET, **{"version": "hmac-v2", "timestamp": at(0), **fields})


def judge(body: object) -> Accepted | Invalid:
    return inspect(body if isinstance(body, bytes) else msgspec.json.encode(body), SENDER, NOW, POLICY)


def reason(body: object) -> str:
    found = judge(body)
    assert isinstance(found, Invalid), found
    return found.reason


def without(part: str, name: str) -> dict[str, Any]:
    body = valid()
    del body[part][name]
    return body


def with_field(part: str, name: str, value: object) -> dict[str, Any]:
    body = valid()
    body[part][name] = value
    return body


def test_a_valid_command_is_accepted_with_its_payload_as_sent() -> None:
    """Requirements 9, 10, 23, 150"""
    payload = b'{ "b": 1.50, "a": [ ] }'
    found = judge(valid(payload=payload, target="other/bot"))
    assert isinstance(found, Accepted)
    assert (found.payload, found.target_tenant, found.target_service) == (payload, "other", "bot")
    assert (found.is_legacy, found.is_signed, found.skew_ms) == (False, False, 0)


def test_the_hmac_is_the_one_that_the_documentation_describes() -> None:
    """Requirements 9: computed here without our code."""
    text = b'{"a":1}' + at(0).encode() + b"post"
    expected = reference.new(SECRET.encode(), text, hashlib.sha256).hexdigest()
    assert payload_hmac(SECRET.encode(), b'{"a":1}', at(0), "post") == expected
    lines = f"v2\nid\nacme/billing\nbot\npost\n{at(0)}\n{hashlib.sha256(b'1').hexdigest()}"
    signed = reference.new(SECRET.encode(), lines.encode(), hashlib.sha256).hexdigest()
    found = command_signature(
        SECRET.encode(), command_id="id", source="acme/billing", target="bot", name="post", timestamp=at(0), payload=b"1"
    )
    assert found == signed


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "not-json"),
        (b"{", "not-json"),
        (b"\xff", "not-json"),
        (b"[" * 100_000, "not-json"),
        (b"42", "bad-field"),
        (b"{}", "missing-field"),
        ({**valid(), "extra": 1}, "unknown-field"),
        (with_field("metadata", "replayed", True), "unknown-field"),
        (with_field("command", "paylaod", 1), "unknown-field"),
        (with_field("command", "source", "acme/billing"), "source-present"),
        (with_field("command", "source", None), "source-present"),
        ({**with_field("command", "source", {}), "extra": 1}, "source-present"),
        (without("metadata", "id"), "missing-field"),
        (without("metadata", "version_id"), "missing-field"),
        (without("command", "payload"), "missing-field"),
        (without("command", "target"), "missing-field"),
        (without("metadata", "hmac"), "hmac-missing"),
        (with_field("metadata", "hmac", ""), "hmac-missing"),
        (with_field("metadata", "hmac", None), "hmac-missing"),
        (with_field("metadata", "hmac", "0" * 64), "hmac-invalid"),
        (with_field("metadata", "hmac", "é"), "hmac-invalid"),
        (with_field("metadata", "id", "42"), "bad-field"),
        (with_field("metadata", "id", 42), "bad-field"),
        (with_field("metadata", "type", "snavio.command"), "type"),
        (with_field("command", "target", "a/b/c"), "bad-field"),
        (with_field("command", "target", "Acme/bot"), "bad-field"),
        (with_field("command", "target", ""), "bad-field"),
        (valid(name="a b"), "bad-field"),
        (valid(name="x" * 81), "bad-field"),
        (valid(version="hmac-v3"), "version-unknown"),
        (envelope(OLD, version="hmac-v0", timestamp=at(0)), "version-expired"),
        (with_field("metadata", "signature", "0" * 64), "signature-invalid"),
        (with_field("metadata", "signature", None), "bad-field"),
        (valid(payload=b'"' + b"x" * 262_144 + b'"'), "too-large"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_reasons(body: object, expected: str) -> None:
    """Requirements 6, 8, 12, 13, 15, 22, 137"""
    assert reason(body) == expected


def test_a_repeated_key_is_refused_whatever_its_second_value() -> None:
    text = msgspec.json.encode(valid())
    twice = text.replace(b'"command":{', b'"command":{"target":"evil",', 1)
    assert reason(twice) == "bad-field"
    escaped = text.replace(b'"command":{', b'"command":{"sourc\\u0065":1,', 1)
    assert reason(escaped) == "source-present"


@pytest.mark.parametrize(
    "text",
    [
        "2027-01-15",
        "2027-01-15T08:00:00",
        "2027-01-15 08:00:00Z",
        "20270115T080000Z",
        "2027-W02-5T08:00:00Z",
        "2027-13-15T08:00:00Z",
        "2027-01-15T08:00:60Z",
        "2027-01-15T08:00:00+25:00",
        "1800000000",
        "",
        "\uff12027-01-15T08:00:00Z",
    ],
)
def test_malformed_times(text: str) -> None:
    """Requirements 7, 162"""
    assert reason(with_field("metadata", "timestamp", text)) == "timestamp-malformed"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(-60, None), (60, None), (-60.001, "timestamp-expired"), (60.001, "timestamp-future"), (-1e6, "timestamp-expired")],
)
def test_the_window_is_checked_before_the_hmac(offset: float, expected: str | None) -> None:
    """Requirements 24, 158, 159"""
    found = judge(valid(timestamp=at(offset)))
    assert (found.reason if isinstance(found, Invalid) else None) == expected
    if expected is not None:
        broken = valid(timestamp=at(offset))
        broken["metadata"]["hmac"] = "0" * 64
        assert reason(broken) == expected


def test_times_may_have_any_zone() -> None:
    local = datetime.fromtimestamp(NOW / 1000, UTC).astimezone(tz=None).isoformat()
    assert isinstance(judge(valid(timestamp=local)), Accepted)
    assert isinstance(judge(valid(timestamp=at(0).replace("Z", "+00:00"))), Accepted)


@pytest.mark.parametrize(("offset", "is_near"), [(0, False), (47.9, False), (48, True), (-48, True), (-60, True)])
def test_a_skew_near_the_limit_is_marked(offset: float, is_near: bool) -> None:
    """Requirements 161"""
    found = judge(valid(timestamp=at(offset)))
    assert isinstance(found, Accepted) and found.is_near_limit is is_near
    assert found.skew_ms == -round(offset * 1000)


def test_the_previous_secret_is_accepted_and_marked() -> None:
    """Requirements 151, 156"""
    found = judge(envelope(OLD, version="hmac-v1", timestamp=at(0)))
    assert isinstance(found, Accepted) and found.is_legacy
    assert reason(envelope(SECRET, version="hmac-v1", timestamp=at(0))) == "hmac-invalid"


def test_about_one_in_a_hundred_commands_is_sampled_always_the_same() -> None:
    """Requirements 163"""
    ids = [str(uuid.UUID(int=number)) for number in range(20_000)]
    sampled = [one for one in ids if is_sampled(one)]
    assert 120 < len(sampled) < 290
    assert sampled == [one for one in ids if is_sampled(one)]


def test_an_invalid_command_keeps_the_fields_that_it_had() -> None:
    """Requirements 203"""
    body = valid(target="bot", name="post")
    body["command"]["source"] = "x"
    found = judge(body)
    assert isinstance(found, Invalid)
    assert (found.command_id, found.target, found.name) == (body["metadata"]["id"], "bot", "post")
    found = judge({"metadata": {"id": 42}, "command": {"target": "x" * 500, "name": None}})
    assert isinstance(found, Invalid) and (found.command_id, found.target, found.name) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("bot", ("acme", "bot")), ("other/bot", ("other", "bot")), ("/bot", None), ("other/", None), ("a/b/c", None), ("..", None)],
)
def test_targets(text: str, expected: tuple[str, str] | None) -> None:
    assert target_of("acme", text) == expected


@given(position=st.integers(0, 10_000), bit=st.integers(0, 7), signed=st.booleans())
def test_one_flipped_bit_is_never_accepted_as_another_command(position: int, bit: int, signed: bool) -> None:
    """A changed byte makes the command invalid; only id and target are not covered without a signature."""
    body = valid(source="acme/billing" if signed else None, command_id="0f8fad5b-d9cb-469f-a165-70867728950e")
    text = bytearray(msgspec.json.encode(body))
    text[position % len(text)] ^= 1 << bit
    found, original = judge(bytes(text)), judge(body)
    assert isinstance(original, Accepted)
    if isinstance(found, Accepted):
        assert (found.payload, found.timestamp, found.name, found.hmac) == (
            original.payload,
            original.timestamp,
            original.name,
            original.hmac,
        )
        if signed:
            assert (found.command_id, found.target) == (original.command_id, original.target)


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_arbitrary_bytes_are_invalid(body: bytes) -> None:
    assert isinstance(judge(body), Invalid)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=10,
)


@given(
    part=st.sampled_from(["metadata", "command"]),
    name=st.sampled_from(["id", "timestamp", "type", "hmac", "version_id", "signature", "target", "name", "source", "x"]),
    value=_JSON,
)
def test_a_field_of_any_type_is_judged_without_an_exception(part: str, name: str, value: object) -> None:
    body = valid()
    is_same = body[part].get(name) == value
    body[part][name] = value
    try:
        text = msgspec.json.encode(body)
    except (UnicodeEncodeError, ValueError):  # a text with lone surrogates
        return
    found = inspect(text, SENDER, NOW, POLICY)
    assert isinstance(found, Invalid) or is_same or name in ("id", "target")


@given(_JSON)
def test_any_payload_arrives_byte_for_byte(payload: object) -> None:
    try:
        text = msgspec.json.encode(payload)
    except (UnicodeEncodeError, ValueError):
        return
    found = judge(valid(payload=text))
    assert isinstance(found, Accepted) and found.payload == text
