"""What calls are made of: path segments, fields that were given, moments."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

from msgspec import UNSET, UnsetType

Moment = datetime | str  # as a text: RFC 3339
Texts = Sequence[str]
_SECRET = re.compile(r"pr_(live|admin|invite)_[0-9A-Za-z]{20,}$")


def segment(named: Any) -> str:
    """A name or id, or a resource that has one, as one segment of a path.

    Raises ValueError for the text of a key or the code of an invite: secrets do not belong in URLs.
    """
    text = named if isinstance(named, str) else str(getattr(named, "id", None) or named.name)
    if _SECRET.match(text):
        raise ValueError("this takes the id, not the secret text itself; the list shows the ids")
    return quote(text, safe="")


def identifier(text: str) -> str:
    """An id as a segment. Raises ValueError for the text of a key or the code of an invite: those stay out of URLs."""
    if text.startswith("pr_"):
        raise ValueError("this takes the id, not the secret text itself; the list shows the ids")
    return segment(text)


def given(**fields: Any) -> dict[str, Any]:
    """The fields that were given: what is left out takes the server's default, or stays as it is."""
    return {name: value for name, value in fields.items() if value is not None}


def body_of(fields: Mapping[str, Any], nullable: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A request body: fields that are None are left out, and of those that can be null, the ones that are UNSET."""
    chosen = {name: value for name, value in (nullable or {}).items() if value is not UNSET}
    return {**{name: value for name, value in fields.items() if value is not None}, **chosen}


def moment(when: Moment | UnsetType | None) -> str | UnsetType | None:
    """As the API takes it. Raises ValueError for a time without a zone, which could be any of two dozen moments."""
    if not isinstance(when, datetime):
        return when
    if when.tzinfo is None:
        raise ValueError("a time needs its zone: datetime.now(UTC), or .astimezone() for local time")
    return when.isoformat()


def camel(name: str) -> str:
    """The API's name of a field."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
