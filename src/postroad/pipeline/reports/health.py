"""Current state of each queue, from its samples of the last minutes."""

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from postroad.api.reports.health import REPORT
from postroad.pipeline.aggregates import last_of, mean_of, top_of, total_of

_LOOK_BACK = REPORT.look_back or timedelta()
_WATCHED_MINUTES = 5
_DRAINS_MAX = 2  # a queue is `old` if its oldest message is older than this many expected drain times
_PROBLEMS = ("old", "growing", "unpolled")


def rows(rollups: DataFrame, now: datetime) -> DataFrame:
    """A row for each queue with samples in the last ten minutes.

    Only completed minutes are compared. `problems` is empty if the state is unknown; `growthPerMinute` is null unless there are
    two minutes to compare. A queue that is empty now does not grow, and has no oldest message.
    """
    this_minute = F.timestamp_seconds(F.lit(int(now.timestamp()) // 60 * 60))
    age = (F.unix_seconds(this_minute) - F.unix_seconds("minute")) / 60  # in minutes: 0 is the current one
    minutes = (
        rollups.where("report = 'backlog'")
        .where((F.col("minute") >= F.lit(now - _LOOK_BACK)) & (F.col("minute") <= F.lit(now)))
        .groupBy("tenant", F.col("name").alias("queue"), age.cast("int").alias("age"))
        .agg(
            F.expr("max(CASE WHEN label = 'ready' THEN last.at END) AS at"),
            *(F.expr(f"{last_of(label)} AS {label}") for label in _LEVELS),
            F.expr(f"{mean_of('ready')} AS depth"),
            F.expr(
                f"{top_of('leased')} + coalesce({top_of('retrying')}, 0) + {top_of('waiting')} + {total_of('out')} AS activity"
            ),
        )
    )
    queues = minutes.groupBy("tenant", "queue").agg(
        *(F.min_by(label, "age").alias(label) for label in _LEVELS),
        F.max("at").alias("at"),
        *(_depth(age).alias(f"depth_{age}") for age in range(1, _WATCHED_MINUTES + 2)),
        _is_unpolled().alias("is_unpolled"),
        _growth().alias("growthPerMinute"),
    )
    is_unknown = F.col("at") < F.lit(int((now - timedelta(minutes=_WATCHED_MINUTES)).timestamp() * 1000))
    is_old = F.col("oldest_age_ms") > F.col("expected_drain_seconds") * (1000 * _DRAINS_MAX)
    is_empty = F.col("ready") == 0
    found = zip((is_old, _rose() & ~is_empty, F.col("is_unpolled") & ~is_empty), _PROBLEMS, strict=True)
    problems = F.filter(F.array(*(F.when(~is_unknown & is_so, problem) for is_so, problem in found)), lambda one: one.isNotNull())
    return queues.withColumn("problems", problems).select(
        "tenant",
        "queue",
        F.when(is_unknown, "unknown").when(F.size("problems") > 0, "unhealthy").otherwise("healthy").alias("status"),
        "problems",
        "ready",
        "leased",
        F.coalesce("retrying", F.lit(0)).alias("retrying"),
        "delayed",
        "dead",
        "waiting",
        F.when(~is_empty | (F.col("oldest_age_ms") > 0), F.col("oldest_age_ms")).alias("oldestAgeMs"),
        F.col("expected_drain_seconds").alias("expectedDrainSeconds"),
        F.when(is_empty, F.least("growthPerMinute", F.lit(0.0))).otherwise(F.col("growthPerMinute")).alias("growthPerMinute"),
        F.timestamp_millis("at").alias("sampledAt"),
    )


_LEVELS = ("ready", "leased", "retrying", "delayed", "dead", "waiting", "oldest_age_ms", "expected_drain_seconds")


def _depth(age: int) -> Column:
    return F.max(F.when(F.col("age") == age, F.col("depth")))


def _rose() -> Column:
    """The mean depth of each of the last completed minutes was above that of the previous one."""
    is_rise = [F.col(f"depth_{age}") > F.col(f"depth_{age + 1}") for age in range(1, _WATCHED_MINUTES + 1)]
    rose = is_rise[0]
    for one in is_rise[1:]:
        rose = rose & one
    return F.coalesce(rose, F.lit(False))


def _is_unpolled() -> Column:
    """Messages were ready in each of the last completed minutes, without consumer activity in them or since."""
    is_whole = F.col("age").between(1, _WATCHED_MINUTES)
    minutes_ready = F.count_if(is_whole & (F.col("depth") > 0))
    activity = F.sum(F.when(F.col("age") <= _WATCHED_MINUTES, F.col("activity")))
    return (minutes_ready == _WATCHED_MINUTES) & (activity == 0)


def _growth() -> Column:
    """From the first to the last of the completed minutes that are compared."""
    is_compared = F.col("age").between(1, _WATCHED_MINUTES + 1)
    point = F.when(is_compared, F.struct(F.col("age"), F.col("depth")))
    first, last = F.max(point), F.min(point)
    return F.round((last["depth"] - first["depth"]) / F.nullif(first["age"] - last["age"], F.lit(0)), 3)
