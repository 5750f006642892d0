"""The Spark session, with settings for small machines."""

import atexit
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark_jetstream import JetStreamDataSource

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.log.level": "ERROR",
}
# On one machine replanning takes longer than the work of small batches; a cluster plans by the amount of data.
_LOCAL = {"spark.sql.shuffle.partitions": "4", "spark.sql.adaptive.enabled": "false"}
# Spark generates methods for wide tables that are too long for the JVM to compile by default.
_JVM_OPTIONS = "-XX:-DontCompileHugeMethods -XX:+UseParallelGC -XX:ParallelGCThreads=2 -Xss4m"


class NoJava(Exception):
    """Java, which Spark needs, is not installed."""


def make_session(
    master: str,
    *,
    memory: str = "1g",
    python_memory: str = "4g",
    name: str = "postroad",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return the session of this process. `memory` is the heap of the driver, `python_memory` the address space
    of each Python process that runs tasks. Raises NoJava."""
    if shutil.which("java") is None:
        raise NoJava("Spark needs Java 17 or newer, which is not installed. Debian: apt-get install openjdk-17-jre-headless")
    is_local = master.startswith("local")
    # Spark has no setting for it.
    os.environ.setdefault("PYSPARK_PYTHON", worker_python(python_memory) if is_local else sys.executable)
    own = {"spark.driver.memory": memory, "spark.driver.extraJavaOptions": _JVM_OPTIONS}
    if not is_local:  # the script does it without a line in the log for each process
        own["spark.executor.pyspark.memory"] = python_memory
    wanted = {**_SETTINGS, **(_LOCAL if is_local else {}), **own, **(settings or {})}
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(JetStreamDataSource)
    return session


def silence_errors(session: SparkSession) -> None:
    """End the JVM's log and standard error, where threads that are interrupted print stack traces of a thousand lines.

    Python still gets the exceptions of its calls.
    """
    session.sparkContext.setLogLevel("OFF")
    java: Any = session.sparkContext._jvm
    java.java.lang.System.setErr(java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream()))


@cache
def worker_python(memory: str = "4g") -> str:
    """A script that starts this Python for Spark's local workers, with a limit of their address space. By default they import
    PySpark from an archive, which each process compiles again: one second for every source and every first task."""
    folder = Path(tempfile.mkdtemp(prefix="postroad-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = folder / "python"
    kilobytes = int(memory[:-1]) * (1024 if memory.endswith("m") else 1024 * 1024)
    script.write_text(f'#!/bin/sh\nunset PYTHONPATH\nulimit -v {kilobytes}\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o700)
    return str(script)
