"""Declaration and parsing of settings: sections of typed fields, each with a default, a description and a check."""

import types
import typing
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path


class Secret(str):
    """Text that is masked when printed or logged; `.reveal()` returns it."""

    def __new__(cls, text: str = "") -> "Secret":
        """Also copies a secret: `str()` alone would copy the mask."""
        return super().__new__(cls, text.reveal() if isinstance(text, Secret) else text)

    def __repr__(self) -> str:
        return "'***'"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return "***"

    def reveal(self) -> str:
        return str.__str__(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Settings of one package. Field names are unique over all sections: `POSTROAD_<FIELD>` is the variable."""


def setting(
    default: typing.Any,
    description: str,
    check: Callable[[typing.Any], bool] | None = None,
    *,
    old_name: str | None = None,
    plain_name: str | None = None,
) -> typing.Any:
    """Declare a field. `old_name` is still read, with a warning; `plain_name` is a variable without the prefix, for
    environments that have it already."""
    metadata = {"description": description, "check": check, "old_name": old_name, "plain_name": plain_name}
    return field(default=default, metadata=metadata)


def positive(value: int | float) -> bool:
    return value > 0


def parse(section: type[Section], one: "Field[typing.Any]", given: object) -> object:
    """Convert and check the value of one field. Raises ValueError with a message for the operator."""
    wanted = typing.get_type_hints(section)[one.name]
    if isinstance(wanted, types.UnionType):
        if given == "":
            return None
        wanted = next(part for part in wanted.__args__ if part is not type(None))
    value = _convert(wanted, given)
    check = one.metadata["check"]
    if check is not None and not check(value.reveal() if isinstance(value, Secret) else value):
        shown = "***" if isinstance(value, Secret) else repr(value)
        raise ValueError(f"{shown} is not allowed. {one.metadata['description']}")
    return value


def _convert(wanted: type, given: object) -> object:
    if wanted is bool:
        if str(given).lower() in ("1", "true", "yes", "on"):
            return True
        if str(given).lower() in ("0", "false", "no", "off", ""):
            return False
        raise ValueError(f"{given!r} is neither true nor false")
    shown = "***" if wanted is Secret else repr(given)
    if not isinstance(given, str):  # from the file or the command line, where values have a type
        accepted = (int, float) if wanted is float else (str, Path) if wanted is Path else wanted
        if isinstance(given, bool) or not isinstance(given, accepted):
            raise ValueError(f"{shown} is not {_TYPE_NAMES.get(wanted, 'a text')}")
    try:
        return wanted(given)
    except (TypeError, ValueError):
        raise ValueError(f"{shown} is not {_TYPE_NAMES.get(wanted, 'a text')}") from None


_TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number"}


def declared(section: type[Section]) -> "tuple[Field[typing.Any], ...]":
    return fields(section)
