"""Fixtures: NATS servers, proxies that cut connections, and a Spark session with the data source."""

import os
import shlex
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nats_server import CuttingProxy, NatsServer, StartProxy, StartServer
from spark_jetstream import JetStreamDataSource

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow for the slow start of Spark, and keep all tests that use it in one xdist worker: one JVM is enough."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture
def name() -> str:
    """A unique NATS token, for stream names and subjects."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The server shared by all tests; each test creates its own stream (`name`)."""
    server = NatsServer(tmp_path_factory.mktemp("nats")).start()
    yield server
    server.stop()


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers with a configuration of their own."""
    started: list[NatsServer] = []

    def start(configuration: str = "", **options: str) -> NatsServer:
        started.append(NatsServer(tmp_path / f"nats{len(started)}", configuration, options).start())
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def start_proxy() -> Iterator[StartProxy]:
    started: list[CuttingProxy] = []

    def start(server: NatsServer, *, bytes_each: int, cuts: int) -> CuttingProxy:
        started.append(CuttingProxy(server.port, bytes_each=bytes_each, cuts=cuts))
        return started[-1]

    yield start
    for proxy in started:
        proxy.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local Spark with the data source registered."""
    os.environ["PYSPARK_PYTHON"] = _worker_python(tmp_path_factory.mktemp("python"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss4m",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",  # for a few rows, compiling takes longer than running
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("spark-jetstream tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.dataSource.register(JetStreamDataSource)
    yield session
    session.stop()


def _worker_python(folder: Path) -> str:
    """This Python without `PYTHONPATH`, so that workers import PySpark compiled and not from Spark's zip."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {shlex.quote(sys.executable)} "$@"\n')
    script.chmod(0o700)
    return str(script)
