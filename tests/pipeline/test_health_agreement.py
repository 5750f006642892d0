"""The pipeline's report of queue health and the monitor of routes agree on the same samples."""

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from postroad.kernel.clock import rfc3339
from postroad.queues.events import QueueSampled
from postroad.route_health.monitor import health_sample
from postroad.route_health.rules import TREND_SAMPLES, Assessment, QueueCondition, assess
from spark_jetstream import JetStreamDataSource
from tests.pipeline.test_driver import Environment
from tests.pipeline.traffic import NOON, framed, own_engine, send

pytestmark = pytest.mark.timeout(300)

MINUTES = 9
QUEUES = 150
NOW = NOON + MINUTES * 60_000 + 1_000
KNOWN_MS = 300_000  # without a sample for longer than this both say `unknown`


@pytest.fixture
def environment(tmp_path: Path, spark: SparkSession) -> Iterator[Environment]:
    spark.dataSource.register(JetStreamDataSource)
    with own_engine(tmp_path) as settings:
        yield Environment(settings, spark)


def sampled(queue: str, minute: int, **fields: float | None) -> QueueSampled:
    """One sample in a minute, ten seconds before its end."""
    at = NOON + minute * 60_000 + 50_000
    values = {
        "event_id": f"{queue}:{minute}", "timestamp": rfc3339(at), "tenant": "acme", "queue": queue,
        "ready": 0, "leased": 0, "delayed": 0, "dead": 0, "waiting": 0, "expected_drain_seconds": 60,
        "in_per_second": 0.0, "out_per_second": 0.0, "seconds": 60.0, **fields,
    }  # fmt: skip
    return msgspec.convert(values, QueueSampled)


def history(queue: str, chance: random.Random) -> list[QueueSampled]:
    """Samples of the same length, one a minute: rising or level, with and without consumers, some up to an earlier minute."""
    is_rising, is_polled, is_aged = (chance.random() < 0.5 for _ in range(3))
    ends = chance.choice([MINUTES, MINUTES, MINUTES, MINUTES - 2, MINUTES - 6])
    found, ready = [], chance.randrange(3)
    for minute in range(ends):
        ready = ready + chance.randrange(1, 4) if is_rising and chance.random() < 0.95 else chance.choice([ready, ready, 1, 0])
        has_consumer = is_polled and chance.random() < 0.5
        activity = chance.choice(["leased", "retrying", "waiting", "out_per_second"])
        age = chance.choice([119_999, 120_000, 120_001]) if is_aged else 10
        fields = {"ready": ready, "oldest_age_ms": age if ready else None, activity: 1 if has_consumer else 0}
        found.append(sampled(queue, minute, **fields))
    return found


def of_the_service(samples: list[QueueSampled]) -> Assessment:
    """What the monitor finds after the last of the samples."""
    found = [health_sample(one, NOON + minute * 60_000 + 50_000) for minute, one in enumerate(samples)]
    return assess(found[-TREND_SAMPLES - 1 :], found[-1], 60, QueueCondition(), now_ms=NOW, max_age_ms=KNOWN_MS)


def test_the_report_of_spark_and_the_rule_of_the_service_agree(environment: Environment) -> None:
    """Requirements 38, 39, 40, 41"""
    chance = random.Random(22)
    histories = {f"q{number}": history(f"q{number}", chance) for number in range(QUEUES)}
    events = [one for samples in histories.values() for one in samples]
    chance.shuffle(events)
    send(environment.settings, framed(events, size=40))
    environment.pipeline(datetime.fromtimestamp(NOW / 1000, UTC)).run_once()

    [report] = environment.results("insight.acme.health.now.all")
    of_spark = {row["queue"]: (row["status"], tuple(row["problems"])) for row in report["rows"]}
    expected = {queue: of_the_service(samples) for queue, samples in histories.items()}
    assert of_spark == {queue: (one.status, one.problems) for queue, one in expected.items()}
    seen = {(one.status, one.problems) for one in expected.values()}
    assert {("healthy", ()), ("unknown", ())} < seen
    assert {problem for _, problems in seen for problem in problems} == {"old", "growing", "unpolled"}
