"""Read throughput of the Spark data source, compared with a fetch loop of nats-py.

`python -m benchmarks.pipeline_source [messages]` starts a nats-server with one stream of messages of 200 bytes.
Spark's noop sink reads every column of every message, unlike `count()`. On a shared machine the CPU column is more reliable than
the wall-clock time: it is the CPU time of all processes of the run, server and JVM included.
"""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nats
from nats.js.api import AckPolicy, ConsumerConfig
from pyspark.sql import SparkSession

from benchmarks.harness import table
from postroad.runtime.embedded_server import find_server, free_port
from spark_jetstream import JetStreamDataSource
from spark_jetstream.api import JetStreamApi
from spark_jetstream.client import Client
from spark_jetstream.options import read_options
from spark_jetstream.publisher import Message, Publisher

_BODY = b"x" * 200
_ROUNDS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


def main(messages: int) -> None:
    home = Path(tempfile.mkdtemp(prefix="postroad-bench-"))
    port = free_port()
    command = [str(find_server()), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(home), "-l", str(home / "log")]
    server = subprocess.Popen(command)
    try:
        url = f"nats://127.0.0.1:{port}"
        published = measured(lambda: publish(url, messages))
        writing = (
            "published by the sink's client, once",
            f"{messages / published[0]:,.0f}",
            f"{published[1] / messages * 1e6:.1f}",
        )
        rows = [*read_rows(url, messages), writing]
        print(table(("", "messages/s", "CPU µs per message"), rows))
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(home, ignore_errors=True)


def publish(url: str, messages: int) -> None:
    options = read_options({"url": url, "stream": "S"}, is_streaming=False)
    with Client(options.connection) as client:
        client.open()
        config = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
        JetStreamApi(client, "$JS.API").call("STREAM.CREATE.S", config, "the stream")
        Publisher(client, 2_000).publish(Message(b"s.%d" % (place % 100), b"", _BODY) for place in range(messages))


def read_rows(url: str, messages: int) -> list[tuple[str, str, str]]:
    """Run all measurements in interleaved rounds, so that other load affects all alike; return the median of each."""
    spark = session()
    few = messages // 10  # for nats-py, whose rounds would take minutes

    def reading(way: str, partitions: int) -> Callable[[], None]:
        options: dict[str, str] = {"url": url, "stream": "S", "partitions": str(partitions), "readBy": way}
        return lambda: spark.read.format("jetstream").options(**options).load().write.format("noop").mode("overwrite").save()

    runs: dict[str, tuple[Callable[[], None], int]] = {
        f"Spark, readBy={way}, {partitions} partition{'s' * (partitions > 1)}": (reading(way, partitions), messages)
        for way in ("consumer", "direct")
        for partitions in (1, 2)
    }
    runs["nats-py, fetch(1000) in a loop, no Spark"] = (lambda: asyncio.run(fetch_all(url, few)), few)
    for run, _ in runs.values():
        run()  # workers start, the JVM warms up
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(_ROUNDS):
        for name, (run, _) in runs.items():
            taken[name].append(measured(run))
    spark.stop()
    rates = {name: statistics.median(count / clock for clock, _ in taken[name]) for name, (_, count) in runs.items()}
    _, consumer, _, direct, theirs = rates.values()
    print(
        f"\ntwo partitions beside nats-py: {consumer / theirs:.1f} times as fast by a consumer, {direct / theirs:.1f} by gets\n"
    )
    return [
        (name, f"{rates[name]:,.0f}", f"{statistics.median(cpu for _, cpu in taken[name]) / count * 1e6:.1f}")
        for name, (_, count) in runs.items()
    ]


async def fetch_all(url: str, messages: int) -> None:
    client = await nats.connect(url)
    stream = client.jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, inactive_threshold=300)
    subscription = await stream.pull_subscribe("s.>", stream="S", config=config)
    had = 0
    while had < messages:
        had += len(await subscription.fetch(min(1_000, messages - had), timeout=30))
    await client.close()


def session() -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.host", "127.0.0.1")
    made = builder.getOrCreate()
    made.dataSource.register(JetStreamDataSource)
    return made


def measured(run: Callable[[], None]) -> tuple[float, float]:
    """Wall-clock and CPU seconds."""
    began, used = time.monotonic(), cpu_seconds()
    run()
    return time.monotonic() - began, cpu_seconds() - used


def cpu_seconds() -> float:
    """CPU time of this process and its descendants."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(int(field) for field in fields[11:15])
    ours = {os.getpid()}
    while found := {pid for pid, parent in parents.items() if parent in ours and pid not in ours}:
        ours |= found
    return sum(used.get(pid, 0) for pid in ours) / _TICKS


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
