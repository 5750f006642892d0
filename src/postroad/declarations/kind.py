"""What a kind of resources is: how it is read from the server, compared, created, changed and deleted."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.client import Postroad

Normalise = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Existing:
    """A resource of the server. `created` distinguishes it from a later one of the same name."""

    name: str
    definition: Any
    created: str


@dataclass(frozen=True, slots=True)
class Created:
    """`secret`: a text that the server shows only now."""

    created: str
    secret: str | None = None


def _same(definition: Any) -> Any:
    return definition


def _never(_before: Any, _after: Any) -> bool:
    return False


def unchanged(_client: Postroad) -> Normalise:
    return _same


@dataclass(frozen=True, slots=True)
class Kind:
    """`name` is the table of the file. `normaliser` makes definitions comparable: what the server fills in is removed.

    `is_replaced`: the change cannot be made in place, so the resource is deleted and created.
    """

    name: str
    definition: Any
    read: Callable[[Postroad], Iterable[Existing]]
    create: Callable[[Postroad, str, Any], Created]
    change: Callable[[Postroad, str, Any, Any], None]
    delete: Callable[[Postroad, str], None]
    is_replaced: Callable[[Any, Any], bool] = _never
    normaliser: Callable[[Postroad], Normalise] = unchanged


def converted(value: Any, definition: Any) -> Any:
    """A struct of the API as a definition: the fields that both have."""
    names = {one.name: one.encode_name for one in msgspec.structs.fields(definition)}
    found = {encoded: getattr(value, name) for name, encoded in names.items() if hasattr(value, name)}
    return msgspec.convert(msgspec.to_builtins(found), definition)


def fields_of(definition: Any) -> dict[str, Any]:
    """The fields that are set, as arguments of the SDK."""
    return {name: _plain(value) for name, value in msgspec.structs.asdict(definition).items() if value is not UNSET}


def _plain(value: Any) -> Any:
    """The SDK takes times, lists and nested values as plain values."""
    return value if isinstance(value, datetime) else msgspec.to_builtins(value)


def created_at(result: Any) -> str:
    return str(getattr(result, "created_at", None) or "")


def put_kind(
    name: str,
    definition: Any,
    read: Callable[[Postroad], Iterable[Existing]],
    put: Callable[[Postroad], Callable[..., Any]],
    delete: Callable[[Postroad], Callable[..., Any]],
    *,
    parts: int = 1,
    normaliser: Callable[[Postroad], Normalise] = unchanged,
) -> Kind:
    """A kind with one call that creates or replaces. `parts` of the name are the arguments of its calls."""

    def arguments(one: str) -> list[str]:
        return one.split("/", parts - 1)

    def create(client: Postroad, one: str, wanted: Any) -> Created:
        return Created(created_at(put(client)(*arguments(one), **fields_of(wanted))))

    def change(client: Postroad, one: str, _before: Any, wanted: Any) -> None:
        put(client)(*arguments(one), **fields_of(wanted))

    def remove(client: Postroad, one: str) -> None:
        delete(client)(*arguments(one))

    return Kind(name, definition, read, create, change, remove, normaliser=normaliser)
