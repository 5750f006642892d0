"""Events: everything that happens, as typed, versioned JSON objects. Each capability declares its types in its `events.py`.

`event` names the type, `version` its form. A field may be added without a new version; a field that changes its meaning, or is
removed, needs one. Field names are in snake_case.
"""

from typing import ClassVar

import msgspec

REQUIRED = frozenset({"event_id", "timestamp", "tenant"})  # in a stored event; the outbox fills them
PLATFORM = "_platform"  # in place of a tenant id: the installation itself. No tenant id can have this form


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events. `event_id` identifies an event, however often it is delivered. The outbox fills empty fields.

    `resource` is the kind of the resource that the event is about, and the field with its name: keys that are restricted to some
    resources see the events of these only. `is_attached`: a line that belongs to the event before it, and is stored in the same
    frame. Readers of events skip it (`telemetry.frames`). `table` is the table of the
    pipeline's lake that keeps the event.
    """

    stream: ClassVar[str] = "TELEMETRY"
    table: ClassVar[str] = "events"
    resource: ClassVar[tuple[str, str] | None] = None
    is_attached: ClassVar[bool] = False

    event_id: str = ""
    timestamp: str = ""
    tenant: str = ""

    @property
    def is_audited(self) -> bool:
        """True if the tenant's audit mode `off` suppresses the event."""
        return False


_HEAD = b'{"event":"'


def encoded_type(line: bytes) -> bytes:
    """The type of an encoded event, which is its first field, without decoding it; empty for a line that is no event."""
    return line[len(_HEAD) : line.find(b'"', len(_HEAD))] if line.startswith(_HEAD) else b""


def event_name(kind: type[Event]) -> str:
    name = kind.__struct_config__.tag
    if not isinstance(name, str):
        raise TypeError(f"{kind.__name__} has no tag")
    return name
