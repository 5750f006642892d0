"""A notebook as a script: questions about commands, answered with Spark from the tables of the lake.

    postroad up                                # and some commands, for example examples/commands
    python examples/spark/commands.py var/lake

Run it cell by cell in an editor that knows `# %%`, or as a whole. It reads the files that the Delta log lists, so that neither a
package for Spark nor the internet is needed.
"""

# %% Spark, and a table as a DataFrame
import sys

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

lake = sys.argv[1] if len(sys.argv) > 1 else "var/lake"
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.ui.enabled", "false")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)


def table(name: str) -> DataFrame:
    return spark.read.option("mergeSchema", "true").parquet(*DeltaTable(f"{lake}/{name}").file_uris())


events, commands = table("command_events"), table("commands")

# %% Outcomes by route
outcomes = events.where(F.col("event").startswith("snavio.command."))
outcomes.groupBy("target", "command_name", "event", "reason").count().orderBy(F.desc("count")).show(truncate=False)

# %% Latency of the dispatch by path, in milliseconds
delivered = events.where(F.col("event") == "snavio.command.delivered")
delivered.groupBy("path").agg(
    F.count("*").alias("commands"),
    F.percentile_approx("dispatch_latency_ms", [0.5, 0.95, 0.99]).alias("p50 p95 p99"),
).show(truncate=False)

# %% Share of each source on each route, by the minute: what the fairness auditor sees
route = Window.partitionBy("minute", "target", "command_name")
shares = (
    delivered.groupBy(F.date_trunc("minute", "time").alias("minute"), "target", "command_name", "source")
    .agg(F.count("*").alias("dispatched"))
    .withColumn("share", F.round(F.col("dispatched") / F.sum("dispatched").over(route), 3))
    .withColumn("sources", F.size(F.collect_set("source").over(route)))
)
shares.where("sources > 1").orderBy(F.desc("share")).show(truncate=False)

# %% The archive: commands that failed, the newest first, with their payload
commands.where("outcome = 'failed'").orderBy(F.desc("time")).select(
    "time", "source", "target", "command_name", "reason", "payload"
).show(10, truncate=60)

# %% A field of the payloads
commands.select("command_name", F.get_json_object("payload", "$.text").alias("text")).where("text IS NOT NULL").groupBy(
    "command_name", "text"
).count().show()

spark.stop()
