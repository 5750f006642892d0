"""Types of JSON bodies, after a value was refused: the values that a field allows, its description, and numbers such as `5.0`.

Only errors need them: decoding by type is fast, looking into types is not.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_NAMES = re.compile(r"\.([^.\[\]]+)|(\[[^\]]*\])")
_MEMBERS_MAX = 50
_ARRAYS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


def allowed_values(kind: Any, path: str) -> list[str]:
    """The values of the enumeration at a path such as `$.messages[...].action`; none if there is no enumeration."""
    members = [member for one in _at(kind, path) for alternative in _alternatives(one) for member in _members(alternative)]
    return members[:_MEMBERS_MAX]


def description(kind: Any, path: str) -> str:
    """What the type at a path says about itself, the innermost text; empty if it has none."""
    texts = [text for one in _at(kind, path) for text in _descriptions(one)]
    return texts[-1] if texts else ""


def _at(kind: Any, path: str) -> list[inspect.Type]:
    """The types that a path such as `$.messages[...].action` can have."""
    found = [inspect.type_info(kind)]
    for name, _ in _NAMES.findall(path):
        found = [inner for one in found for inner in _inner(one, name)]
    return found


def _descriptions(kind: inspect.Type) -> Iterator[str]:
    """From the outermost to the innermost."""
    if isinstance(kind, inspect.Metadata):
        text = (kind.extra_json_schema or {}).get("description")
        if text:
            yield text
        yield from _descriptions(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _descriptions(one)


def whole_numbers(body: bytes | bytearray, kind: Any) -> bytes:
    """The JSON with numbers such as `5.0` as integers where the type has integers. Everything else stays as it is."""
    return bytes(_whole(msgspec.Raw(bytes(body)), inspect.type_info(kind)))


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield from _alternatives(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from _alternatives(one)
    else:
        yield kind


def _inner(kind: inspect.Type, name: str) -> Iterator[inspect.Type]:
    """The types of the field, or of the items if there is no name."""
    for one in _alternatives(kind):
        if isinstance(one, inspect.StructType) and name:
            yield from (field.type for field in one.fields if field.encode_name == name)
        elif isinstance(one, inspect.DictType):
            yield one.value_type
        elif isinstance(one, _ARRAYS) and not name:
            yield one.item_type


def _members(kind: inspect.Type) -> list[str]:
    if isinstance(kind, inspect.EnumType):
        return [str(member.value) for member in kind.cls]
    return [str(value) for value in kind.values] if isinstance(kind, inspect.LiteralType) else []


def _whole(value: msgspec.Raw, kind: inspect.Type) -> msgspec.Raw:
    start = bytes(value).lstrip()[:1]
    kinds = list(_alternatives(kind))
    if start == b"{" and any(isinstance(one, inspect.StructType | inspect.DictType) for one in kinds):
        fields = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        return _encoded({name: _first_whole(one, _inner(kind, name)) for name, one in fields.items()})
    if start == b"[" and any(isinstance(one, _ARRAYS) for one in kinds):
        items = msgspec.json.decode(value, type=list[msgspec.Raw])
        return _encoded([_first_whole(one, _inner(kind, "")) for one in items])
    if any(isinstance(one, inspect.IntType) for one in kinds) and not any(isinstance(one, inspect.FloatType) for one in kinds):
        number = msgspec.json.decode(value)
        if isinstance(number, float) and number.is_integer() and abs(number) < 2**53:
            return msgspec.Raw(str(int(number)).encode())
    return value


def _first_whole(value: msgspec.Raw, kinds: Iterator[inspect.Type]) -> msgspec.Raw:
    return next((changed for kind in kinds if (changed := _whole(value, kind)) is not value), value)


def _encoded(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
