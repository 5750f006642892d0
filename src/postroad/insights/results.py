"""Reads the stored results of a report. Content that cannot be read is left out and reported."""

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from postroad.api.insights import Batch, Report, Row
from postroad.contracts.contract import VERSION
from postroad.contracts.reports import ReportResult
from postroad.insights.rules import Key, row_key
from postroad.kernel.clock import AwareDatetime

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one message. `rows` are in order, each with its key; `unreadable` says why rows were left out."""

    batch: Batch | None = None
    computed_at: datetime | None = None
    rows: list[tuple[Key, Any]] = []
    dropped: int = 0
    unreadable: list[str] = []


_result = msgspec.json.Decoder(ReportResult, strict=False)


def read_results(payload: bytes, report: Report[Any], tenant: str) -> Results:
    """Never raises: clients with access to the engine may have stored anything."""
    try:
        found = _result.decode(payload)
        computed_at = moment_of(found.computed_at)
    except UNREADABLE as problem:
        return Results(unreadable=[str(problem)])
    if (found.v, found.report, found.tenant) != (VERSION, report.name, tenant):
        return Results(unreadable=[f"version {found.v}, report {found.report[:40]!r}, tenant {found.tenant[:40]!r}"])
    kind: Any = report.row
    read, rows, unreadable = _row_reader(kind), [], []
    for raw in found.rows:
        try:
            row = read(raw)
            rows.append((row_key(report, row, None if report.is_snapshot else _millis(row)), row))
        except (*UNREADABLE, OverflowError, ValueError) as problem:
            unreadable.append(str(problem))
    rows.sort(key=lambda one: one[0])
    return Results(
        batch=found.batch,
        computed_at=computed_at,
        rows=rows,
        dropped=found.dropped + len(unreadable),
        unreadable=unreadable,
    )


def _millis(row: Any) -> int:
    return round(datetime.fromisoformat(row.time).timestamp() * 1000)


@cache
def _row_reader(kind: Any) -> Callable[[msgspec.Raw], Row]:
    """Decode a row. Its times get the form that `time_text` gives them; sums of Spark may be stored as 12.0."""
    decode = msgspec.json.Decoder(kind, strict=False).decode
    info: Any = inspect.type_info(kind)
    times = [field.name for field in info.fields if _is_timestamp(field.type)]

    def read(raw: msgspec.Raw) -> Row:
        row = decode(raw)
        texts = {name: time_text(moment_of(text)) for name in times if (text := getattr(row, name)) is not None}
        changed: Row = msgspec.structs.replace(row, **texts)
        return changed

    return read


def _is_timestamp(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(map(_is_timestamp, kind.types))
    if not isinstance(kind, inspect.Metadata):
        return False
    return (kind.extra_json_schema or {}).get("format") == "date-time" or _is_timestamp(kind.type)


def moment_of(text: str) -> datetime:
    """Raises msgspec.ValidationError unless it is a time with a zone."""
    return msgspec.convert(text, AwareDatetime)


def time_text(moment: datetime) -> str:
    """`2026-11-16T12:00:00Z`; with microseconds unless they are 0."""
    text: str = msgspec.to_builtins(moment)
    return text
