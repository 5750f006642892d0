"""What the tests of the data source may ask for."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from postroad.pipeline.source import JetStreamDataSource
from tests.pipeline.source.nats import Nats, Proxy

StartNats = Callable[..., Nats]
LayProxy = Callable[..., Proxy]


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """The server that these tests share; each takes a stream of its own (`name`)."""
    server = Nats(tmp_path_factory.mktemp("nats")).start()
    yield server
    server.stop()


@pytest.fixture
def start_nats(tmp_path: Path) -> Iterator[StartNats]:
    """Starts servers with a configuration of their own."""
    started: list[Nats] = []

    def start(configuration: str = "", **options: str) -> Nats:
        started.append(Nats(tmp_path / f"nats{len(started)}", configuration, options).start())
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def lay_proxy() -> Iterator[LayProxy]:
    laid: list[Proxy] = []

    def lay(server: Nats, *, bytes_each: int, cuts: int) -> Proxy:
        laid.append(Proxy(server.port, bytes_each=bytes_each, cuts=cuts))
        return laid[-1]

    yield lay
    for proxy in laid:
        proxy.close()


@pytest.fixture(scope="session")
def jetstream(spark: SparkSession) -> SparkSession:
    """Spark with the data source."""
    spark.dataSource.register(JetStreamDataSource)
    return spark
