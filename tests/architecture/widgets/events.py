"""Event types of widgets."""

from typing import ClassVar

from postroad.kernel.event import Event


class WidgetPainted(Event, frozen=True, kw_only=True, tag="widget.painted"):
    """A widget was created, or got another colour."""

    resource: ClassVar[tuple[str, str] | None] = ("widget", "widget")

    version: int = 1
    widget: str
    colour: str
    key_id: str = ""
    request_id: str = ""


EVENTS: tuple[type[Event], ...] = (WidgetPainted,)
