"""Widgets in the API."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.kernel.errors import NotFound


class WidgetNotFound(NotFound, code="widget-not-found", status=404, title="Widget not found"):
    """The tenant has no widget with this name."""


class Widget(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    colour: str
    polish_count: int = 0


class WidgetSettings(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    colour: Annotated[str, Meta(max_length=20, description="Colour of the widget.")] = "grey"


class WidgetQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: str | None = None


WidgetPage = page_of(Widget, "widgets")
