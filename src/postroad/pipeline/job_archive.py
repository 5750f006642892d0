"""Jobs that ended on a day, as the API shows them: what `jobs.rules` makes of their events, worked out by Spark.

Without a redrive a job has one life, and everything about it is the largest or the smallest of something. The few jobs that were
redriven are folded by the rules themselves.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.jobs.rules import JobTransition, Step, fold
from postroad.pipeline.timestamps import rfc3339_column

ENDED = spark.StructType(
    [
        spark.StructField("tenant", spark.StringType()),
        spark.StructField("jobId", spark.StringType()),
        spark.StructField("queue", spark.StringType()),
        spark.StructField("status", spark.StringType()),
        spark.StructField("attempts", spark.LongType()),
        spark.StructField("createdAt", spark.TimestampType()),
        spark.StructField("updatedAt", spark.TimestampType()),
        spark.StructField("lastError", spark.StringType()),
        spark.StructField("correlationId", spark.StringType()),
        spark.StructField("messageId", spark.StringType()),
        spark.StructField("expiresAt", spark.TimestampType()),
        spark.StructField("ended_day", spark.StringType()),
    ]
)
JOBS_MAX = 500

# As `jobs.telling` has them: where an event stands among those of the same attempt.
_RANKS = {
    "job.queued": 0,
    "job.redriven": 0,
    "job.leased": 1,
    "job.extended": 2,
    "job.requeued": 3,
    "job.retried": 4,
    "job.done": 5,
    "job.dead": 6,
}
_ENDS = ("job.done", "job.dead")
_TOLD = ("queue", "message_id", "event", "at", "attempt", "rank", "error", "correlation_id")
_FOLDED = {
    "tenant": "string",
    "job_id": "string",
    "queue": "string",
    "message_id": "string",
    "begun_at": "long",
    "created_at": "long",
    "updated_at": "long",
    "expires_at": "long",
    "attempt": "long",
    "rank": "int",
    "error": "string",
    "correlation_id": "string",
}


def ended_jobs(events: DataFrame, ended_day: date) -> DataFrame:
    """`ENDED`: the jobs that, by all these events, ended on that day (UTC): done, dead, dropped with their queue, or expired.

    The events must reach back to when the jobs began. What a later day says of a job counts: one that was redriven is not among
    those of the day when it died.
    """
    told = _told(events)
    redriven = told.filter("event = 'job.redriven'").select("tenant", "job_id").distinct()
    plain = _folded_by_spark(told.join(redriven, on=["tenant", "job_id"], how="left_anti"))
    again = _folded_by_rules(told.join(redriven, on=["tenant", "job_id"], how="left_semi"))
    return _ended(plain.unionByName(again), _purges(events), ended_day)


def history_messages(jobs: DataFrame, ended_day: date, batch: int | str, jobs_max: int = JOBS_MAX) -> DataFrame:
    """`subject message_id data`: the jobs of each tenant and day of creation, the newest first, so many to a message."""
    created, ended = F.date_format("createdAt", "yyyyMMdd"), ended_day.strftime("%Y%m%d")
    newest_first = Window.partitionBy("tenant", "created").orderBy(F.desc("createdAt"), F.desc("jobId"))
    message = ("tenant", "created", "part")
    parts = (
        jobs.withColumn("created", created)
        .withColumn("place", F.row_number().over(newest_first))
        .withColumn("part", F.floor((F.col("place") - 1) / jobs_max))
        .groupBy(*message)
        .agg(F.sort_array(F.collect_list(F.struct("place", _shown().alias("text")))).alias("jobs"))
    )
    texts = F.array_join(F.transform("jobs", lambda one: one["text"]), ",")
    head = F.to_json(F.struct(F.lit(1).alias("v"), F.lit(batch).alias("batch")))
    return parts.select(
        F.concat_ws(".", F.lit("history"), "tenant", "created", F.lit(ended), "part").alias("subject"),
        F.concat_ws(":", F.lit("history"), F.lit(str(batch)), "tenant", "created", F.lit(ended), "part").alias("message_id"),
        F.concat(F.rtrim(head, F.lit("}")), F.lit(',"jobs":['), texts, F.lit("]}")).alias("data"),
    )


def _shown() -> Column:
    """A job as JSON. The API's form has no error or correlation as null, and leaves the expiry out where there is none."""
    is_time = {field.name for field in ENDED if isinstance(field.dataType, spark.TimestampType)}
    names = [name for name in ENDED.names if name not in ("tenant", "ended_day")]
    shown = {name: (rfc3339_column(F.col(name)) if name in is_time else F.col(name)).alias(name) for name in names}
    always = [column for name, column in shown.items() if name != "expiresAt"]
    with_nulls = {"ignoreNullFields": "false"}
    plain, expiring = F.to_json(F.struct(*always), with_nulls), F.to_json(F.struct(*shown.values()), with_nulls)
    return F.when(F.col("expiresAt").isNull(), plain).otherwise(expiring)


