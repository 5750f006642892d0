"""A validator for the subset of JSON Schema that the OpenAPI document uses; unknown keywords fail the test."""

import re
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_DATE_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
_NOTES = {"title", "description", "default", "examples"}


def resolve(document: Any, reference: str) -> Any:
    """The schema of a `$ref`. Raises KeyError."""
    assert reference.startswith("#/"), reference
    found = document
    for word in reference[2:].split("/"):
        found = found[word]
    return found


def faults(document: Any, schema: Any, value: Any, path: str = "$") -> list[str]:
    """Violations of the schema."""
    if "type" in schema and (wrong := _word_faults(document, schema, "type", schema["type"], value, path)):
        return wrong
    return [fault for word, meant in schema.items() for fault in _word_faults(document, schema, word, meant, value, path)]


def _word_faults(document: Any, schema: Any, word: str, meant: Any, value: Any, path: str) -> list[str]:
    match word:
        case "$ref":
            return faults(document, resolve(document, meant), value, path)
        case "type":
            is_right = isinstance(value, _TYPES[meant]) and not (isinstance(value, bool) and meant in ("integer", "number"))
            return [] if is_right else [f"{path} is not of type {meant}: {value!r}"]
        case "anyOf":
            ways = [faults(document, one, value, path) for one in meant]
            return [] if [] in ways else [f"{path} is none of {len(ways)}: {value!r}"]
        case "enum":
            return [] if value in meant else [f"{path} is not one of {meant}"]
        case "required":
            return [f"{path}.{name} is missing" for name in meant if isinstance(value, dict) and name not in value]
        case "properties":
            given = value.items() if isinstance(value, dict) else ()
            return [
                fault for name, one in given if name in meant for fault in faults(document, meant[name], one, f"{path}.{name}")
            ]
        case "additionalProperties":
            others = (
                {} if not isinstance(value, dict) else {k: v for k, v in value.items() if k not in schema.get("properties", {})}
            )
            if meant is False:
                return [f"{path}.{name} is not known" for name in others]
            return [fault for name, one in others.items() for fault in faults(document, meant, one, f"{path}.{name}")]
        case "items":
            return [fault for index, one in enumerate(value) for fault in faults(document, meant, one, f"{path}[{index}]")]
        case "propertyNames":
            return [fault for name in value for fault in faults(document, meant, name, f"{path} (a name)")]
        case "pattern":
            return [] if re.search(meant, value) else [f"{path} does not match {meant}"]
        case "minimum":
            return [] if value >= meant else [f"{path} is under {meant}"]
        case "maximum":
            return [] if value <= meant else [f"{path} is over {meant}"]
        case "minLength" | "minItems":
            return [] if len(value) >= meant else [f"{path} is shorter than {meant}"]
        case "maxLength" | "maxItems" | "maxProperties":
            return [] if len(value) <= meant else [f"{path} is longer than {meant}"]
        case "format":
            return [] if meant == "date-time" and re.fullmatch(_DATE_TIME, value) else [f"{path} is not a {meant}"]
    assert word in _NOTES, f"these tests do not know the word {word!r}"
    return []
