"""Jobs that ended on a day, computed from their events by the rules of `postroad.jobs.rules`.

A job without a redrive has one run, and each of its fields is a maximum or a minimum that Spark computes. The few jobs with a
redrive are folded by the rules themselves.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Any

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.api.jobs import JobStatus
from postroad.jobs.rules import PURGE_ERRORS, TRANSITIONS, JobTransition, Step, fold

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
_TRANSITION = ("queue", "message_id", "event", "at", "attempt", "error", "correlation_id")
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
    "is_end": "boolean",
    "rank": "int",
    "error": "string",
    "correlation_id": "string",
}
_STATUSES = {rule.rank: rule.status.value for rule in TRANSITIONS.values() if rule.is_end}


def ended_jobs(events: DataFrame, ended_day: date) -> DataFrame:
    """`ENDED`: the jobs that ended on that day (UTC): done, dead, cancelled, purged or expired.

    The events must reach back to the creation of the jobs. Events of later days count: a job that was redriven is not among those
    of the day when it died.
    """
    transitions = _transitions(events)
    redrives = [name for name, rule in TRANSITIONS.items() if rule.is_redrive]
    redriven = transitions.filter(F.col("event").isin(*redrives)).select("tenant", "job_id").distinct()
    single_run = _folded_by_spark(transitions.join(redriven, on=["tenant", "job_id"], how="left_anti"))
    several_runs = _folded_by_rules(transitions.join(redriven, on=["tenant", "job_id"], how="left_semi"))
    return _ended(single_run.unionByName(several_runs), _purges(events), ended_day)


def _transitions(events: DataFrame) -> DataFrame:
    """For each event its effect on the job, as in `TRANSITIONS`."""
    event = F.col("event")
    ranks = F.create_map(*(F.lit(one) for name, rule in TRANSITIONS.items() for one in (name, rule.rank)))
    return events.filter(event.isin(*TRANSITIONS) & F.col("job_id").isNotNull()).select(
        "tenant",
        "job_id",
        "queue",
        "message_id",
        "event",
        F.unix_millis("time").alias("at"),
        F.coalesce("attempt", F.lit(0)).alias("attempt"),
        F.element_at(ranks, event).alias("rank"),
        _error(event).alias("error"),
        F.when(_is_any(event, "is_first"), F.unix_millis(F.try_to_timestamp("expires_at"))).alias("expires_at"),
        _text("correlation_id").alias("correlation_id"),
    )


def _is_any(event: Column, flag: str) -> Column:
    """The type of the event has this flag in `TRANSITIONS`."""
    return event.isin(*(name for name, rule in TRANSITIONS.items() if getattr(rule, flag)))


def _error(event: Column) -> Column:
    failures = {name: rule.error_fields for name, rule in TRANSITIONS.items() if rule.error_fields}
    errors = [(event == name, F.coalesce(*map(_text, fields))) for name, fields in failures.items()]
    return reduce(lambda found, one: found.when(*one), errors[1:], F.when(*errors[0]))


def _text(column: str) -> Column:
    return F.nullif(F.col(column), F.lit(""))


def _folded_by_spark(transitions: DataFrame) -> DataFrame:
    """Jobs with one run."""
    event = F.col("event")
    first_queued = F.min(F.when(_is_any(event, "is_first"), F.col("at")))
    created = F.coalesce(first_queued, F.min("at"))
    failure = F.when(F.col("error").isNotNull(), F.struct("at", "attempt", "rank", "error"))
    return (
        transitions.groupBy("tenant", "job_id")
        .agg(
            F.max(F.struct("at", "queue", "message_id")).alias("latest"),
            F.max(F.struct(_is_any(event, "is_end").alias("is_end"), "attempt", "rank")).alias("step"),
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
            "step.is_end",
            "step.rank",
            "error",
            "correlation_id",
        )
    )


def _folded_by_rules(transitions: DataFrame) -> DataFrame:
    """Jobs with several runs."""
    events = F.collect_list(F.struct(*_TRANSITION)).alias("events")
    return (
        transitions.groupBy("tenant", "job_id")
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
        rule = TRANSITIONS[one["event"]]
        transition = JobTransition(
            tenant,
            job_id,
            one["queue"],
            one["message_id"],
            Step(rule.is_end, one["attempt"], rule.rank, one["at"], rule.status.value),
            one["error"],
            is_first=rule.is_first,
            is_death=rule.is_death,
            is_redrive=rule.is_redrive,
            correlation_id=one["correlation_id"],
        )
        job = fold(job, transition)
    if job is None:
        raise ValueError("a job without events")
    # The expiry is that of the message as first queued; that of a redriven message is unknown.
    error = job.failure.error if job.failure else None
    step = job.step
    times = job.begun_at, job.created_at, job.updated_at, None
    return tenant, job_id, job.queue, job.message_id, *times, step.attempt, step.is_end, step.rank, error, job.correlation_id


def _purges(events: DataFrame) -> DataFrame:
    """All purges of each queue in order."""
    why = F.when(F.col("is_deleted"), PURGE_ERRORS[True]).otherwise(PURGE_ERRORS[False])
    return (
        events.filter("event = 'queue.purged'")
        .groupBy("tenant", "queue")
        .agg(F.sort_array(F.collect_set(F.struct(F.unix_millis("time").alias("at"), why.alias("why")))).alias("purges"))
    )


def _ended(jobs: DataFrame, purges: DataFrame, ended_day: date) -> DataFrame:
    """Applies `rules.with_purge`, `rules.status_at` and `rules.ended_at`."""
    first_purge = F.get(F.filter("purges", lambda one: one["at"] > F.col("begun_at")), F.lit(0))
    is_end = F.col("is_end")
    purge = F.when(~is_end, F.col("purge"))
    changed_at = F.greatest("updated_at", purge["at"])
    ended_at = F.when(is_end | purge.isNotNull(), changed_at).when(
        F.col("expires_at").isNotNull(), F.greatest("updated_at", "expires_at")
    )
    begin = int(datetime(ended_day.year, ended_day.month, ended_day.day, tzinfo=UTC).timestamp() * 1000)
    end = begin + int(timedelta(days=1).total_seconds() * 1000) - 1
    statuses = F.create_map(*(F.lit(one) for pair in _STATUSES.items() for one in pair))
    return (
        jobs.join(purges, on=["tenant", "queue"], how="left")
        .withColumn("purge", first_purge)
        .filter(ended_at.between(begin, end))
        .select(
            "tenant",
            F.col("job_id").alias("jobId"),
            "queue",
            F.when(is_end, F.element_at(statuses, F.col("rank"))).otherwise(JobStatus.EXPIRED.value).alias("status"),
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
