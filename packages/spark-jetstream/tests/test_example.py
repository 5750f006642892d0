"""The example prints the output that its README shows."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from nats_server import NatsServer

EXAMPLE = Path(__file__).parents[1] / "examples" / "orders.py"


def test_the_example_runs(spark: SparkSession, nats: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)

    asyncio.run(example.create_stream(nats.url))
    example.run(spark, nats.url, tmp_path)

    output = capsys.readouterr().out
    assert "read 1000 messages as a batch" in output
    assert "|order-" not in output
    assert "streamed them into Parquet in batches of 400, 400, 200: 1000 rows, total amount 1498500" in output
