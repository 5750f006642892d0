"""What the tests of the pipeline may ask for."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from postroad.pipeline.spark_session import worker_python

_HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The Spark of all tests that use this fixture: they share a worker (`tests/tiers.py`)."""
    os.environ["PYSPARK_PYTHON"] = worker_python()
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
        "spark.sql.codegen.wholeStage": "false",  # frames are tiny: to compile for them takes longer than to run
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Allow for the slow start of Spark: a test hangs when it takes ten minutes."""
    for item in items:
        if item.path.is_relative_to(_HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
