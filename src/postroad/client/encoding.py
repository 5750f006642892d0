"""What calls are made of: path segments, fields that were given, moments."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

Moment = datetime | str  # as a text: RFC 3339
Texts = Sequence[str]


def segment(name: str) -> str:
    """The name as one segment of a path, whatever is in it."""
    return quote(name, safe="")


def identifier(text: str) -> str:
    """An id as a segment. Raises ValueError for the text of a key or the code of an invite: those stay out of URLs."""
    if text.startswith("pr_"):
        raise ValueError("this takes the id, not the secret text itself; the list shows the ids")
    return segment(text)


def given(**fields: Any) -> dict[str, Any]:
    """The fields that were given: what is left out takes the server's default, or stays as it is."""
    return {name: value for name, value in fields.items() if value is not None}


def moment(when: Moment | None) -> str | None:
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
