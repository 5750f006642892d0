"""Rows of a report as messages to the service."""

from datetime import datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.api.insights import Grain, Report, columns_of
from postroad.contracts.contract import VERSION
from postroad.contracts.reports import REPORT_RESULTS, ROWS_MAX, SNAPSHOT_DAY, SNAPSHOT_PART, part_of
from postroad.kernel.clock import rfc3339
from postroad.pipeline.messages import body_json, contract_messages
from postroad.pipeline.timestamps import rfc3339_column


def report_messages(
    rows: DataFrame, report: Report[Any], grain: Grain | None, batch: int | str, computed_at: datetime, rows_max: int = ROWS_MAX
) -> DataFrame:
    """A message for each tenant and day, and for minutes each hour; for a snapshot (`grain` None) each tenant.

    `rows` has `tenant` and the columns of the report's row type. Null fields are left out. Raises TypeError for other columns.
    """
    columns = {one.field: one.name for one in columns_of(report.row)}
    if set(rows.columns) != {"tenant", *columns.values()}:
        raise TypeError(f"{report.name} has the columns {rows.columns}, not {['tenant', *columns.values()]}")
    message = ("tenant", "day", "part")
    order = [*(["time"] if grain else []), *(columns[name] for name in report.names)]
    kinds = {field.name: field.dataType for field in rows.schema}
    fields = [_value(name, kinds[name]) for name in columns.values()]
    largest_first = Window.partitionBy(*message).orderBy(F.desc(report.rank), *order)
    bodies = (
        rows.withColumns(_subject_columns(grain))
        .withColumn("place", F.row_number().over(largest_first))
        .groupBy(*message)
        .agg(
            F.collect_list(
                F.when(F.col("place") <= rows_max, F.struct(F.struct(*order).alias("key"), F.struct(*fields).alias("row")))
            ).alias("rows"),
            F.greatest(F.count("*") - rows_max, F.lit(0)).alias("dropped"),
        )
    )
    data = body_json(
        REPORT_RESULTS,
        v=F.lit(VERSION),
        report=F.lit(report.name),
        **{name: F.col(name) for name in (*message, "dropped")},
        batch=F.lit(batch),
        computedAt=F.lit(rfc3339(int(computed_at.timestamp() * 1000))),
        rows=F.transform(F.sort_array("rows"), lambda one: one["row"]),
    )
    names = {name: F.col(name) for name in message}
    return contract_messages(bodies, REPORT_RESULTS, data, report=F.lit(report.name), batch=F.lit(batch), **names)


def _subject_columns(grain: Grain | None) -> dict[str, Column]:
    if grain is None:
        return {"day": F.lit(SNAPSHOT_DAY), "part": F.lit(SNAPSHOT_PART)}
    part = F.lit(part_of(grain, ""))
    if grain is Grain.MINUTE:
        part = F.concat(part, F.date_format("time", "HH"))
    return {"day": F.date_format("time", "yyyyMMdd"), "part": part}


def _value(name: str, kind: spark.DataType) -> Column:
    return rfc3339_column(F.col(name)).alias(name) if isinstance(kind, spark.TimestampType) else F.col(name)
