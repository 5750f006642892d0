"""Rules of CloudEvents: attributes, and an event as headers and as JSON."""

import base64
import json
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.cloudevents import (
    SCHEMA,
    CloudEvent,
    decode_value,
    encode_value,
    from_headers,
    from_json,
    to_headers,
    to_json,
    types_of,
    with_types,
)
from postroad.kernel.errors import BodyInvalid

NEEDED = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t"}

texts = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40)
names = st.from_regex(r"[a-z0-9]{1,20}", fullmatch=True).filter(lambda name: name not in {*SCHEMA["properties"], "data"})
values = st.one_of(texts, st.booleans(), st.integers(-(2**31), 2**31 - 1))
times = st.sampled_from(["2027-01-31T12:00:00Z", "2027-01-31T12:00:00.123456789+05:30", "1985-04-12T23:20:50.52Z"])
known = st.fixed_dictionaries(
    {"id": texts, "source": st.sampled_from(["/a", "urn:x:1", "https://a.example/b?c=%20d#e", "a/b"]), "type": texts},
    optional={
        "subject": texts,
        "time": times,
        "dataschema": st.just("https://schemas.example/1.json"),
        "datacontenttype": st.sampled_from(["application/json", "application/x+json; charset=utf-8", "text/plain", "image/png"]),
    },
)
extensions = st.dictionaries(names.filter(lambda name: not name.startswith("postroad")), values, max_size=5)


@st.composite
def events(draw: st.DrawFn) -> CloudEvent:
    attributes = {"specversion": "1.0", **draw(known), **draw(extensions)}
    event = CloudEvent(attributes)
    if draw(st.booleans()):
        return event
    if "json" in event.content_type:
        content = draw(st.one_of(st.integers(-(2**53), 2**53), st.text(), st.lists(st.booleans())))
        return CloudEvent(attributes, msgspec.json.encode(content))
    return CloudEvent(attributes, draw(st.binary()))


def errors_of(problem: BodyInvalid) -> list[dict[str, str]]:
    found: Any = problem.extra["errors"]
    return list(found)


def raw(event: dict[str, Any]) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(msgspec.json.encode(event), type=dict[str, msgspec.Raw])


@given(events())
def test_an_event_is_the_same_after_both_modes(event: CloudEvent) -> None:
    assert from_json(msgspec.json.decode(to_json(event), type=dict[str, msgspec.Raw])) == event
    content_type = event.attributes.get("datacontenttype")
    headers = to_headers(event)
    assert all(value.isascii() and value.isprintable() and " " not in value for value in headers.values())
    read = from_headers(headers.items(), None if content_type is None else str(content_type), event.data)
    assert with_types(read, types_of(event)) == event


@given(events())
def test_the_schema_describes_the_json_of_events(event: CloudEvent) -> None:
    jsonschema_rs.validate(SCHEMA, json.loads(to_json(event)))


@given(st.text(st.characters(codec="utf-8")))
def test_every_text_is_a_value_of_a_header(text: str) -> None:
    assert decode_value(encode_value(text)) == text


@pytest.mark.parametrize(
    ("value", "expected"),
    [("Euro%20%E2%82%AC", "Euro €"), ('"quoted \\" text"', 'quoted " text'), ("100%", "100%"), ("a+b", "a+b")],
)
def test_values_of_other_senders_are_understood(value: str, expected: str) -> None:
    assert decode_value(value) == expected


@pytest.mark.parametrize(
    ("change", "attribute", "detail"),
    [
        ({"id": None}, "id", "is required"),
        ({"source": None}, "source", "is required"),
        ({"type": None}, "type", "is required"),
        ({"specversion": None}, "specversion", "is required"),
        ({"specversion": "0.3"}, "specversion", "'1.0' is the supported version"),
        ({"id": ""}, "id", "is empty"),
        ({"id": 5}, "id", "is not a string"),
        ({"source": "not a uri"}, "source", "is not a URI reference"),
        ({"source": "/%zz"}, "source", "is not a URI reference"),
        ({"dataschema": "/relative"}, "dataschema", "is not an absolute URI"),
        ({"datacontenttype": "json"}, "datacontenttype", "is not a media type"),
        ({"datacontenttype": "a/b;" + "c" * 300}, "datacontenttype", "has over 256"),
        ({"time": "yesterday"}, "time", "is not a time"),
        ({"time": "2027-01-31T12:00:00"}, "time", "is not a time with an offset"),
        ({"subject": "a\nb"}, "subject", "has a control character"),
        ({"Extension": "a"}, "Extension", "is no name"),
        ({"an_extension": "a"}, "an_extension", "is no name"),
        ({"count": 2**31}, "count", "is not an integer of 32 bits"),
        ({"count": 1.5}, "count", "is not an integer"),
        ({"count": [1]}, "count", "is not a string, boolean or integer"),
        ({"data": 1, "data_base64": "AA=="}, "data_base64", "either"),
        ({"data_base64": "?"}, "data_base64", "is not base64"),
        ({"data_base64": base64.b64encode(b"no").decode()}, "data_base64", "is not JSON"),
        ({"data": 5, "datacontenttype": "text/plain"}, "data", "is a string"),
    ],
)
def test_a_fault_names_its_attribute(change: dict[str, Any], attribute: str, detail: str) -> None:
    event = {name: value for name, value in (NEEDED | change).items() if value is not None}
    with pytest.raises(BodyInvalid) as problem:
        from_json(raw(event))
    [error] = errors_of(problem.value)
    assert (error["path"], detail in error["detail"]) == (f"$.{attribute}", True), error
    assert not jsonschema_rs.validator_for(SCHEMA).is_valid(event) or detail in (
        "is not JSON",
        "is a string",
        "is not a time",
        "is not a time with an offset",
    )


def test_a_fault_in_binary_mode_names_its_header() -> None:
    headers = {f"ce-{name}": value for name, value in NEEDED.items()}
    for name, value, path in (("ce-time", "x", "ce-time"), ("ce-id", "%ff", "ce-id"), ("ce-datacontenttype", "a/b", None)):
        with pytest.raises(BodyInvalid) as problem:
            from_headers((headers | {name: value}).items(), "application/json", b"1")
        assert errors_of(problem.value)[0]["path"] == (path or name)
    with pytest.raises(BodyInvalid) as problem:
        from_headers(headers.items(), "json", b"1")
    assert errors_of(problem.value)[0]["path"] == "Content-Type"


def test_attributes_of_a_delivery_are_not_kept() -> None:
    event = from_json(raw(NEEDED | {"postroadreceipt": "r", "postroadattempt": 1, "other": "x"}))
    assert event.attributes == NEEDED | {"other": "x"}


def test_null_is_no_attribute_and_no_data() -> None:
    assert from_json(raw({**NEEDED, "subject": None, "data": None})) == CloudEvent(NEEDED, None)


def test_text_is_shown_as_text_and_bytes_as_base64() -> None:
    text = CloudEvent({**NEEDED, "datacontenttype": "text/plain"}, "ü".encode())
    assert msgspec.json.decode(to_json(text))["data"] == "ü"
    assert msgspec.json.decode(to_json(CloudEvent(text.attributes, b"\xff")))["data_base64"] == "/w=="
