"""The Spark session, with what matters on a small machine."""

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jetstream import JetStreamDataSource

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.enabled": "false",  # to plan anew at each step takes small batches longer than their work
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    "spark.sql.maxConcurrentOutputFileWriters": "16",  # rather than to sort by day for the sake of one file at a time
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.log.level": "ERROR",
}
# Nearly every value of these is another one: to look for those that come again is work for nothing.
_EACH_ITS_OWN = ("event_id", "job_id", "message_id", "request_id", "raw", "data")
# What Spark writes for a wide table is a method too long for the JVM to compile, unless it is told to.
_SMALL_JVM = "-XX:-DontCompileHugeMethods -XX:+UseParallelGC -XX:ParallelGCThreads=2 -Xss4m"


class NoJava(Exception):
    """Spark runs on Java, and there is none."""


def make_session(
    master: str, *, memory: str = "1g", name: str = "postroad", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Raises NoJava. One per process: Spark gives the same one back."""
    if shutil.which("java") is None:
        raise NoJava("Spark needs Java 17 or newer, and there is no `java` here. Debian: apt-get install openjdk-17-jre-headless")
    is_here = master.startswith("local")
    os.environ.setdefault("PYSPARK_PYTHON", worker_python() if is_here else sys.executable)  # no setting of Spark's says it
    own = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": _SMALL_JVM,
    }
    plain = {f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in _EACH_ITS_OWN}
    wanted = {**_SETTINGS, **plain, **own, **(settings or {})}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(JetStreamDataSource)
    return session


_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}


@contextmanager
def small_query_settings(session: SparkSession) -> Iterator[None]:
    """For queries over little: Spark takes longer to write and compile code for them, and to share them out, than to do them."""
    before = {name: str(session.conf.get(name)) for name in _FEW_ROWS}
    for name, value in _FEW_ROWS.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in _FEW_ROWS:
            session.conf.set(name, before[name])


@cache
def worker_python() -> str:
    """This Python, for Spark's workers on this machine. Spark would have them import PySpark from an archive, which each process
    compiles anew: a second for which every source, and every first task, has to wait."""
    folder = Path(tempfile.mkdtemp(prefix="postroad-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o700)
    return str(script)
