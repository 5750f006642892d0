"""Rollups: measures of one minute, which add up in any order and in any batches (decision 0021). In Arrow."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import types as spark

ROLLUPS = spark.StructType(
    [
        spark.StructField("report", spark.StringType()),
        spark.StructField("tenant", spark.StringType()),
        spark.StructField("minute", spark.TimestampType()),
        spark.StructField("name", spark.StringType()),
        spark.StructField("label", spark.StringType()),
        spark.StructField("bucket", spark.IntegerType()),
        spark.StructField("n", spark.LongType()),
        spark.StructField("total", spark.DoubleType()),
        spark.StructField("top", spark.LongType()),
        spark.StructField(
            "last",
            spark.StructType([spark.StructField("at", spark.LongType()), spark.StructField("value", spark.LongType())]),
        ),
    ]
)
KEY = ("report", "tenant", "minute", "name", "label", "bucket")
_TEXTS = ("report", "tenant", "name", "label")  # of the key
TIME = pa.timestamp("us", tz="UTC")

# Rollups in memory: `last` is two columns.
MEASURES = pa.schema(
    [
        ("report", pa.string()),
        ("tenant", pa.string()),
        ("minute", TIME),
        ("name", pa.string()),
        ("label", pa.string()),
        ("bucket", pa.int32()),
        ("n", pa.int64()),
        ("total", pa.float64()),
        ("top", pa.int64()),
        ("last_at", pa.int64()),
        ("last_value", pa.int64()),
    ]
)
NO_MEASURES = MEASURES.empty_table()

Values = Callable[[pa.Table], Any]  # a column computed from events


@dataclass(frozen=True, slots=True)
class Counted:
    """A measure by tenant and minute: the events of a type, each with a value (a column, or computed; 1 if None)."""

    event: str
    value: str | Values | None = None
    condition: Values | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """A measure by tenant, minute and queue (empty if the event has none): samples of a type. `n`, `total`, `top` and `last`."""

    event: str
    value: str | Values
    has_top: bool = True
    has_last: bool = True


def merge(measures: pa.Table) -> pa.Table:
    """`MEASURES`: each key once, its measures added up."""
    has_last = pc.is_valid(measures.column("last_at"))
    plain, full = measures.filter(pc.invert(has_last)), measures.filter(has_last)
    sums = [("n", "sum"), ("total", "sum"), ("top", "max")]
    merged = _by_key(plain, sums)
    parts = [_as_measures(merged, n="n_sum", total="total_sum", top="top_max")]
    if len(full):
        ordered = full.sort_by([("last_at", "ascending"), ("last_value", "ascending")])
        merged = _by_key(ordered, [*sums, ("last_at", "last"), ("last_value", "last")])
        names = {"n": "n_sum", "total": "total_sum", "top": "top_max", "last_at": "last_at_last", "last_value": "last_value_last"}
        parts.append(_as_measures(merged, **names))
    return pa.concat_tables(parts)


def _by_key(measures: pa.Table, aggregations: Sequence[tuple[str, str]]) -> pa.Table:
    """Aggregate by `KEY`, in no order. Its texts are few: grouping a million rollups by numbers takes a third of the time."""
    texts: dict[str, Any] = {}
    columns = dict(zip(measures.column_names, measures.columns, strict=True))
    for name in _TEXTS:
        chunks = columns[name].dictionary_encode().unify_dictionaries().chunks
        if chunks:
            texts[name], columns[name] = chunks[0].dictionary, pa.chunked_array([one.indices for one in chunks])
    found = pa.table(columns).group_by(KEY, use_threads=False).aggregate(aggregations)
    for name, values in texts.items():
        found = found.set_column(found.column_names.index(name), name, values.take(found.column(name).combine_chunks()))
    return found


def _as_measures(table: pa.Table, **names: str) -> pa.Table:
    chosen = {name: names.get(name, name) for name in MEASURES.names}
    return measures_of(len(table), **{name: table.column(own) for name, own in chosen.items() if own in table.column_names})


def measures_of(count: int, **columns: Any) -> pa.Table:
    """`MEASURES` of columns or single values. `n` is 1, `total` is `n`, other columns are null, '' or 0 unless they are given."""
    given: dict[str, Any] = {"name": "", "bucket": 0, "n": 1, **columns}
    given.setdefault("total", given["n"])
    arrays = []
    for field in MEASURES:
        value = given.get(field.name)
        if isinstance(value, pa.Array | pa.ChunkedArray):
            arrays.append(value.cast(field.type, safe=False))
        else:
            arrays.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.table(arrays, schema=MEASURES)


def minutes_of(times: Any) -> Any:
    """The start of the minute of each time."""
    return floored(times, 60)


def floored(times: Any, seconds: int) -> Any:
    micros = _numbers(times.cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64()))
    return pa.array(micros - micros % (seconds * 1_000_000), pa.int64()).cast(TIME)


def millis_of(times: Any) -> Any:
    return pa.array(_numbers(times.cast(pa.int64())) // 1000)


def _numbers(column: Any) -> Any:
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


def of_type(events: pa.Table, *names: str) -> pa.Table:
    return events.filter(pc.is_in(events.column("event"), pa.array(names)))


def counted_measures(events: pa.Table, counted: Mapping[tuple[str, str], Counted]) -> list[pa.Table]:
    """`MEASURES` by report and label."""
    parts = []
    for event, chosen in _by_event(counted).items():
        rows = of_type(events, event)
        if not len(rows):
            continue
        columns = {f"v{number}": _conditional(one, rows) for number, one in enumerate(chosen.values())}
        table = pa.table({"tenant": rows.column("tenant"), "minute": minutes_of(rows.column("time")), **columns})
        grouped = table.group_by(["tenant", "minute"], use_threads=False).aggregate(
            [(name, how) for name in columns for how in ("count", "sum")]
        )
        for number, (report, label) in enumerate(chosen):
            n, total = grouped.column(f"v{number}_count"), grouped.column(f"v{number}_sum")
            key = {"report": report, "label": label, "tenant": grouped.column("tenant"), "minute": grouped.column("minute")}
            part = measures_of(len(grouped), **key, n=n, total=total)
            parts.append(part.filter(pc.greater(part.column("n"), 0)))
    return parts


def sampled_measures(events: pa.Table, sampled: Mapping[tuple[str, str], Sampled]) -> list[pa.Table]:
    """`MEASURES` by report and label, a row for each sample."""
    parts = []
    for event, chosen in _by_event(sampled).items():
        rows = of_type(events, event)
        if not len(rows):
            continue
        key = {
            "tenant": rows.column("tenant"),
            "minute": minutes_of(rows.column("time")),
            "name": pc.fill_null(rows.column("queue"), ""),
        }
        at = millis_of(rows.column("time"))
        for (report, label), one in chosen.items():
            value = _value(one.value, rows)
            last = {"last_at": at, "last_value": value} if one.has_last else {}
            top = {"top": value} if one.has_top else {}
            part = measures_of(len(rows), report=report, label=label, **key, total=value, **top, **last)
            parts.append(part.filter(pc.is_valid(part.column("total"))))
    return parts


def _by_event(measures: Mapping[tuple[str, str], Any]) -> dict[str, dict[tuple[str, str], Any]]:
    found: dict[str, dict[tuple[str, str], Any]] = {}
    for key, one in measures.items():
        found.setdefault(one.event, {})[key] = one
    return found


def _conditional(one: Counted, rows: pa.Table) -> Any:
    value = pa.repeat(pa.scalar(1, pa.int64()), len(rows)) if one.value is None else _value(one.value, rows)
    return value if one.condition is None else pc.if_else(one.condition(rows), value, pa.scalar(None, value.type))


def _value(value: str | Values, rows: pa.Table) -> Any:
    return rows.column(value) if isinstance(value, str) else value(rows)


def stored_rollups(measures: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `ROLLUPS`."""
    at, value = (measures.column(name).combine_chunks() for name in ("last_at", "last_value"))
    kind = schema.field("last").type
    last = pa.StructArray.from_arrays([at, value], fields=list(kind), mask=pc.is_null(at))
    return pa.table([last if name == "last" else measures.column(name) for name in schema.names], schema=schema)


def loaded_rollups(tables: Iterable[pa.Table]) -> pa.Table:
    """`MEASURES` of stored rollups."""
    parts = []
    for table in tables:
        last = table.column("last").combine_chunks()
        columns = {name: table.column(name) for name in table.column_names if name != "last"}
        columns |= {"last_at": pc.struct_field(last, "at"), "last_value": pc.struct_field(last, "value")}
        parts.append(pa.table([columns[name] for name in MEASURES.names], schema=MEASURES))
    return pa.concat_tables([NO_MEASURES, *parts])
