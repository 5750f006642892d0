"""Rows of a report as the messages that tell the service of them (decision 0021)."""

from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.kernel.clock import rfc3339
from postroad.pipeline.timestamps import rfc3339_column

ROWS_MAX = 10_000


def report_messages(
    rows: DataFrame, report: str, grain: str, rank: str, batch: int | str, computed_at: datetime, rows_max: int = ROWS_MAX
) -> DataFrame:
    """`subject message_id data`: a message for each tenant and day, and with minutes for each hour.

    With `grain` `all` the rows have no time: they are how it is now. Fields that are null are left out.
    """
    day, part = (F.lit("now"), F.lit("all")) if grain == "all" else (F.date_format("time", "yyyyMMdd"), _part(grain))
    message = ("tenant", "day", "part")
    first = [name for name in ("time", "queue", "phase", "reason") if name in rows.columns]
    fields = [_shown(field) for field in rows.schema if field.name != "tenant"]
    biggest = Window.partitionBy(*message).orderBy(F.desc(rank), *first)
    bodies = (
        rows.withColumns({"day": day, "part": part})
        .withColumn("place", F.row_number().over(biggest))
        .groupBy(*message)
        .agg(
            F.collect_list(
                F.when(F.col("place") <= rows_max, F.struct(F.struct(*first).alias("key"), F.struct(*fields).alias("row")))
            ).alias("rows"),
            F.greatest(F.count("*") - rows_max, F.lit(0)).alias("dropped"),
        )
        .select(
            F.lit(1).alias("v"),
            F.lit(report).alias("report"),
            *message,
            F.lit(batch).alias("batch"),
            F.lit(rfc3339(int(computed_at.timestamp() * 1000))).alias("computedAt"),
            F.transform(F.sort_array("rows"), lambda one: one["row"]).alias("rows"),
            "dropped",
        )
    )
    return bodies.select(
        F.concat_ws(".", F.lit("insight"), "tenant", F.lit(report), "day", "part").alias("subject"),
        F.concat_ws(":", F.lit(report), F.lit(str(batch)), "tenant", "day", "part").alias("message_id"),
        F.to_json(F.struct(*bodies.columns)).alias("data"),
    )


def _part(grain: str) -> Column:
    return F.date_format("time", "'minute-'HH") if grain == "minute" else F.lit(grain)


def _shown(field: spark.StructField) -> Column:
    is_time = isinstance(field.dataType, spark.TimestampType)
    return rfc3339_column(F.col(field.name)).alias(field.name) if is_time else F.col(field.name)
