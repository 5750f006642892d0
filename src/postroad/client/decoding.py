"""Decodes responses of servers that may be newer than this SDK."""

import types
from collections.abc import Sequence
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

import msgspec


def decode(data: bytes | msgspec.Raw, kind: Any) -> Any:
    """The JSON as this type. Values beyond the type's limits are accepted, and unknown members of enums are texts or numbers.

    Limits protect the server from requests; a newer server may have raised them. Raises msgspec.ValidationError.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        return _decode_parts(data, kind)  # only the parts that differ are decoded without limits


def _decode_parts(data: bytes | msgspec.Raw, kind: Any) -> Any:
    """Raises the ValidationError of the type if none of its parts can differ."""
    origin, arguments = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return decode(data, kind.__origin__)
    if origin in (types.UnionType, Union):
        return _decode_first(data, arguments)
    if origin in (list, tuple):
        return origin(decode(one, arguments[0]) for one in msgspec.json.decode(data, type=list[msgspec.Raw]))
    if origin is dict:
        return {name: decode(one, arguments[1]) for name, one in msgspec.json.decode(data, type=dict[str, msgspec.Raw]).items()}
    if origin is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        return msgspec.json.decode(data, type=str | int)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _decode_struct(data, kind)
    return msgspec.json.decode(data, type=kind)


def _decode_struct(data: bytes | msgspec.Raw, kind: type[msgspec.Struct]) -> Any:
    found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    fields = [one for one in msgspec.structs.fields(kind) if one.encode_name in found]
    try:
        return kind(**{one.name: decode(found[one.encode_name], one.type) for one in fields})
    except TypeError as exc:
        raise msgspec.ValidationError(str(exc)) from exc


def _decode_first(data: bytes | msgspec.Raw, kinds: Sequence[Any]) -> Any:
    """The first member of a union that fits."""
    for kind in kinds[:-1]:
        try:
            return decode(data, kind)
        except msgspec.ValidationError:
            continue
    return decode(data, kinds[-1])
