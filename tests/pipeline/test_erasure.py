"""Rows of deleted tenants leave the tables with what tenants sent."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from postroad.pipeline.erasure import erase_deleted_tenants
from spark_jetstream.publisher import Message
from tests.pipeline.command_samples import command_traffic
from tests.pipeline.test_driver import Environment
from tests.pipeline.traffic import NOON, framed, own_engine, send, send_raw

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Environment]:
    with own_engine(Path(tmp_path_factory.mktemp("erasure"))) as settings:
        yield Environment(settings, spark)


def test_rows_of_a_deleted_tenant_are_removed_once_and_those_of_others_stay(environment: Environment) -> None:
    events = command_traffic(41, 40, start=NOON)
    send(environment.settings, framed(events))
    send_raw(
        environment.settings, [Message(f"command.{tenant}".encode(), b"", b"no line of ours") for tenant in ("globex", "acme")]
    )
    entry = msgspec.json.encode({"v": 1, "action": "tenant.delete", "tenant": "globex", "target": "globex"})
    send_raw(environment.settings, [Message(b"audit.globex", b"", entry)])
    environment.pipeline().run_once()

    for table in ("command_events", "commands"):
        left = sorted(event.event_id for event in events if event.table == table and event.tenant != "globex")
        assert sorted(row["event_id"] for row in environment.rows(table)) == left, table
    assert {row["subject"] for row in environment.rows("bronze")} == {"command.acme", "audit.globex"}
    assert [row["raw"] for row in environment.rows("quarantine")] == ["no line of ours"], "that of the other tenant"
    today = datetime.now(UTC).date()
    assert erase_deleted_tenants(environment.lake, today) == 0, "the deletion is done"
    version = environment.lake.table("commands").version
    environment.pipeline().run_once()
    assert environment.lake.table("commands").version == version


def test_frames_that_are_read_after_the_deletion_are_erased_too(environment: Environment) -> None:
    """The audit log is ahead of a backlog of commands."""
    events = command_traffic(42, 40, start=NOON)
    left = sorted(row["event_id"] for row in environment.rows("commands"))
    send(environment.settings, framed(events, size=5))
    entry = msgspec.json.encode({"v": 1, "action": "tenant.delete", "tenant": "globex", "target": "globex"})
    send_raw(environment.settings, [Message(b"audit.globex", b"", entry)])
    pipeline = environment.pipeline(messages_max=3)
    pipeline._run_due_batch()
    pipeline._maintain()
    while pipeline._has_backlog:
        pipeline._run_due_batch()
    pipeline._maintain()

    left += [event.event_id for event in events if event.table == "commands" and event.tenant != "globex"]
    assert sorted(row["event_id"] for row in environment.rows("commands")) == sorted(left)