def _told(events: DataFrame) -> DataFrame:
    """Of each event what `jobs.telling` has it tell."""
    event = F.col("event")
    rank = F.element_at(F.create_map(*(F.lit(one) for pair in _RANKS.items() for one in pair)), event)
    error = F.when(event == "job.dead", F.coalesce(_text("last_error"), _text("reason")))
    return events.filter(event.isin(*_RANKS) & F.col("job_id").isNotNull()).select(
        "tenant",
        "job_id",
        "queue",
        "message_id",
        "event",
        F.unix_millis("time").alias("at"),
        F.coalesce("attempt", F.lit(0)).alias("attempt"),
        rank.alias("rank"),
        error.when(event.isin("job.retried", "job.requeued"), _text("reason")).alias("error"),
        F.when(event == "job.queued", F.unix_millis(F.try_to_timestamp("expires_at"))).alias("expires_at"),
        _text("correlation_id").alias("correlation_id"),
    )


def _text(column: str) -> Column:
    return F.nullif(F.col(column), F.lit(""))


def _folded_by_spark(told: DataFrame) -> DataFrame:
    """Jobs with one life."""
    first_queued = F.min(F.when(F.col("event") == "job.queued", F.col("at")))
    created = F.coalesce(first_queued, F.min("at"))
    failure = F.when(F.col("error").isNotNull(), F.struct("at", "attempt", "rank", "error"))
    return (
        told.groupBy("tenant", "job_id")
        .agg(
            F.max(F.struct("at", "queue", "message_id")).alias("latest"),
            F.max(F.struct(F.col("event").isin(*_ENDS).alias("is_end"), "attempt", "rank")).alias("step"),
            created.alias("created_at"),
            F.max("expires_at").alias("expires_at"),
            F.max(failure)["error"].alias("error"),
            F.max("correlation_id").alias("correlation_id"),
        )
        .select(
            "tenant",
            "job_id",
            "latest.queue",
            "latest.message_id",
            F.col("created_at").alias("begun_at"),
            "created_at",
            F.col("latest.at").alias("updated_at"),
            "expires_at",
            "step.attempt",
            "step.rank",
            "error",
            "correlation_id",
        )
    )


def _folded_by_rules(told: DataFrame) -> DataFrame:
    """Jobs with several lives."""
    events = F.collect_list(F.struct(*_TOLD)).alias("events")
    return (
        told.groupBy("tenant", "job_id")
        .agg(events)
        .mapInPandas(_fold_all, ", ".join(f"{name} {kind}" for name, kind in _FOLDED.items()))
    )


def _fold_all(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        rows = [_fold_one(*row) for row in frame.itertuples(index=False)]
        yield pd.DataFrame(rows, columns=list(_FOLDED))


def _fold_one(tenant: str, job_id: str, events: Any) -> tuple[Any, ...]:
    job = None
    for one in events:
        is_end = one["event"] in _ENDS
        told = JobTransition(
            tenant,
            job_id,
            one["queue"],
            one["message_id"],
            Step(is_end, one["attempt"], one["rank"], one["at"], one["event"]),
            one["error"],
            is_first=one["event"] == "job.queued",
            is_death=one["event"] == "job.dead",
            is_redrive=one["event"] == "job.redriven",
            correlation_id=one["correlation_id"],
        )
        job = fold(job, told)
    if job is None:
        raise ValueError("a job without events")
    # The expiry was of the message as first queued; one put back has none that is known.
    error = job.failure.error if job.failure else None
    step = job.step
    times = job.begun_at, job.created_at, job.updated_at, None
    return tenant, job_id, job.queue, job.message_id, *times, step.attempt, step.rank, error, job.correlation_id


def _purges(events: DataFrame) -> DataFrame:
    """By queue, all its purges in order."""
    why = F.when(F.col("is_deleted"), "the queue was deleted").otherwise("purged")
    return (
        events.filter("event = 'queue.purged'")
        .groupBy("tenant", "queue")
        .agg(F.sort_array(F.collect_set(F.struct(F.unix_millis("time").alias("at"), why.alias("why")))).alias("purges"))
    )


def _ended(jobs: DataFrame, purges: DataFrame, ended_day: date) -> DataFrame:
    """What `rules.settle`, `rules.status_at` and `rules.ended_at` say."""
    first_purge = F.get(F.filter("purges", lambda one: one["at"] > F.col("begun_at")), F.lit(0))
    is_end = F.col("rank") >= _RANKS["job.done"]
    purge = F.when(~is_end, F.col("purge"))
    changed_at = F.greatest("updated_at", purge["at"])
    ended_at = F.when(is_end | purge.isNotNull(), changed_at).when(
        F.col("expires_at").isNotNull(), F.greatest("updated_at", "expires_at")
    )
    begin = int(datetime(ended_day.year, ended_day.month, ended_day.day, tzinfo=UTC).timestamp() * 1000)
    end = begin + int(timedelta(days=1).total_seconds() * 1000) - 1
    status = F.when(~is_end, "expired").when(F.col("rank") == _RANKS["job.dead"], "dead").otherwise("done")
    return (
        jobs.join(purges, on=["tenant", "queue"], how="left")
        .withColumn("purge", first_purge)
        .filter(ended_at.between(begin, end))
        .select(
            "tenant",
            F.col("job_id").alias("jobId"),
            "queue",
            status.alias("status"),
            F.col("attempt").alias("attempts"),
            F.timestamp_millis("created_at").alias("createdAt"),
            F.timestamp_millis(changed_at).alias("updatedAt"),
            F.coalesce(purge["why"], F.col("error")).alias("lastError"),
            F.col("correlation_id").alias("correlationId"),
            F.col("message_id").alias("messageId"),
            F.when(~is_end, F.timestamp_millis("expires_at")).alias("expiresAt"),
            F.lit(ended_day.isoformat()).alias("ended_day"),
        )
    )
