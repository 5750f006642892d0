"""The data source in a local Spark: batch and streaming, reading and writing, exactly once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from nats_server import NatsServer, StartProxy
from spark_jetstream.publisher import Message


def read(spark: SparkSession, nats: NatsServer, stream: str, **options: str | int) -> DataFrame:
    return spark.read.format("jetstream").options(**{**nats.options, "stream": stream, **options}).load()


def read_stream(spark: SparkSession, nats: NatsServer, stream: str, **options: str | int) -> DataFrame:
    return spark.readStream.format("jetstream").options(**{**nats.options, "stream": stream, **options}).load()


def write(frame: DataFrame, nats: NatsServer, **options: str) -> None:
    frame.write.format("jetstream").options(**{**nats.options, **options}).mode("append").save()


def finish(query: StreamingQuery) -> list[Any]:
    assert query.awaitTermination(100)
    return list(query.recentProgress)


def test_a_batch_contains_the_messages_as_stored(spark: SparkSession, nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.fill(name, 20)
    nats.put(f"{name}.b", b"\x00\xff", Nats_Msg_Id="77")

    frame = read(spark, nats, name, partitions=3)

    assert frame.schema.simpleString() == (
        "struct<stream:string,subject:string,sequence:bigint,timestamp:timestamp,headers:map<string,string>,data:binary>"
    )
    rows = frame.orderBy("sequence").collect()
    assert frame.rdd.getNumPartitions() == 3
    assert [row.sequence for row in rows] == list(range(1, 22))
    assert [bytes(row.data) for row in rows] == [b"%d" % number for number in range(1, 21)] + [b"\x00\xff"]
    assert {row.stream for row in rows} == {name}
    assert (rows[-1].subject, rows[-1].headers) == (f"{name}.b", {"Nats-Msg-Id": "77"})
    assert rows[0].headers == {}
    assert rows[0].timestamp.isoformat(timespec="milliseconds") in nats.state(name)["first_ts"]


def test_filters_are_pushed_to_the_server_if_spark_allows_it(spark: SparkSession, nats: NatsServer, name: str) -> None:
    nats.create(name)
    nats.publish(Message(f"{name}.{number % 3}".encode(), b"", b"x") for number in range(1, 31))
    query = f"subject = '{name}.1' and sequence > 3 and sequence <= 20 and sequence in (4, 10, 22) and data is not null"

    for enabled in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            frame = read(spark, nats, name).where(query)
            assert [row.sequence for row in frame.collect()] == [4, 10]
            plan = frame._jdf.queryExecution().executedPlan().toString()
            assert ("Filter" in plan and "subject" in plan.split("Filter")[1].split("\n")[0]) is (enabled == "false")
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_an_invalid_option_fails_the_query_with_its_name(spark: SparkSession, nats: NatsServer, name: str) -> None:
    with pytest.raises(PySparkException, match="'startingSequence' must be an integer"):
        read(spark, nats, name, startingSequence="one", user="me", password="s3cret").collect()


def test_available_now_reads_limited_batches_and_resumes_from_its_checkpoint(
    spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
) -> None:
    nats.create(name)
    nats.fill(name, 100)
    frame = read_stream(spark, nats, name, maxMessagesPerTrigger=40, messagesPerPartition=25)

    def run() -> list[int]:
        query = (
            frame.select("sequence").writeStream.format("parquet")
            .option("path", str(tmp_path / "out")).option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        return [progress.numInputRows for progress in finish(query)]

    assert run() == [40, 40, 20]
    nats.fill(name, 7)
    assert run() == [7]
    assert sorted(row.sequence for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(1, 108))


def test_one_query_can_read_three_streams(spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path) -> None:
    streams = [f"{name}{letter}" for letter in "abc"]
    for count, stream in enumerate(streams, 1):
        nats.create(stream)
        nats.fill(stream, count * 10)
    found: list[tuple[int, str, int]] = []

    def collect(batch: DataFrame, number: int) -> None:
        found.extend((number, row.stream, row.sequence) for row in batch.collect())

    frames = [read_stream(spark, nats, stream, failOnDataLoss="false", startingPosition="earliest") for stream in streams]
    union = frames[0].unionAll(frames[1]).unionAll(frames[2])
    writer = union.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    finish(writer.start())
    nats.fill(streams[0], 1)
    finish(writer.start())

    assert sorted(found) == sorted(
        [(0, stream, number) for count, stream in enumerate(streams, 1) for number in range(1, count * 10 + 1)]
        + [(1, streams[0], 11)]
    )


def test_removed_messages_stop_a_query_with_both_sequences(
    spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path
) -> None:
    nats.create(name)
    nats.fill(name, 10)
    nats.purge(name, 6)
    frame = read_stream(spark, nats, name, startingSequence=2)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()

    with pytest.raises(PySparkException, match=f"'{name}' now begins at sequence 6, but sequence 2 is to be read"):
        query.awaitTermination(100)


def test_a_partition_is_read_completely_across_lost_connections(
    spark: SparkSession, nats: NatsServer, name: str, start_proxy: StartProxy
) -> None:
    nats.create(name)
    nats.publish(Message(f"{name}.a".encode(), b"", b"%0200d" % number) for number in range(2000))
    proxy = start_proxy(nats, bytes_each=60_000, cuts=3)

    frame = read(spark, nats, name, url=f"nats://127.0.0.1:{proxy.port}", partitions=2)

    assert sorted(row.sequence for row in frame.select("sequence").collect()) == list(range(1, 2001))
    assert proxy.cuts_left <= 0  # two connections may be cut at the same time


def test_rows_are_written_with_headers_and_ids(spark: SparkSession, nats: NatsServer, name: str) -> None:
    nats.create(name)
    frame = spark.createDataFrame(
        [(f"{name}.a", b"\x00\xff", {"A": "b"}, "id-1"), (f"{name}.b", b"2", None, None)],
        "subject string, data binary, headers map<string,string>, message_id string",
    ).coalesce(1)

    write(frame, nats, expectedStream=name)
    write(frame.limit(1), nats)  # the same message id again

    found = [(row.subject, bytes(row.data), row.headers) for row in read(spark, nats, name).orderBy("sequence").collect()]
    expected = {"Nats-Expected-Stream": name}
    assert found == [(f"{name}.a", b"\x00\xff", {"A": "b", "Nats-Msg-Id": "id-1", **expected}), (f"{name}.b", b"2", expected)]


def test_a_prefix_gives_rows_deterministic_ids(spark: SparkSession, nats: NatsServer, name: str) -> None:
    nats.create(name)
    frame = spark.range(10, numPartitions=2).selectExpr(f"'{name}.a' as subject", "cast(id as string) as data")

    write(frame, nats, messageIdPrefix="day-1")
    write(frame, nats, messageIdPrefix="day-1")
    assert nats.state(name)["messages"] == 10
    write(frame, nats, messageIdPrefix="day-2")
    write(frame, nats)
    assert nats.state(name)["messages"] == 30


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (("'NAME.a' as subject", "1 as data"), "'data' must be binary or string"),
        (("'a.*' as subject", "'x' as data"), "is not a valid subject"),
        (("'NAME.a' as subject", "'x' as data", "map('A', 'b\\r\\nC: d') as headers"), "line break"),
        (("'NAMEnowhere' as subject", "'x' as data"), "no stream accepts messages"),
    ],
)
def test_invalid_rows_fail_the_job(
    spark: SparkSession, nats: NatsServer, name: str, columns: tuple[str, ...], error: str
) -> None:
    nats.create(name)
    with pytest.raises(PySparkException, match=error):
        write(spark.range(1).selectExpr(*(column.replace("NAME", name) for column in columns)), nats)
    assert nats.state(name)["messages"] == 0


@pytest.fixture
def copying(spark: SparkSession, nats: NatsServer, name: str, tmp_path: Path) -> Iterator[Any]:
    """A query that copies a stream to another, and can be run repeatedly."""
    source, target = f"{name}in", f"{name}out"
    nats.create(source)
    nats.create(target)

    def run() -> None:
        frame = read_stream(spark, nats, source, messagesPerPartition=4).selectExpr(f"'{target}.a' as subject", "data")
        finish(
            frame.writeStream.format("jetstream").options(**nats.options)
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip

    yield source, target, run, tmp_path / "checkpoint"


def test_a_repeated_micro_batch_stores_no_message_twice(spark: SparkSession, nats: NatsServer, copying: Any) -> None:
    source, target, run, checkpoint = copying
    nats.fill(source, 10)
    run()
    nats.fill(source, 10)
    run()
    assert nats.state(target)["messages"] == 20

    # As after a crash between write and commit: Spark repeats the last batch.
    for commit in checkpoint.glob("commits/*1*"):
        commit.unlink()
    run()

    assert nats.state(target)["messages"] == 20
    rows = read(spark, nats, target).collect()
    assert sorted(int(bytes(row.data)) for row in rows) == sorted([*range(1, 11), *range(1, 11)])
    assert len({row.headers["Nats-Msg-Id"] for row in rows}) == 20
