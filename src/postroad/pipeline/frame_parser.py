"""Parses the lines of frames into Arrow columns of events. Does not use Spark.

Lines are decoded strictly into the event types, which are the only definition of an event, and of the table that keeps it. Nearly
all lines are exactly that, and go from JSON into columns by type. Other lines are inspected again, to find the fault or to keep
the unknown fields.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import count, repeat
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, get_args

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from postroad.kernel.event import REQUIRED, Event, event_name
from postroad.pipeline.schemas import QUARANTINE as QUARANTINE_COLUMNS
from postroad.pipeline.schemas import arrow_schema, event_columns
from postroad.registry import event_types
from postroad.telemetry.frames import FRAME_VERSION

FAULTS = (
    "unknown-frame",
    "not-json",
    "no-event",
    "unknown-event",
    "unknown-version",
    "missing-field",
    "bad-field",
    "wrong-tenant",
    "bad-time",
)
_LINES_AT_ONCE = 10_000
_RAW_CHARS_MAX = 65_536
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)
_LATE, _EARLY = timedelta(hours=1), timedelta(days=1)

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_Time = Annotated[datetime, msgspec.Meta(tz=True)]
_Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_ARROW = {
    "string": pa.string(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "array<string>": pa.list_(pa.string()),
}
QUARANTINE = "quarantine"  # the table of invalid lines


class Message(msgspec.Struct, frozen=True, gc=False):
    """A stored message: `owner` is the tenant in its subject, `frame` the version of its frame."""

    stream: str
    sequence: int
    stored: datetime
    owner: str
    frame: str | None
    data: bytes
    late: datetime  # earlier events are late


MESSAGE = pa.schema(
    [
        ("stream", pa.string()),
        ("sequence", pa.int64()),
        ("stored", pa.timestamp("us", tz="UTC")),
        ("owner", pa.string()),
        ("frame", pa.string()),
        ("data", pa.binary()),
    ]
)


class Line(msgspec.Struct, frozen=True, gc=False):
    """A line and its number in the frame: an event with its unknown fields (`extra`), or a fault."""

    message: Message
    number: int
    event: Any = None
    extra: str | None = None
    fault: str | None = None
    raw: bytes = b""


@dataclass(frozen=True, slots=True)
class _EventSchema:
    """An event type as it is decoded here. `required` and `fields` are names in JSON."""

    table: str
    strict: type[msgspec.Struct]
    newest: int
    required: frozenset[str]
    fields: frozenset[str]


def read(batches: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Convert record batches of MESSAGE into those of `lines_schema(table)`, each with its table and of one event type."""
    for batch in batches:
        lines: list[Line] = []
        for row in batch.to_pylist():
            lines += lines_of(Message(**row, late=row["stored"] - _LATE))
            if len(lines) >= _LINES_AT_ONCE:  # a batch may have millions of lines
                yield from _by_type(lines)
                lines = []
        yield from _by_type(lines)


def _by_type(lines: list[Line]) -> Iterator[tuple[str, Any]]:
    kinds = [line.event.__class__ for line in lines]
    for kind in set(kinds):
        table = QUARANTINE if kind is NoneType else _schemas()[event_name(kind)].table
        yield table, _columns(table, kind, [line for line, its in zip(lines, kinds, strict=True) if its is kind])


def lines_of(message: Message) -> Sequence[Line]:
    """A message that is not a frame is one invalid line."""
    if message.frame != FRAME_VERSION:
        return [Line(message, 0, fault="unknown-frame", raw=message.data)]
    return _plain_lines(message) or [
        _inspected_line(message, number, raw) for number, raw in enumerate(message.data.split(b"\n")) if raw
    ]


def _plain_lines(message: Message) -> list[Line] | None:
    """The lines of a frame if all of them are exactly events, with the frame's tenant and a valid time; else None."""
    try:
        events = _decoder().decode_lines(message.data)
    except _UNREADABLE:
        return None
    times = [event.timestamp for event in events]
    is_plain = (
        len(events) == message.data.count(b"\n") + 1  # no empty lines
        and {event.tenant for event in events} == {message.owner}
        and _EARLIEST <= min(times) <= max(times) <= message.stored + _EARLY
    )
    return list(map(Line, repeat(message), count(), events)) if is_plain else None


def _inspected_line(message: Message, number: int, raw: bytes) -> Line:
    """A line of a frame that `_plain_lines` does not accept."""
    try:
        fields = msgspec.json.decode(raw)
    except _UNREADABLE:
        fields = None
    fault = _fault(fields, message)
    if fault is not None:
        return Line(message, number, fault=fault, raw=raw)
    schema = _schemas()[fields["event"]]
    event: Any = msgspec.convert(_declared(schema, fields), schema.strict)
    others = {name: value for name, value in fields.items() if name not in schema.fields}
    extra = msgspec.json.encode(others).decode() if others else None
    return Line(message, number, event, extra)


