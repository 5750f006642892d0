"""The AsyncAPI document: keys, references of schemas, limits."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.asyncapi.document import SCHEMAS_BYTES_MAX, Inventory, Source, TelemetryPart, document, key_of, telemetry_part
from postroad.asyncapi.local_references import NotMovable, moved
from postroad.kernel.event import event_name
from postroad.registry import event_types

NOTHING = TelemetryPart({}, {})
AT = "#/components/schemas/queues.q/schema"


def made(*queues: Source, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    return document(Inventory("acme", queues, (), (), left_out), NOTHING, "1", "http://127.0.0.1:8080", 5)


@given(st.text(max_size=20), st.text(max_size=20))
def test_keys_are_plain_and_distinct(one: str, other: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]*", key_of(one))
    assert (key_of(one) == key_of(other)) == (one == other)


def test_references_follow_their_schema() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"anyOf": [{"$ref": "#"}]}, "$ref": {"type": "string"}},
        "$defs": {"x": {"items": {"$ref": "#/$defs/x"}}},
    }
    assert moved(schema, AT) == {
        "properties": {"a": {"$ref": f"{AT}/$defs/x"}, "b": {"anyOf": [{"$ref": AT}]}, "$ref": {"type": "string"}},
        "$defs": {"x": {"items": {"$ref": f"{AT}/$defs/x"}}},
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#name"},
        {"$ref": "other.json"},
        {"$id": "https://a.example", "type": "object"},
        {"properties": {"a": {"$anchor": "name"}}},
        {"const": {"$ref": "#/x"}},
        {"enum": [[{"$ref": "#/x"}]]},
    ],
)
def test_a_schema_that_would_change_its_meaning_is_named_and_left_out(schema: dict[str, Any]) -> None:
    with pytest.raises(NotMovable):
        moved(schema, AT)
    message = made(Source("q", schema))["channels"]["queues.q"]["messages"]["message"]
    assert message["payload"] == {} and "cannot be part of this document" in message["description"]


def test_the_schemas_together_have_a_limit() -> None:
    large = {"description": "x" * (SCHEMAS_BYTES_MAX // 3)}
    found = made(*(Source(f"q{number}", large) for number in range(4)), Source("small", {"type": "string"}))
    assert sorted(found["components"]["schemas"]) == ["queues.q0", "queues.q1", "queues.small"]
    assert "left out" in found["channels"]["queues.q3"]["messages"]["message"]["description"]


def test_the_document_says_what_was_cut() -> None:
    info = made(Source("q"), left_out=("queues", "streams"))["info"]
    assert info["x-postroad-left-out"] == ["queues", "streams"]
    assert "only the first 5 of the queues, streams" in info["description"]
    assert "x-postroad-left-out" not in made(Source("q"))["info"]


def test_every_event_type_that_readers_see_is_a_message() -> None:
    part = telemetry_part(event_types())
    assert list(part.messages) == sorted(event_name(kind) for kind in event_types() if not kind.is_attached)
    assert all(one["payload"]["$ref"].rpartition("/")[2] in part.schemas for one in part.messages.values())
