from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from postroad.kernel import json
from postroad.kernel.errors import BodyInvalid, MalformedJson


class Part(msgspec.Struct):
    count: int = 0


class Letter(msgspec.Struct, forbid_unknown_fields=True):
    body: msgspec.Raw
    parts: list[Part] = []
    attempts: int = 1


_decoder = msgspec.json.Decoder(Letter)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b'{"body": 1}x',
        b'{"body": 1,}',
        b'{"body": 01}',
        b'{"body": "a\nb"}',
        rb'{"body": "\q"}',
        rb'{"body": "\ud800"}',
        b"\xef\xbb\xbf{}",
        b'{"body": NaN}',
        b'{"body": [1,]}',
        b'{"body": {"a" 1}}',
    ],
)
def test_invalid_json_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedJson):
        json.decode(_decoder, body)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"body": 1, "attempts": "two"}', "$.attempts"),
        (b'{"body": 1, "parts": [{"count": 1}, {"count": null}]}', "$.parts[1].count"),
        (b"[]", "$"),
        (b"{}", "$"),
        (b'{"body": 1, "color": "red"}', "$"),
    ],
)
def test_an_invalid_field_is_named(body: bytes, path: str) -> None:
    with pytest.raises(BodyInvalid) as caught:
        json.decode(_decoder, body)
    errors: Any = caught.value.extra["errors"]
    assert [error["path"] for error in errors] == [path]
    assert errors[0]["detail"] and " - at `" not in errors[0]["detail"]
    assert path in caught.value.detail


def test_a_pattern_is_explained() -> None:
    class Envelope(msgspec.Struct):
        stamp: Annotated[
            Annotated[str, Meta(pattern="^[a-z]$", description="A small letter.")] | None, Meta(description="Stamp.")
        ]
        plain: Annotated[str, Meta(pattern="^x$")] = "x"

    decoder = msgspec.json.Decoder(list[Envelope])
    with pytest.raises(BodyInvalid, match=r"regex '\^\[a-z\]\$' \(A small letter\) \(at \$\[0\].stamp\)"):
        json.decode(decoder, b'[{"stamp": "A"}]')
    with pytest.raises(BodyInvalid, match=r"regex '\^x\$' \(at \$\[0\].plain\)"):
        json.decode(decoder, b'[{"stamp": "a", "plain": "y"}]')


@pytest.mark.parametrize("inside", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"ok \xe2\x82"])
def test_invalid_utf8_is_refused_in_raw_fields_too(inside: bytes) -> None:
    for body in (b'{"body": "%b"}' % inside, b'{"body": {"%b": 1}}' % inside, b'{"body": 1, "other": "%b"}' % inside):
        with pytest.raises(MalformedJson):
            json.decode(_decoder, body)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_deeply_nested_json_is_malformed(opening: bytes, closing: bytes) -> None:
    deep = opening * 100_000 + b"1" + closing * 100_000
    for body in (b'{"body": %b}' % deep, b'{"body": 1, "parts": [%b]}' % deep, deep):
        with pytest.raises((MalformedJson, BodyInvalid)):
            json.decode(_decoder, body)
    with pytest.raises(MalformedJson):
        json.decode(msgspec.json.Decoder(object), deep)


_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(_values)
def test_a_raw_value_is_unchanged(value: object) -> None:
    encoded = json.encode(value)
    assert msgspec.json.decode(encoded) == value
    letter = json.decode(_decoder, b'{"body": %b, "attempts": 2}' % encoded)
    assert (bytes(letter.body), letter.attempts) == (encoded, 2)


def test_a_bytearray_is_decoded_like_bytes() -> None:
    assert bytes(json.decode(_decoder, bytearray('{"body": "é"}'.encode())).body) == '"é"'.encode()


def test_a_long_name_of_a_field_is_not_repeated_in_the_error() -> None:
    body = b'{"' + b" - at `" * 100_000 + b'": 1}'
    with pytest.raises(BodyInvalid) as caught:
        json.decode(_decoder, body)
    assert len(caught.value.detail) < 1100