def _fault(fields: object, message: Message) -> str | None:
    """The fault of the line; None if it is an event."""
    if not isinstance(fields, dict):
        return "not-json"
    name = fields.get("event")
    if name is None:
        return "no-event"
    schema = _schemas().get(name) if isinstance(name, str) else None
    if schema is None:
        return "unknown-event"
    version = fields.get("version")
    if type(version) is not int or not 1 <= version <= schema.newest:
        return "unknown-version"
    if any(fields.get(name) is None for name in schema.required):
        return "missing-field"
    at = _time(fields["timestamp"])
    try:
        msgspec.convert({**_declared(schema, fields), "timestamp": message.stored}, schema.strict)
    except msgspec.ValidationError:
        return "bad-field"
    if fields["tenant"] != message.owner:
        return "wrong-tenant"
    if at is None or not _EARLIEST <= at <= message.stored + _EARLY:
        return "bad-time"
    return None


def _declared(schema: _EventSchema, fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in schema.fields}


def _time(text: object) -> datetime | None:
    try:
        return msgspec.convert(text, _Time)
    except msgspec.ValidationError:
        return None


@cache
def lines_schema(table: str) -> Any:
    """Columns of a silver table, with `is_late`; those of the quarantine."""
    if table == QUARANTINE:
        return arrow_schema(QUARANTINE_COLUMNS)
    return pa.schema(
        [
            ("event", pa.string()),
            ("version", pa.int32()),
            ("event_id", pa.string()),
            ("tenant", pa.string()),
            ("time", pa.timestamp("us", tz="UTC")),
            ("stream", pa.string()),
            ("sequence", pa.int64()),
            ("line", pa.int32()),
            *((name, _ARROW[kind.simpleString()]) for name, kind in event_columns(table).items()),
            ("extra", pa.string()),
            ("is_late", pa.bool_()),
        ]
    )


def _columns(table: str, kind: type, lines: list[Line]) -> Any:
    """Columns of lines that are all events of one type, or all invalid."""
    messages = [line.message for line in lines]
    found = {
        "stream": [message.stream for message in messages],
        "sequence": [message.sequence for message in messages],
        "line": [line.number for line in lines],
        **(_invalid_columns(lines) if kind is NoneType else _event_columns(kind, lines, messages)),
    }
    schema = lines_schema(table)
    arrays = [pa.array(found[one.name], one.type) if one.name in found else pa.nulls(len(lines), one.type) for one in schema]
    return pa.record_batch(arrays, schema=schema)


def _invalid_columns(lines: list[Line]) -> dict[str, Any]:
    return {
        "time": [line.message.stored for line in lines],
        "fault": [line.fault for line in lines],
        "raw": [line.raw.decode(errors="replace")[:_RAW_CHARS_MAX] for line in lines],
    }


def _event_columns(kind: type[Event], lines: list[Line], messages: list[Message]) -> dict[str, Any]:
    events = [line.event for line in lines]
    own = {name: list(map(attrgetter(name), events)) for name in kind.__struct_fields__}
    times = own.pop("timestamp")
    return {
        "event": [event_name(kind)] * len(lines),
        "time": times,
        "is_late": [at < message.late for at, message in zip(times, messages, strict=True)],
        "extra": [line.extra for line in lines],
        **own,
    }


@cache
def _schemas() -> dict[str, _EventSchema]:
    return {event_name(kind): _schema_of(kind) for kind in event_types()}


@cache
def _decoder() -> msgspec.json.Decoder[Any]:
    kinds = tuple(schema.strict for schema in _schemas().values())
    return msgspec.json.Decoder(type=_any_of(kinds))


def _any_of(kinds: Iterable[type]) -> Any:
    [together, *others] = kinds
    for kind in others:
        together = together | kind  # type: ignore[assignment]
    return together


def _schema_of(kind: type[Event]) -> _EventSchema:
    """A strict variant of the event type: no unknown fields, a version, numbers that fit a column, a valid time."""
    fields = {one.name: one for one in msgspec.structs.fields(kind)}
    newest = int(fields["version"].default)
    strict = {name: _strictly(one.type) for name, one in fields.items()}
    strict |= {"timestamp": _Time, "version": Annotated[int, msgspec.Meta(ge=1, le=newest)]}
    required = frozenset(name for name, one in fields.items() if one.required) | REQUIRED
    in_json = {name: one.encode_name for name, one in fields.items()}
    made = msgspec.defstruct(
        kind.__name__,
        [
            (name, strict[name]) if name in required or name == "version" else (name, strict[name], one.default)
            for name, one in fields.items()
        ],
        tag=event_name(kind),
        tag_field="event",
        forbid_unknown_fields=True,
        rename=in_json,
        frozen=True,
        kw_only=True,
        gc=False,
    )
    return _EventSchema(
        kind.table, made, newest, frozenset(in_json[name] for name in required), frozenset((*in_json.values(), "event"))
    )


def _strictly(wanted: Any) -> Any:
    if wanted is int:
        return _Long
    if isinstance(wanted, UnionType) and int in get_args(wanted):
        return _Long | None
    return wanted
