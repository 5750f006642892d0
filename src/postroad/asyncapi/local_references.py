"""References within a JSON Schema, moved with it into another document. Pure."""

from typing import Any

_DATA = frozenset({"const", "enum", "default", "examples", "example"})  # whose values are no schemas
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})  # of schemas by name


class NotMovable(Exception):
    """The schema has a reference that would mean something else in another document."""


def moved(schema: Any, pointer: str) -> Any:
    """The schema with its references as they are when it is at this JSON pointer of a document. Raises NotMovable."""
    if isinstance(schema, list):
        return [moved(one, pointer) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$id" in schema or "$anchor" in schema or "$dynamicRef" in schema:
        raise NotMovable("it has names of its own for its parts")
    return {name: _moved_member(name, value, pointer) for name, value in schema.items()}


def _moved_member(name: str, value: Any, pointer: str) -> Any:
    if name == "$ref":
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            raise NotMovable(f"the reference {str(value)[:100]!r}")
        return pointer + value[1:]
    if name in _DATA:
        _check_data(value)
        return value
    if name in _MAPS and isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            raise NotMovable("a name `$ref` that is no reference")
        return {key: moved(one, pointer) for key, one in value.items()}
    return moved(value, pointer)


def _check_data(value: Any) -> None:
    """Parsers would resolve a `$ref` in data, too."""
    if isinstance(value, dict):
        if "$ref" in value:
            raise NotMovable("a `$ref` in a value")
        for one in value.values():
            _check_data(one)
    elif isinstance(value, list):
        for one in value:
            _check_data(one)
