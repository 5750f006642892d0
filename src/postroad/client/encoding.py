"""What calls are made of: path segments, fields that were given, moments."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from msgspec import UNSET, UnsetType

from postroad.client.calls import OWN_TENANT

Moment = datetime | str  # as a text: RFC 3339
_SECRET = re.compile(r"pr_(live|admin|invite)_[0-9A-Za-z]{20,}$")


def segment(named: Any) -> str:
    """A name or id, or a resource that has one, as one segment of a path.

    Raises ValueError for the text of a key or the code of an invite: secrets do not belong in URLs.
    """
    text = named if isinstance(named, str) else str(getattr(named, "id", None) or named.name)
    if text in ("", ".", "..") or "/" in text:
        raise ValueError(f"not a name or id, which a URL keeps as one segment: {text!r}")
    if _SECRET.match(text):
        raise ValueError("this takes the id, not the secret text itself; the list shows the ids")
    return quote(text, safe="")


def segments(stream: str) -> str:
    """A stream id as the rest of a path. Raises ValueError for an id that URL normalisation would change."""
    if any(part in ("", ".", "..") for part in stream.split("/")):
        raise ValueError(f"a stream id has no empty segments and no segments '.' or '..': {stream!r}")
    return quote(stream, safe="/:@+~=")


def tenant_segment(project: str | None) -> str:
    """The tenant in a path; None: the client's own, which the transport fills in."""
    return OWN_TENANT if project is None else segment(project)


def tenant_prefix(project: str | None) -> str:
    """The tenant in a path that exists without it, too."""
    return "" if project is None else f"/{segment(project)}"


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


def hops_header(hops: int | None) -> dict[str, str]:
    """The header of a write that responds to a delivery."""
    return {} if hops is None else {"X-MQ-Hops": str(hops)}
