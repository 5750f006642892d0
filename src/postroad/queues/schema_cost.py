"""An upper bound of the work that a JSON Schema can cause. Pure.

The validator visits each keyword at most once per value and path through the schema, so a schema without recursion costs at most
the number of its keywords and operands, references expanded, for each byte of the payload. Keywords that need more than a
comparison count several times. A schema with a keyword that this bound does not cover costs `UNBOUNDED`.
"""

from collections.abc import Callable, Iterable
from typing import Any

UNBOUNDED = 1 << 40
_DEPTH_MAX = 64
_PATTERN_COST = 100  # for a regular expression of the size that `Schemas` compiles in this process

_ANNOTATIONS = frozenset(
    ("$comment", "$defs", "definitions", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")
)
_ROOT_ANNOTATIONS = frozenset(("$schema", "$id", "id"))
_LIMITS = frozenset(
    f"{bound}{what}" for bound in ("min", "max") for what in ("imum", "Length", "Items", "Properties", "Contains")
)
_OPERANDS = _LIMITS | {"type", "enum", "const", "required", "dependentRequired", "exclusiveMinimum", "exclusiveMaximum"}
_WEIGHTS = {"pattern": _PATTERN_COST, "multipleOf": 40, "uniqueItems": 20}
_SUBSCHEMAS = frozenset(
    ("additionalProperties", "additionalItems", "items", "contains", "not", "if", "then", "else", "propertyNames")
)
_SUBSCHEMA_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_SUBSCHEMA_MAPS = frozenset(("properties", "patternProperties", "dependentSchemas", "dependencies"))
_FORMATS = frozenset(
    ("date-time", "date", "time", "duration", "email", "uuid", "ipv4", "ipv6", "hostname", "uri", "uri-reference", "json-pointer")
)
_FORMAT_COST = 10


def validation_cost(schema: Any) -> int:
    """Keyword evaluations per byte of a payload, at most; `UNBOUNDED` if no bound is known."""
    return _Estimate(schema).of(schema, 0)


class _Estimate:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._references: dict[str, int] = {}

    def of(self, schema: Any, depth: int) -> int:
        if isinstance(schema, bool):
            return 1
        if not isinstance(schema, dict) or depth > _DEPTH_MAX:
            return UNBOUNDED
        return _total(lambda item: self._keyword(item[0], item[1], depth), schema.items())

    def _keyword(self, keyword: str, value: Any, depth: int) -> int:
        if keyword in _ANNOTATIONS or keyword.startswith("x-") or (keyword in _ROOT_ANNOTATIONS and depth == 0):
            return 0
        if keyword in _OPERANDS:
            return _nodes(value)
        if keyword in _WEIGHTS:
            return _WEIGHTS[keyword]
        if keyword == "format":
            return _FORMAT_COST if value in _FORMATS else UNBOUNDED
        if keyword == "$ref":
            return self._reference(value, depth)
        if keyword in _SUBSCHEMA_LISTS and isinstance(value, list):
            return 1 + _total(lambda one: self.of(one, depth + 1), value)
        if keyword in _SUBSCHEMAS:
            return 1 + self.of(value, depth + 1)
        if keyword in _SUBSCHEMA_MAPS and isinstance(value, dict):
            each = _PATTERN_COST if keyword == "patternProperties" else 1
            return 1 + _total(lambda one: each + self._dependency(one, depth + 1), value.values())
        return UNBOUNDED

    def _dependency(self, value: Any, depth: int) -> int:
        """A subschema, or the names of `dependencies`."""
        return _nodes(value) if isinstance(value, list) else self.of(value, depth)

    def _reference(self, reference: Any, depth: int) -> int:
        """The cost of the referenced schema. A recursive reference finds the `UNBOUNDED` of the pending one."""
        if not isinstance(reference, str) or not reference.startswith("#/") or "%" in reference or "~" in reference:
            return UNBOUNDED
        if reference not in self._references:
            self._references[reference] = UNBOUNDED
            self._references[reference] = self.of(_target(self._root, reference), depth + 1)
        return self._references[reference]


def _target(root: Any, reference: str) -> Any:
    for part in reference[2:].split("/"):
        root = root.get(part) if isinstance(root, dict) else None
    return root


def _nodes(value: Any) -> int:
    if isinstance(value, dict | list):
        return 1 + _total(_nodes, value.values() if isinstance(value, dict) else value)
    return 1


def _total(cost: Callable[[Any], int], items: Iterable[Any]) -> int:
    return min(UNBOUNDED, sum(map(cost, items)))
