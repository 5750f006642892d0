"""Columns of the lake's tables. Those of silver tables follow from the event types: a new field of an event is a new column."""

import types
from functools import cache
from typing import Any, get_args, get_origin

import msgspec
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from postroad.kernel.event import Event, event_name
from postroad.registry import event_types, event_types_of

_KINDS: dict[type, spark.DataType] = {
    str: spark.StringType(),
    int: spark.LongType(),
    float: spark.DoubleType(),
    bool: spark.BooleanType(),
}

# Common fields of all events, and their position in the streams. The field `timestamp` becomes the column `time`.
HEAD = ("event", "version", "event_id", "tenant", "time", "stream", "sequence", "line")

MESSAGES = spark.StructType(
    [
        spark.StructField("stream", spark.StringType()),
        spark.StructField("subject", spark.StringType()),
        spark.StructField("sequence", spark.LongType()),
        spark.StructField("timestamp", spark.TimestampType()),
        spark.StructField("headers", spark.MapType(spark.StringType(), spark.StringType())),
        spark.StructField("data", spark.BinaryType()),
    ]
)

BRONZE = spark.StructType([*MESSAGES.fields, spark.StructField("batch_id", spark.LongType())])

QUARANTINE = spark.StructType(
    [
        spark.StructField("fault", spark.StringType()),
        spark.StructField("raw", spark.StringType()),
        spark.StructField("stream", spark.StringType()),
        spark.StructField("sequence", spark.LongType()),
        spark.StructField("line", spark.IntegerType()),
        spark.StructField("time", spark.TimestampType()),
    ]
)

AUDIT = spark.StructType(
    [
        spark.StructField("tenant", spark.StringType()),
        spark.StructField("time", spark.TimestampType()),
        spark.StructField("sequence", spark.LongType()),
        spark.StructField("action", spark.StringType()),
        spark.StructField("entry", spark.StringType()),
    ]
)


def arrow_schema(schema: spark.StructType) -> Any:
    """The same columns in Arrow."""
    return to_arrow_schema(schema, timezone="UTC")


def spark_type(wanted: object) -> spark.DataType:
    """Spark type of an event's field: a text, a number, a boolean or a list of texts, possibly optional. Raises TypeError for
    others."""
    if isinstance(wanted, types.UnionType) or get_origin(wanted) is types.UnionType:
        [wanted] = [one for one in get_args(wanted) if one is not type(None)]
    if wanted in (list[str], tuple[str, ...]):
        return spark.ArrayType(spark.StringType())
    if isinstance(wanted, type) and wanted in _KINDS:
        return _KINDS[wanted]
    raise TypeError(f"no column type for a field of the type {wanted!r}")


def _fields_of(kind: type[Event]) -> dict[str, msgspec.structs.FieldInfo]:
    return {one.name: one for one in msgspec.structs.fields(kind)}


@cache
def silver_tables() -> tuple[str, ...]:
    """Tables that have each event once: `events`, and those of other event types."""
    return tuple(dict.fromkeys(("events", *(kind.table for kind in event_types()))))


@cache
def event_columns(table: str = "events") -> dict[str, spark.DataType]:
    """Columns of the fields of the table's event types, in the order of the types."""
    found: dict[str, spark.DataType] = {}
    for kind in event_types_of(table):
        for name, field in _fields_of(kind).items():
            if name in HEAD or name == "timestamp":
                continue
            wanted = spark_type(field.type)
            if found.setdefault(name, wanted) != wanted:
                raise TypeError(f"{event_name(kind)}: {name} is {wanted}, in other events {found[name]}")
    return found


@cache
def events_schema(table: str = "events") -> spark.StructType:
    """Columns of a silver table."""
    return spark.StructType(
        [
            spark.StructField("event", spark.StringType()),
            spark.StructField("version", spark.IntegerType()),
            spark.StructField("event_id", spark.StringType()),
            spark.StructField("tenant", spark.StringType()),
            spark.StructField("time", spark.TimestampType()),
            spark.StructField("stream", spark.StringType()),
            spark.StructField("sequence", spark.LongType()),
            spark.StructField("line", spark.IntegerType()),
            *(spark.StructField(name, kind) for name, kind in event_columns(table).items()),
            spark.StructField("extra", spark.StringType()),
        ]
    )
