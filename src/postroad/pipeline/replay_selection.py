"""Selection of archived commands for replays: answers each `replay.requested` on `REPLAYS` (`contracts/replays.py`).

A selection reads the archive up to the position of its request, so that it finds the same commands however often it is repeated.
Commands that are an hour older than its end count in any case: they may be of a stream that was restored or created again, whose
positions say nothing. The last batch whose requests are answered is a transaction of the table `commands`; a driver that starts
answers those of later batches. An answer that is repeated has the same messages.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from postroad.contracts.replays import END_ID, REPLAYS, ReplayMessage, ReplaySelection, SelectedCommand, SelectionEnd
from postroad.pipeline.delta_table import DataFile
from postroad.pipeline.ingest_task import ReplayRequest
from postroad.pipeline.jetstream import Engine
from postroad.pipeline.lake import Lake
from postroad.pipeline.messages import OutgoingMessage, contract_message
from postroad.pipeline.restored_engine import RestoredEngine
from postroad.pipeline.schemas import events_schema

TABLE = "commands"
_PENDING_DAYS = 2
_PUBLISHED_AT_ONCE = 1000
COMMANDS = "COMMANDS"  # the stream of the requests
ANSWERED = "answered-replays"  # the application whose version is the last batch whose requests are answered
_FORMER_STREAM_MS = 3_600_000
_KEY = ("time", "command_id", "source")


class _Chosen(NamedTuple):
    """A row of the archive that a replay sends, and its place in the selection."""

    event_id: str
    place: int


class ReplaySelections:
    def __init__(self, lake: Lake, engine: Engine) -> None:
        self._lake, self._engine = lake, engine

    def answer(self, requests: Iterable[ReplayRequest], batch: int) -> int:
        """Answer the requests up to this batch, in their order. Returns their number. Raises JetStreamError, OtherWriter."""
        ordered = sorted(requests, key=lambda one: (one.sequence, one.line))
        for request in ordered:
            self._answer(request)
        self._lake.table(TABLE).commit(transactions={ANSWERED: batch})
        return len(ordered)

    def answer_missed(self, batch: int) -> int:
        """Answer the requests of batches after the last one that was answered: the driver died before it did."""
        answered = self._lake.table(TABLE).transaction(ANSWERED)
        last = -1 if answered is None else answered
        missed = self._requests([file for file in self._lake.files("command_events") if file.batch > last])
        return self.answer(missed, batch) if missed else 0

    def answer_again(self, restored: RestoredEngine, now: datetime, batch: int) -> int:
        """Answer all requests of the last days but those that a restore of the engine has undone: it may lack the answers."""
        since = (now.astimezone(UTC) - timedelta(days=_PENDING_DAYS)).date().isoformat()
        is_undone = (F.col("sequence") > restored.sequences.get(COMMANDS, 0)) & (F.col("time") < F.lit(restored.at))
        files = [file for file in self._lake.files("command_events") if file.day >= since]
        return self.answer(self._requests(files, ~is_undone), batch)

    def _requests(self, files: Sequence[DataFile], condition: Column | None = None) -> list[ReplayRequest]:
        if not files:
            return []
        rows = self._lake.frame("command_events", events_schema("command_events"), files).where("event = 'replay.requested'")
        rows = rows if condition is None else rows.where(condition)
        return [ReplayRequest(*row) for row in rows.select("tenant", "sequence", "line", "replay_id", "selection").collect()]

    def _answer(self, request: ReplayRequest) -> None:
        try:
            wanted = msgspec.json.decode(request.selection, type=ReplaySelection)
        except (msgspec.DecodeError, RecursionError) as problem:
            self._engine.publish([_end(request, SelectionEnd(count=0, error=f"the selection cannot be read: {problem}"))])
            return
        files = [file for file in self._lake.files(TABLE) if file.overlaps(wanted.since_ms, wanted.until_ms)]
        archive = self._lake.frame(TABLE, events_schema(TABLE), files)
        found = matching(archive, request, wanted).limit(wanted.limit + 1).collect()
        chosen = _within_bytes(found[: wanted.limit], wanted.bytes_max)
        messages = self._messages(archive, request, chosen)
        while some := list(islice(messages, _PUBLISHED_AT_ONCE)):
            self._engine.publish(some)
        self._engine.publish([_end(request, SelectionEnd(count=len(chosen), is_truncated=len(found) > len(chosen)))])

    def _messages(self, archive: DataFrame, request: ReplayRequest, chosen: Sequence[_Chosen]) -> Iterator[OutgoingMessage]:
        """In the order of the selection. Rows reach the driver one partition at a time."""
        if not chosen:
            return
        spark: Any = archive.sparkSession
        keys = spark.createDataFrame(chosen, "event_id string, place long")
        rows = archive.where(F.col("tenant") == request.tenant).join(F.broadcast(keys), "event_id").orderBy("place")
        for row in rows.toLocalIterator():
            yield _message(request, row)


def matching(archive: DataFrame, request: ReplayRequest, wanted: ReplaySelection) -> DataFrame:
    """Place and size of the matching commands, in the order in which they are to be sent; of each command id the newest row."""
    received = (F.unix_micros("time") / 1000).cast("long")
    is_before = (F.col("sequence") < request.sequence) | (
        (F.col("sequence") == request.sequence) & (F.col("line") < request.line)
    )
    is_old = received < wanted.until_ms - _FORMER_STREAM_MS
    rows = archive.where((F.col("tenant") == request.tenant) & (is_before | is_old) & F.col("payload").isNotNull())
    rows = rows.where(F.col("command_id").isNotNull() & F.col("target").isNotNull() & F.col("command_name").isNotNull())
    rows = rows.where((received >= wanted.since_ms) & (received < wanted.until_ms))
    conditions = {
        "source": wanted.sources,
        "target": wanted.targets,
        "command_name": wanted.commands,
        "outcome": wanted.outcomes,
        "reason": wanted.reasons,
        "command_id": wanted.ids,
    }
    rows = rows.withColumn("command_id", F.lower("command_id"))
    for column, values in conditions.items():
        if values:
            rows = rows.where(F.col(column).isin(*values))
    newest = Window.partitionBy("source", "command_id").orderBy(F.desc("time"), F.desc("sequence"), F.desc("line"))
    narrow = rows.select(*_KEY, "event_id", "sequence", "line", F.octet_length("payload").alias("bytes"))
    return narrow.withColumn("rank", F.row_number().over(newest)).where("rank = 1").drop("rank").orderBy(*_KEY)


def _within_bytes(found: Sequence[Row], bytes_max: int) -> list[_Chosen]:
    chosen, size = [], 0
    for index, row in enumerate(found):
        size += row["bytes"]
        if size > bytes_max:
            break
        chosen.append(_Chosen(row["event_id"], index))
    return chosen


def _message(request: ReplayRequest, row: Row) -> OutgoingMessage:
    command = SelectedCommand(
        command_id=row["command_id"].lower(),
        source=row["source"],
        target=row["target"],
        name=row["command_name"],
        payload=row["payload"],
        sent_at=row["sent_at"],
        outcome=row["outcome"],
        reason=row["reason"],
    )
    body = ReplayMessage(v=1, replay=request.replay, index=row["place"], command=command)
    name = f"{command.source}/{command.command_id}"
    return contract_message(REPLAYS, body, tenant=request.tenant, replay=request.replay, command=name)


def _end(request: ReplayRequest, end: SelectionEnd) -> OutgoingMessage:
    body = ReplayMessage(v=1, replay=request.replay, index=end.count, end=end)
    return contract_message(REPLAYS, body, tenant=request.tenant, replay=request.replay, command=END_ID)
