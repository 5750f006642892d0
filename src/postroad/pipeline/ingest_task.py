"""The work of one Spark task in a batch: read messages, parse their frames, write Parquet files, compute rollups.

A task returns the names and statistics of its files, its rollups and hashes of its event ids: nothing else reaches the driver.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.pipeline import frame_parser, session_states
from postroad.pipeline.compressed_tables import compress, decompress
from postroad.pipeline.delta_table import DataFile, batch_prefix, write_file
from postroad.pipeline.measures import measures
from postroad.pipeline.rollups import MEASURES
from postroad.pipeline.storage import Storage, as_schema
from postroad.pipeline.tables import ROW_ORDER, table_formats
from postroad.telemetry.frames import STREAMS
from spark_jetstream.options import read_options
from spark_jetstream.plan import SequenceRange
from spark_jetstream.range_reader import read_range
from spark_jetstream.record_batches import ARROW_SCHEMA, record_batch

AUDIT_STREAM = "AUDIT"

Place = tuple[str, int, int]  # of an event: stream, sequence, line


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Messages of a stream that was created at this time."""

    stream: str
    created: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What all tasks of a batch need. `options` are those of the data source."""

    storage: Storage
    options: Mapping[str, str]
    batch: int


class ReplayRequest(NamedTuple):
    """A `replay.requested`: its place in `COMMANDS`, and the selection as JSON text."""

    tenant: str
    sequence: int
    line: int
    replay: str
    selection: str


@dataclass(frozen=True, slots=True)
class EventsFile:
    """A file of a silver table, the sorted hashes of its event ids, and what it adds to the other tables."""

    table: str
    file: DataFile
    ids: Any
    measures: Any
    states: Any

    def __reduce__(self) -> tuple[Any, ...]:
        """Compressed: uncompressed rollups of small batches have a tenth of the size of their frames."""
        return _received_events, (self.table, self.file, self.ids, compress(self.measures), compress(self.states))


def _received_events(table: str, file: DataFile, ids: Any, measured: bytes, states: bytes) -> EventsFile:
    known = decompress(states, session_states.NO_STATES.schema)
    return EventsFile(table, file, ids, decompress(measured, MEASURES), known)


@dataclass(slots=True)
class TaskResult:
    files: dict[str, list[DataFile]] = field(default_factory=dict)  # of tables other than silver ones
    events: list[EventsFile] = field(default_factory=list)
    messages: int = 0
    late: int = 0
    active: int = 0  # events other than samples
    faults: Counter[str] = field(default_factory=Counter)
    replays: list[ReplayRequest] = field(default_factory=list)


def ingest_ranges(ranges: Collection[MessageRange], context: TaskContext) -> TaskResult:
    """Read messages from the engine and store them, and their events."""
    batches = [batch for one in ranges for batch in _read(one, context)]
    messages = pa.Table.from_batches(batches, ARROW_SCHEMA)
    result = TaskResult(messages=len(messages))
    stored = messages.append_column("batch_id", pa.repeat(pa.scalar(context.batch, pa.int64()), len(messages)))
    _write_days(context, "bronze", stored, result)
    _refine(messages, context, result)
    return result


def ingest_stored(path: str, context: TaskContext) -> TaskResult:
    """Read messages of a file of `bronze`, and store their events."""
    messages = context.storage.read_table(f"bronze/{path}", ARROW_SCHEMA)
    result = TaskResult(messages=len(messages))
    _refine(messages, context, result)
    return result


def _read(one: MessageRange, context: TaskContext) -> Iterator[Any]:
    options = read_options({**context.options, "stream": one.stream, "failOnDataLoss": "false"}, is_streaming=False)
    for columns in read_range(options, SequenceRange(one.first, one.last), one.created):
        yield record_batch(one.stream, columns)


def _refine(messages: Any, context: TaskContext, result: TaskResult) -> None:
    _write_days(context, "audit", audit_entries(messages), result)
    for name, lines in parsed_lines(messages).items():
        if name == frame_parser.QUARANTINE:
            result.faults.update(lines.column("fault").to_pylist())
            _write_days(context, name, lines, result)
            continue
        result.late += pc.sum(lines.column("is_late")).as_py() or 0
        result.active += pc.sum(pc.invert(pc.ends_with(lines.column("event"), ".sampled"))).as_py() or 0
        if name == "command_events":
            result.replays += replay_requests(lines)
        schema = table_formats()[name].schema
        for day, rows in by_day(lines, "time"):
            result.events.append(write_events(context, name, day, as_schema(rows, schema)))


def replay_requests(events: Any) -> list[ReplayRequest]:
    rows = events.filter(pc.equal(events.column("event"), "replay.requested"))
    names = ("tenant", "sequence", "line", "replay_id", "selection")
    return [ReplayRequest(*values) for values in zip(*(rows.column(name).to_pylist() for name in names), strict=True)]


def write_events(context: TaskContext, name: str, day: str, events: Any) -> EventsFile:
    ordered = events.sort_by([(column, "ascending") for column in ROW_ORDER.get(name, ("event", "tenant"))])
    file = write_file(context.storage, table_formats()[name], day, ordered, batch_prefix(context.batch))
    states = session_states.states(ordered) if name == "events" else session_states.NO_STATES
    return EventsFile(name, file, hashed_ids(ordered.column("event_id")), measures(ordered, name), states)


def _write_days(context: TaskContext, name: str, rows: Any, result: TaskResult) -> None:
    table = table_formats()[name]
    for day, some in by_day(rows, table.time):
        file = write_file(context.storage, table, day, as_schema(some, table.schema), batch_prefix(context.batch))
        result.files.setdefault(name, []).append(file)


def by_day(rows: Any, time: str) -> Iterator[tuple[str, Any]]:
    """The rows of each day (UTC)."""
    if not len(rows):
        return
    days = rows.column(time).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    days = pc.divide(days, 86_400_000_000)
    found = pc.unique(days).to_pylist()
    for number in found:
        name = str(np.datetime64(int(number), "D"))
        yield name, rows if len(found) == 1 else rows.filter(pc.equal(days, number))


def parsed_lines(messages: Any) -> dict[str, Any]:
    """All lines of all frames by table (`frame_parser.lines_schema(table)`): events, and invalid lines with their fault."""
    frames = messages.filter(pc.is_in(messages.column("stream"), pa.array(list(STREAMS))))
    owners = [subject.rsplit(".", 1)[-1] for subject in frames.column("subject").to_pylist()]
    versions = [dict(headers or ()).get("Postroad-Frame") for headers in frames.column("headers").to_pylist()]
    columns = [
        frames.column("stream"),
        frames.column("sequence"),
        frames.column("timestamp"),
        pa.array(owners, pa.string()),
        pa.array(versions, pa.string()),
        frames.column("data"),
    ]
    given = pa.table(columns, schema=frame_parser.MESSAGE).to_batches(max_chunksize=100)
    found: dict[str, list[Any]] = {}
    for name, batch in frame_parser.read(given):
        found.setdefault(name, []).append(batch)
    return {name: pa.Table.from_batches(batches, frame_parser.lines_schema(name)) for name, batches in found.items()}


def audit_entries(messages: Any) -> Any:
    """Entries of the audit log: one per message."""
    rows = messages.filter(pc.equal(messages.column("stream"), AUDIT_STREAM))
    texts = [data.decode(errors="replace") for data in rows.column("data").to_pylist()]
    return pa.table(
        {
            "tenant": [subject.rsplit(".", 1)[-1] for subject in rows.column("subject").to_pylist()],
            "time": rows.column("timestamp"),
            "sequence": rows.column("sequence"),
            "action": [_action(text) for text in texts],
            "entry": texts,
        },
        schema=table_formats()["audit"].schema,
    )


def _action(text: str) -> str | None:
    try:
        entry = json.loads(text)
    except ValueError:
        return None
    action = entry.get("action") if isinstance(entry, dict) else None
    return action if isinstance(action, str) else None


def hashed_ids(ids: Any) -> Any:
    """Sorted 64-bit hashes."""
    digest = hashlib.blake2b
    found = b"".join(digest(one.encode(), digest_size=8).digest() for one in ids.to_pylist())
    return np.sort(np.frombuffer(found, dtype="<u8"))


# Duplicates: these tasks run only if two hashes are equal.


def find_events(path: str, context: TaskContext, name: str, hashes: Any) -> list[tuple[str, Place, str]]:
    """Id, place and file of the events of a file with one of these hashes."""
    schema = table_formats()[name].schema
    rows = context.storage.read_table(f"{name}/{path}", schema, ["event_id", "stream", "sequence", "line"]).to_pylist()
    wanted = set(hashes.tolist())
    found = []
    for row in rows:
        number = int.from_bytes(hashlib.blake2b(row["event_id"].encode(), digest_size=8).digest(), "little")
        if number in wanted:
            found.append((row["event_id"], (row["stream"], row["sequence"], row["line"]), path))
    return found


def rewrite_without(file: DataFile, context: TaskContext, name: str, places: Collection[Place]) -> EventsFile | None:
    """Write the file again without the events at these places; None if no event is left. The old file is removed."""
    schema = table_formats()[name].schema
    events = context.storage.read_table(f"{name}/{file.path}", schema)
    dropped = set(places)
    each = zip(*(events.column(name).to_pylist() for name in ("stream", "sequence", "line")), strict=True)
    left = events.filter(pa.array([place not in dropped for place in each], pa.bool_()))
    written = write_events(context, name, file.day, left) if len(left) else None
    context.storage.remove_file(f"{name}/{file.path}")
    return written
