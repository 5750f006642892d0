"""Duplicate keys of JSON objects, which decoders resolve silently and differently.

The objects that the API declares are checked. Values that it passes on as they are, such as payloads, are not looked into.

Decoding keeps one of two equal keys, so an object whose keys and values, encoded again, have as many bytes as the original has no
duplicate. Nor has one with a space after each colon and comma, as Python writes it: its length is known, too. Only objects of
other lengths are parsed a second time (decision 0041).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import inspect

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_parse = json.JSONDecoder(object_pairs_hook=lambda pairs: pairs, parse_int=str, parse_float=str).decode
_ARRAYS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


@dataclass(frozen=True, slots=True)
class JsonShape:
    """Where a type has objects: in itself, in its fields by name (or `values`, for a map), in the `items` of an array."""

    is_object: bool = False
    fields: "Mapping[str, JsonShape]" = field(default_factory=dict)
    values: "JsonShape | None" = None
    items: "JsonShape | None" = None


def shape_of(kind: Any) -> JsonShape | None:
    """The shape of a msgspec type, None if it has no objects."""
    return _shape(inspect.type_info(kind), ())


def _shape(kind: inspect.Type, outer: tuple[type, ...]) -> JsonShape | None:
    if isinstance(kind, inspect.Metadata):
        return _shape(kind.type, outer)
    if isinstance(kind, inspect.UnionType):
        return next((found for one in kind.types if (found := _shape(one, outer)) is not None), None)
    if isinstance(kind, inspect.StructType) and kind.cls not in outer:
        inner = {one.encode_name: _shape(one.type, (*outer, kind.cls)) for one in kind.fields}
        return JsonShape(True, {name: shape for name, shape in inner.items() if shape is not None})
    if isinstance(kind, inspect.DictType):
        return JsonShape(True, values=_shape(kind.value_type, outer))
    if isinstance(kind, _ARRAYS):
        items = _shape(kind.item_type, outer)
        return None if items is None else JsonShape(items=items)
    return None


def duplicate_key(body: bytes | bytearray, shape: JsonShape) -> str | None:
    """A key that an object of this valid JSON has twice; None if there is none."""
    if shape.items is not None:
        return _duplicate_in_items(body, shape.items)
    found = _fields(body)
    if _may_repeat(body, found, len(found), 1):
        repeated = _repeated(body)
        if repeated is not None:
            return repeated
    if shape.values is not None:
        return _first_duplicate(list(found.values()), shape.values)
    for name, inner in shape.fields.items():
        if name in found:
            key = _first_duplicate([found[name]], inner)
            if key is not None:
                return key
    return None


def _duplicate_in_items(body: bytes | bytearray, shape: JsonShape) -> str | None:
    """As `duplicate_key`, for the items of an array: one comparison serves them all."""
    if not shape.is_object or shape.values is not None:
        return _first_duplicate(_items(body), shape)
    objects = _objects(body)
    if _may_repeat(body, objects, sum(map(len, objects)), len(objects)):
        for item in _items(body):
            repeated = _repeated(bytes(item))
            if repeated is not None:
                return repeated
    for name, inner in shape.fields.items():
        nested = [one[name] for one in objects if name in one]
        key = _first_duplicate(nested, inner) if nested else None
        if key is not None:
            return key
    return None


def _first_duplicate(values: list[msgspec.Raw], shape: JsonShape) -> str | None:
    """The first duplicate key of several values of this shape. Nulls and values of the other types of a union have none."""
    objects = [value for value in values if bytes(value)[:1] == (b"{" if shape.is_object else b"[")]
    if shape.is_object and shape.values is None and len(objects) > 1:
        return _duplicate_in_items(_encode(objects), shape)
    return next((key for value in objects if (key := duplicate_key(bytes(value), shape)) is not None), None)


def _may_repeat(body: bytes | bytearray, decoded: object, pairs: int, objects: int) -> bool:
    """False if the JSON has just these pairs in so many objects: without white space, or with a space after each colon and comma
    (those between the objects of an array included or not)."""
    more = len(body) - len(_encode(decoded))
    if more == 0:
        return False
    is_spaced = more in (2 * pairs - 1, 2 * pairs - objects)
    return not is_spaced or body.count(b'": ') < pairs or body.count(b', "') < pairs - objects


def _repeated(body: bytes | bytearray) -> str | None:
    """A key that the object has twice, found by parsing it."""
    try:
        pairs = _parse(body.decode())
    except RecursionError:  # a value that is nested deeply; msgspec has accepted it
        return None
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return str(key)
        seen.add(key)
    return None
