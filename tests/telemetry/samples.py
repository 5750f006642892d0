"""Events to send."""

import types
import typing

import msgspec

from postroad.kernel.event import Event, event_name
from postroad.kernel.ids import new_id
from postroad.queues.events import QueueDeleted

_VALUES: dict[object, object] = {str: "text", int: 7, bool: True, float: 1.5, list[str]: ["text"]}


def sample(of: type[Event]) -> Event:
    """An event of this type with every field filled in, those with defaults too."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(of):
        kind = field.type
        if isinstance(kind, types.UnionType):
            kind = next(part for part in typing.get_args(kind) if part is not type(None))
        values[field.encode_name] = _VALUES[kind]
    return msgspec.convert({**values, "version": _version(of), "event": event_name(of)}, of)


def _version(of: type[Event]) -> int:
    found = next(field.default for field in msgspec.structs.fields(of) if field.name == "version")
    assert isinstance(found, int)
    return found


def event(tenant: str, queue: str = "q", *, padding: int = 0) -> QueueDeleted:
    """A small event for `TELEMETRY`, identified by its queue."""
    return QueueDeleted(
        event_id=new_id(), timestamp="2026-01-01T00:00:00.000Z", tenant=tenant, queue=queue, key_id="k", request_id="x" * padding
    )
