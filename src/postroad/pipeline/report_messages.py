"""Rows of a report as messages to the service."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from postroad.api.insights import Grain, Report, columns_of
from postroad.contracts.contract import VERSION
from postroad.contracts.reports import REPORT_RESULTS, ROWS_MAX, SNAPSHOT_DAY, SNAPSHOT_PART, part_of
from postroad.kernel.clock import rfc3339
from postroad.pipeline.messages import OutgoingMessage, contract_message

_Row = Mapping[str, Any]


def report_messages(
    rows: pa.Table, report: Report[Any], grain: Grain | None, batch: int | str, computed_at: datetime, rows_max: int = ROWS_MAX
) -> list[OutgoingMessage]:
    """A message for each tenant and day, and for minutes each hour; for a snapshot (`grain` None) each tenant.

    `rows` has `tenant` and the columns of the report's row type. Null fields are left out. Raises TypeError for other columns.
    """
    columns = {one.field: one.name for one in columns_of(report.row)}
    if set(rows.column_names) != {"tenant", *columns.values()}:
        raise TypeError(f"{report.name} has the columns {rows.column_names}, not {['tenant', *columns.values()]}")
    order = [*(["time"] if grain else []), *(columns[name] for name in report.names)]
    messages: dict[tuple[str, str, str], list[_Row]] = {}
    for row in _texts(rows.select(["tenant", *columns.values()])):
        messages.setdefault((row["tenant"], *_day_and_part(row, grain)), []).append(row)
    found = []
    for (tenant, day, part), every in messages.items():
        chosen = _largest(every, report.rank, order, rows_max)
        body = REPORT_RESULTS.body(
            v=VERSION,
            report=report.name,
            tenant=tenant,
            day=day,
            part=part,
            batch=batch,
            computed_at=rfc3339(int(computed_at.timestamp() * 1000)),
            rows=[_encoded(row) for row in chosen],
            dropped=len(every) - len(chosen),
        )
        found.append(contract_message(REPORT_RESULTS, body, report=report.name, batch=batch, tenant=tenant, day=day, part=part))
    return found


def _texts(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows, with times as texts."""
    columns = {}
    for field in rows.schema:
        column = rows.column(field.name)
        if pa.types.is_timestamp(field.type):
            millis = column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64()).to_pylist()
            columns[field.name] = [None if at is None else rfc3339(at) for at in millis]
        else:
            columns[field.name] = column.to_pylist()
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _day_and_part(row: _Row, grain: Grain | None) -> tuple[str, str]:
    if grain is None:
        return SNAPSHOT_DAY, SNAPSHOT_PART
    time = row["time"]
    return time[:10].replace("-", ""), part_of(grain, time[11:13])


def _largest(rows: list[_Row], rank: str, order: list[str], rows_max: int) -> list[_Row]:
    def key(row: _Row) -> tuple[Any, ...]:
        return tuple("" if row[name] is None else row[name] for name in order)

    if len(rows) > rows_max:
        rows = sorted(rows, key=lambda row: (-(row[rank] or 0), key(row)))[:rows_max]
    return sorted(rows, key=key)


def _encoded(row: _Row) -> msgspec.Raw:
    fields = {name: value for name, value in row.items() if value is not None and name != "tenant"}
    return msgspec.Raw(msgspec.json.encode(fields))
