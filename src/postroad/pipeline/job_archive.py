"""The job archive: for each completed day the jobs that ended on it, in the lake and as messages to the service."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from postroad.api.jobs import Job
from postroad.contracts.archived_jobs import ARCHIVED_JOBS, JOBS_MAX
from postroad.contracts.contract import VERSION
from postroad.pipeline.delta_table import DataFile, write_file
from postroad.pipeline.ended_jobs import ENDED, ended_jobs
from postroad.pipeline.lake import Lake
from postroad.pipeline.messages import contract_messages
from postroad.pipeline.schemas import events_schema
from postroad.pipeline.storage import as_schema
from postroad.pipeline.timestamps import rfc3339_column

TABLE = "job_history"
DONE = "archived-day"  # the application whose version is the last day that was archived


class JobArchive:
    def __init__(self, lake: Lake, look_back_days: int = 30) -> None:
        self._lake, self._look_back_days = lake, look_back_days

    def due_days(self, now: datetime) -> list[date]:
        """Days to archive, oldest first: they ended an hour ago or more, have events, and were not archived yet. A job cannot end
        on a day without events, because nothing ran."""
        last = (now - timedelta(hours=1)).astimezone(UTC).date() - timedelta(days=1)
        done = self._lake.table(TABLE).transaction(DONE)
        known = sorted({date.fromisoformat(file.day) for file in self._lake.files("events")})
        return [day for day in known if (done is None or done < day.toordinal()) and day <= last]

    def compute(self, ended: date) -> DataFrame:
        """Write the jobs that ended on this day to the lake, and return them as messages. Raises OtherWriter."""
        table, day = self._lake.table(TABLE), ended.isoformat()
        since = (ended - timedelta(days=self._look_back_days)).isoformat()
        files = [file for file in self._lake.files("events") if since <= file.day]
        events = self._lake.frame("events", events_schema(), files).where(F.col("stream") == "JOBS")
        old = table.files_of_days({day})
        written = self._write(ended_jobs(events, ended), day)
        if old or written:
            table.commit(written, old)
        return archive_messages(self._lake.frame(TABLE, ENDED, written), ended, day)

    def _write(self, jobs: DataFrame, day: str) -> list[DataFile]:
        """Executors write the files, and return their names and statistics."""
        table, storage = self._lake.table(TABLE).format, self._lake.storage

        def write(batches: Iterator[Any]) -> Iterator[Any]:
            rows = [batch for batch in batches if len(batch)]
            if rows:
                file = write_file(storage, table, day, as_schema(pa.Table.from_batches(rows), table.schema), "jobs")
                yield pa.RecordBatch.from_pylist([asdict(file)])

        fields = "path string, day string, size long, rows long, first long, last long"
        return [DataFile(**row.asDict()) for row in jobs.mapInArrow(write, fields).collect()]

    def mark_done(self, ended: date) -> None:
        table = self._lake.table(TABLE)
        done = table.transaction(DONE)
        if done is None or done < ended.toordinal():
            table.commit(transactions={DONE: ended.toordinal()})


def archive_messages(jobs: DataFrame, ended_day: date, batch: int | str, jobs_max: int = JOBS_MAX) -> DataFrame:
    """The jobs (`ENDED`) of each tenant and day of creation, newest first, up to `jobs_max` per message."""
    newest_first = Window.partitionBy("tenant", "created").orderBy(F.desc("createdAt"), F.desc("jobId"))
    message = ("tenant", "created", "part")
    parts = (
        jobs.withColumn("created", F.date_format("createdAt", "yyyyMMdd"))
        .withColumn("place", F.row_number().over(newest_first))
        .withColumn("part", F.floor((F.col("place") - 1) / jobs_max))
        .groupBy(*message)
        .agg(F.sort_array(F.collect_list(F.struct("place", _job_json().alias("text")))).alias("jobs"))
    )
    texts = F.array_join(F.transform("jobs", lambda one: one["text"]), ",")
    head = F.to_json(F.struct(F.lit(VERSION).alias("v"), F.lit(batch).alias("batch")))
    data = F.concat(F.rtrim(head, F.lit("}")), F.lit(',"jobs":['), texts, F.lit("]}"))
    names = {name: F.col(name) for name in message}
    return contract_messages(parts, ARCHIVED_JOBS, data, ended=F.lit(ended_day.strftime("%Y%m%d")), batch=F.lit(batch), **names)


def _job_json() -> Column:
    """A job as the API represents it: required fields may be null, and optional ones are left out."""
    times = {field.name for field in ENDED if isinstance(field.dataType, spark.TimestampType)}
    fields = [one for one in msgspec.structs.fields(Job) if one.encode_name in ENDED.names]
    values = {one.encode_name: _value(one.encode_name, one.encode_name in times) for one in fields}
    required = [values[one.encode_name] for one in fields if one.required]
    with_nulls = {"ignoreNullFields": "false"}
    short, full = F.to_json(F.struct(*required), with_nulls), F.to_json(F.struct(*values.values()), with_nulls)
    return F.when(F.col("expiresAt").isNull(), short).otherwise(full)


def _value(name: str, is_time: bool) -> Column:
    return (rfc3339_column(F.col(name)) if is_time else F.col(name)).alias(name)
