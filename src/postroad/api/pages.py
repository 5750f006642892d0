"""Pages of lists."""

from typing import Annotated, Any, Generic, TypeVar, cast

import msgspec
from msgspec import Meta

T = TypeVar("T")

Limit = Annotated[int, Meta(ge=1, le=1000, description="Items per page.")]


class Page(msgspec.Struct, Generic[T], frozen=True, rename="camel", kw_only=True):
    """One page of a list. `next_cursor` requests the next page; None after the last."""

    items: list[T]
    next_cursor: str | None = None


def page_of(item: type[T], key: str) -> type[Page[T]]:
    """The page type of a list whose items are under `key` in JSON: `page_of(Queue, "queues")`."""
    fields: list[Any] = [
        ("items", list[item], msgspec.field(name=key)),  # type: ignore[valid-type]
        ("next_cursor", str | None, msgspec.field(name="nextCursor")),
    ]
    name = f"{item.__name__}Page"
    made: Any = msgspec.defstruct(name, fields, bases=(Page,), frozen=True, kw_only=True, module=item.__module__)
    return cast(type[Page[T]], made)
