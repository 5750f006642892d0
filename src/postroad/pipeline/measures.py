"""Computes rollups from events, for all reports.

All counted and all sampled measures are one query each, over the columns that they need. A single query for everything reads the
events once and is twice as slow: Spark's generated code becomes too long for the JVM to compile.
"""

from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline.reports import spark_reports
from postroad.pipeline.rollups import counted_measures, sampled_measures


def measures(events: DataFrame) -> DataFrame:
    """`ROLLUPS`: the contribution of these events, each key once."""
    minutes = events.withColumn("minute", F.expr("unix_seconds(time) div 60"))
    reports = spark_reports()
    counted = {(one.report.identifier, label): measure for one in reports for label, measure in one.counted.items()}
    sampled = {(one.report.identifier, label): measure for one in reports for label, measure in one.sampled.items()}
    own = [one.measures(minutes) for one in reports if one.measures is not None]
    return reduce(DataFrame.union, [counted_measures(minutes, counted), sampled_measures(minutes, sampled), *own])
