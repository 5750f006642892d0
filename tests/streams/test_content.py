"""Parsing and encoding of offsets, cursors, bodies and server-sent events."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.streams import media_type
from postroad.kernel.errors import (
    InvalidParameter,
    MalformedJson,
)
from postroad.streams.content import data_event, json_data, json_elements, split_json
from postroad.streams.content import join_payloads as joined_data
from postroad.streams.cursors import control_event, cursor_after, cursor_now, parse_cursor
from postroad.streams.offsets import NOW, START, offset_text, parse_offset, parse_position

# Offsets and cursors


@given(st.integers(0, 9_999_999_999_999_999), st.integers(0, 9_999_999_999_999_999))
def test_offset_texts_sort_like_their_numbers(one: int, other: int) -> None:
    assert parse_offset(offset_text(one)) == one
    assert (offset_text(one) < offset_text(other)) == (one < other)
    assert re.fullmatch(r"\d{16}_\d{16}", offset_text(one))


@pytest.mark.parametrize(
    ("text", "position"),
    [
        (None, START),
        ("-1", START),
        ("now", NOW),
        ("0_0", 0),
        ("0000000000000000_0000000000000000", 0),
        ("5_11", 11),
        ("9999999999999999_9999999999999999", 9_999_999_999_999_999),
        ("0_99999999999999999999", 9_999_999_999_999_999),
    ],
)
def test_a_position_is_the_start_now_or_an_offset(text: str | None, position: object) -> None:
    assert parse_position(text) == position


BAD_OFFSETS = ["", " ", "0", "-2", "-1 ", "NOW", "now\n", "-1\n", "0_", "_0", "0_0\n", "\n0_0", " 0_0", "0_0 ", "0__0", "0_0_0"]
BAD_OFFSETS += ["0_-1", "+0_0", "0,0", "0/0", "../0_0", "0_0\x00", "0_0\r\n", "٣_٣", "²_²"]
BAD_OFFSETS += ["0_" + "0" * 21, "0" * 21 + "_0", "1" * 300]


@pytest.mark.parametrize("text", BAD_OFFSETS)
def test_other_texts_are_not_offsets(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_position(text)


@given(st.text(alphabet="0123456789_-\n\r ٣nowNOW", max_size=45))
def test_an_offset_is_digits_underscore_digits(text: str) -> None:
    left, mark, right = text.partition("_")
    is_good = mark == "_" and all(1 <= len(part) <= 20 and set(part) <= set("0123456789") for part in (left, right))
    if is_good:
        assert parse_position(text) == min(int(right), 9_999_999_999_999_999)
    elif text not in ("-1", "now"):
        with pytest.raises(InvalidParameter):
            parse_position(text)


@given(st.integers(0, 10**17))
def test_the_next_cursor_is_later_than_the_given_one(sent: int) -> None:
    now = cursor_now()
    assert cursor_after(None) >= now
    following = cursor_after(sent)
    assert following > sent or sent < now <= following
    assert following <= max(now + 1, sent + 180)
    assert parse_cursor(str(following)) == following


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", "1e3", " 1", "1\n", "²", "٣", "abc", "1" * 19])
def test_an_invalid_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_cursor(text)


def test_a_control_event_has_the_position() -> None:
    assert control_event(5, 7, is_up_to_date=False) == (
        b'id: 0000000000000000_0000000000000005\nevent: control\ndata:{"streamNextOffset":"0000000000000000_0000000000000005",'
        b'"streamCursor":"7"}\n\n'
    )
    [event] = events_in(control_event(5, 7, is_up_to_date=True))
    assert json.loads(event[1]) == {"streamNextOffset": offset_text(5), "streamCursor": "7", "upToDate": True}
    [event] = events_in(control_event(5, 7, is_up_to_date=True, is_closed=True))
    assert json.loads(event[1]) == {"streamNextOffset": offset_text(5), "upToDate": True, "streamClosed": True}


# Bodies


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (b'{"a":1}', [b'{"a":1}']),
        (b" [1, 2 ,3]\n", [b"1", b"2", b"3"]),
        (b"[[1,2],[3,4]]", [b"[1,2]", b"[3,4]"]),
        (b"[[[1]]]", [b"[[1]]"]),
        (b"[]", []),
        (b"[[]]", [b"[]"]),
        (b"null", [b"null"]),
        (b"\r\n\t true ", [b"true"]),
        (b'"[1,2]"', [b'"[1,2]"']),
        (b"[1.50, 1e400, 123456789012345678901234567890]", [b"1.50", b"1e400", b"123456789012345678901234567890"]),
        ('"ü"'.encode(), ['"ü"'.encode()]),
    ],
)
def test_an_array_is_split_one_level_deep_and_its_elements_are_unchanged(body: bytes, messages: list[bytes]) -> None:
    assert json_elements(body) == messages


BAD_JSON = [b"", b" ", b"[", b"[1,]", b"[1 2]", b"{", b'{"a":1,}', b"{a:1}", b"nul", b"truex", b"1 2", b"1,2", b"[1]2"]
BAD_JSON += [b"01", b"1.", b".5", b"+1", b"-", b"1e", b"NaN", b"[NaN]", b"Infinity", b"-Infinity", b'{"a":NaN}', b"1]", b"1],[2"]
BAD_JSON += [b'"', b'"a', b'"\\x"', b'"\\u12"', b'"a\nb"', b'"\x01"', b'"\xff"', b'["\xc3"]', b'"\xed\xa0\x80"', b"'a'"]
BAD_JSON += [b"\xef\xbb\xbf1", b"\x0c1", b"[" * 100_000, b'{"a":' * 100_000, b"[" * 5000 + b"]" * 5000]


@pytest.mark.parametrize("body", BAD_JSON, ids=lambda body: repr(body[:12]))
def test_malformed_json_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedJson):
        json_data(body)


def test_an_empty_array_is_refused() -> None:
    with pytest.raises(InvalidParameter):
        json_data(b" [ ] ")


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_accepted_nested_json_can_be_split_again(opening: bytes, closing: bytes) -> None:
    refused = 0
    for depth in range(1, 2000, 7):
        try:
            stored = json_data(b"[" + opening * depth + b"1" + closing * depth + b"]")
        except MalformedJson:
            refused += 1
            continue
        assert split_json(stored) == [opening * depth + b"1" + closing * depth]
    assert refused, "the nesting has a limit"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(st.lists(JSON_VALUES, min_size=1, max_size=5), st.sampled_from([None, 1]), st.booleans())
def test_json_messages_are_read_unchanged(values: list[Any], indent: int | None, is_ascii: bool) -> None:
    def text(value: Any) -> bytes:
        return json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")

    bodies = [text(value) for value in values]
    stored = [json_data(body) for body in bodies if json_elements(body)]
    flat = [one for value in values for one in (value if isinstance(value, list) else [value])]
    assert json.loads(joined_data(stored, is_json=True)) == flat
    assert [json.loads(one) for data in stored for one in split_json(data)] == flat
    run_together = b"[" + b",".join(bodies) + b"]"
    assert [json.loads(one) for one in split_json(json_data(run_together))] == values


@given(st.lists(st.binary(max_size=20), max_size=8))
def test_bytes_are_joined_unchanged(payloads: list[bytes]) -> None:
    assert joined_data(payloads, is_json=False) == b"".join(payloads)


def test_joining_no_payloads_gives_an_empty_body() -> None:
    assert joined_data([], is_json=False) == b""
    assert joined_data([], is_json=True) == b"[]"


# Events


def events_in(text: bytes) -> list[tuple[str, bytes]]:
    """Parse events by the rules of the HTML standard, independently of our code."""
    events: list[tuple[str, bytes]] = []
    kind, data, is_empty = b"message", b"", True
    for line in re.split(rb"\r\n|\r|\n", text):
        if not line:
            if not is_empty:
                events.append((kind.decode(), data.removesuffix(b"\n")))
            kind, data, is_empty = b"message", b"", True
            continue
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"event":
            kind = value
        elif field == b"data":
            data, is_empty = data + value + b"\n", False
    return events


BREAKS = [b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"\x0b", b"\x0c", b"\xc2\x85", b"\xe2\x80\xa8"]
FIELDS = [b"event: control", b"event:control\rdata:{}", b'data:{"streamNextOffset":"x"}', b"data:", b"id: 5", b"retry: 1"]
PIECES = st.sampled_from([*BREAKS, *FIELDS, b" ", b"  ", b":", b"a", b"\x00", b"\xff", b"\xef\xbb\xbf"])
PAYLOADS = st.lists(PIECES | st.binary(max_size=4), max_size=12).map(b"".join)


@given(PAYLOADS)
def test_text_cannot_forge_an_event(payload: bytes) -> None:
    """Any payload is one event, and its text is the payload with normalised line endings."""
    sent = data_event(payload, "text/plain") + control_event(7, 1, is_up_to_date=True)
    text = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    data, control = events_in(sent)
    assert data == ("data", text)
    assert control[0] == "control"


@given(PAYLOADS)
def test_bytes_survive_an_event(payload: bytes) -> None:
    sent = data_event(payload, "image/png") + control_event(7, 1, is_up_to_date=True)
    [(kind, text), (other, _)] = events_in(sent)
    assert (kind, other) == ("data", "control")
    assert msgspec.json.decode(b'"' + text + b'"', type=bytes) == payload


@given(st.lists(JSON_VALUES, min_size=1, max_size=3), st.sampled_from([None, 2]), st.sampled_from(["\n", "\r", "\r\n"]))
def test_json_survives_an_event(values: list[Any], indent: int | None, line_end: str) -> None:
    body = json.dumps(values, indent=indent).replace("\n", line_end).encode()
    sent = data_event(joined_data([json_data(body)], is_json=True), "application/json")
    [(kind, text)] = events_in(sent)
    assert kind == "data"
    assert json.loads(text) == values


@pytest.mark.parametrize("text", ["text/plain", "TEXT/Plain ; charset=utf-8", " text/plain;x=y;z"])
def test_a_media_type_is_without_its_parameters(text: str) -> None:
    assert media_type(text) == "text/plain"
