"""The upper bound of the work that a schema can cause."""

from typing import Any

import pytest

from postroad.queues.schema_cost import UNBOUNDED, validation_cost

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "https://example.com/order",
    "type": "object",
    "required": ["id", "lines"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "at": {"type": "string", "format": "date-time"},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "uniqueItems": True},
    },
    "$defs": {"line": {"type": "object", "properties": {"sku": {"enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 1}}}},
    "x-owner": {"team": "orders"},
}


def chain(length: int, keyword: str = "anyOf") -> dict[str, Any]:
    """A schema whose validation takes two to the power of `length` steps."""
    definitions: dict[str, Any] = {"d0": {"type": "null", "minimum": 1}}
    for level in range(1, length + 1):
        reference = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {keyword: [reference, reference]}
    return {"$defs": definitions, "$ref": f"#/$defs/d{length}"}


def test_an_ordinary_schema_costs_about_as_much_as_it_has_keywords() -> None:
    assert validation_cost({}) == 0
    assert validation_cost({"type": "object"}) == 1
    assert validation_cost({"enum": ["a", "b", "c"]}) == 4
    assert 100 < validation_cost(ORDER) < 200


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_references_count_as_often_as_they_are_evaluated(keyword: str) -> None:
    assert validation_cost(chain(1, keyword)) == 1 + 2 * 2
    assert 2**10 < validation_cost(chain(10, keyword)) < 2**13
    assert validation_cost(chain(60, keyword)) == UNBOUNDED


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"properties": {"child": {"$ref": "#/properties/child"}}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://example.com/other"},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}},
        {"$dynamicRef": "#node"},
        {"items": {"$id": "https://example.com/inner"}},
        {"unevaluatedProperties": False},
        {"format": "regex"},
        {"contentMediaType": "application/json"},
        {"newKeyword": 1},
        {"allOf": 1},
        {"properties": []},
        {"items": 1},
    ],
)
def test_a_schema_without_a_known_bound_is_unbounded(schema: Any) -> None:
    assert validation_cost(schema) == UNBOUNDED


def test_deep_nesting_is_unbounded() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(1000):
        schema = {"items": schema}
    assert validation_cost(schema) == UNBOUNDED
