"""Events of the catalogue as the silver table has them."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from postroad.kernel.event import Event
from postroad.pipeline.schemas import arrow_schema, events_schema


def events_table(events: Iterable[Event], table: str = "events") -> pa.Table:
    return pa.Table.from_pylist([_silver(event) for event in events], schema=arrow_schema(events_schema(table)))


def events_frame(spark: SparkSession, events: Iterable[Event]) -> DataFrame:
    schema = events_schema()
    rows = [tuple(silver.get(name) for name in schema.names) for silver in map(_silver, events)]
    return spark.createDataFrame(rows, schema)


def _silver(event: Event) -> dict[str, Any]:
    encoded = msgspec.to_builtins(event)
    names = {one.encode_name: one.name for one in msgspec.structs.fields(event)}
    fields = {names.get(name, name): value for name, value in encoded.items()}
    time = datetime.fromisoformat(fields.pop("timestamp"))
    return {**fields, "time": time, "stream": event.stream, "sequence": 1, "line": 0}
