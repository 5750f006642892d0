"""The Spark session, with what matters on a small machine."""

import os
import shutil
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from postroad.pipeline.source import JetStreamDataSource

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
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.log.level": "ERROR",
}
_SMALL_JVM = "-XX:+UseParallelGC -XX:ParallelGCThreads=2 -Xss4m"


class NoJava(Exception):
    """Spark runs on Java, and there is none."""


def make_session(
    master: str, *, memory: str = "1g", name: str = "postroad", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Raises NoJava. One per process: Spark gives the same one back."""
    if shutil.which("java") is None:
        raise NoJava("Spark needs Java 17 or newer, and there is no `java` here. Debian: apt-get install openjdk-17-jre-headless")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the only way to tell Spark which Python its workers are to be
    own = {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": _SMALL_JVM,
    }
    wanted = {**_SETTINGS, **own, **(settings or {})}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(JetStreamDataSource)
    return session
