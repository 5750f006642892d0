"""Reports and the pipeline's state with both clients, against a running server."""

from datetime import UTC, datetime

import pytest

from postroad.client import LatencyRow, PipelineStatus
from postroad.client.errors import Forbidden, InvalidParameter
from postroad.kernel.clock import now_ms
from tests.client.conftest import Sdk, opened
from tests.gateway import Gateway, Tenant
from tests.insights import results
from tests.insights.results import DAY, HOUR, MINUTE, day_of, publish

SINCE = datetime(2026, 11, 16, 10, tzinfo=UTC)
AT = int(SINCE.timestamp() * 1000)
UNTIL = datetime(2026, 11, 16, 14, tzinfo=UTC)
BETWEEN = {"since": SINCE, "until": UNTIL}


async def test_rows_of_every_page_come_one_after_the_other(sdk: Sdk, tenant: Tenant) -> None:
    link = tenant.gateway.node.platform.connection
    rows = [results.latency(AT + hour * HOUR, queue) for hour in range(4) for queue in ("a", "b")]
    await publish(link, tenant.id, "latency", "20261116", "hour", rows)
    found = await sdk("insights.latency", **BETWEEN, page_size=3)
    assert [(row.time, row.queue) for row in found] == [(f"2026-11-16T{10 + n // 2}:00:00Z", "ab"[n % 2]) for n in range(8)]
    assert found[0] == LatencyRow(
        time="2026-11-16T10:00:00Z", queue="a", phase="wait", count=3, p50=10, p95=20, p99=30.5, max=31, mean=12.25
    )
    assert [row.queue for row in await sdk("insights.latency", **BETWEEN, queue="b")] == ["b"] * 4
    page = await sdk("insights.latency_page", **BETWEEN, page_size=3)
    assert (page.computed_at, page.batch, page.grain, page.dropped) == ("2026-11-16T12:00:04Z", 1, "hour", 0)
    assert (page.since, page.until) == ("2026-11-16T10:00:00.000Z", "2026-11-16T14:00:00.000Z")
    rest = await sdk("insights.latency_page", page_size=10, cursor=page.next_cursor)
    assert ([*page.items, *rest.items], rest.next_cursor) == (found, None)


async def test_each_report_has_its_rows(sdk: Sdk, tenant: Tenant) -> None:
    link = tenant.gateway.node.platform.connection

    async def store(report: str, row: dict[str, object]) -> None:
        await publish(link, tenant.id, report, "20261116", "day", [row])

    day = {"since": "2026-11-16T00:00:00Z", "until": "2026-11-17T00:00:00Z", "grain": "day"}
    midnight = int(datetime(2026, 11, 16, tzinfo=UTC).timestamp() * 1000)
    await store("usage", results.usage(midnight, published=5, storageByteHours=2.25))
    await store("dead-letters", results.dead_letters(midnight, reason="no route"))
    await store("sessions", results.sessions(midnight, expired=3))
    await store("backlog", results.backlog(midnight, "q1"))
    for name in ("usage", "dead_letters", "sessions", "backlog"):
        rows = await sdk(f"insights.{name}", **day)
        page = await sdk(f"insights.{name}_page", **day)
        assert (page.items, page.report, page.next_cursor) == (rows, name.replace("_", "-"), None)
    [usage] = await sdk("insights.usage", **day)
    assert (usage.published, usage.storage_byte_hours, (await sdk("insights.usage_page", **day)).batch) == (5, 2.25, 1)
    [dead] = await sdk("insights.dead_letters", **day)
    assert (dead.reason, dead.count, dead.first_attempt, dead.last_at) == ("no route", 2, 1, "2026-11-16T00:00:00Z")
    assert len((await sdk("insights.dead_letters_page", **day, queue="orders")).items) == 1
    [sessions] = await sdk("insights.sessions", **day)
    assert (sessions.expired, (await sdk("insights.sessions_page", **day)).grain) == (3, "day")
    [backlog] = await sdk("insights.backlog", **day)
    assert (backlog.queue, backlog.ready, backlog.oldest_age_ms_max) == ("q1", 2.5, 1500)
    assert (await sdk("insights.backlog_page", **day, queue="other")).items == []


async def test_each_report_of_commands_has_its_rows(sdk: Sdk, tenant: Tenant) -> None:
    link = tenant.gateway.node.platform.connection
    for report in (results.commands, results.fairness, results.skew, results.limits):
        rows = [report(AT, service) for service in ("one", "two")]
        await publish(link, tenant.id, report.__name__, "20261116", "hour", rows)
    await publish(link, tenant.id, "telemetry", "20261116", "hour", [results.telemetry(AT, oldestAgeMsMax=5000)])
    one, two = await sdk("insights.commands", **BETWEEN, page_size=1)
    assert (one.service, two.service, one.peer, one.count, one.p50) == ("one", "two", "globex/bot", 7, 2.5)
    page = await sdk("insights.commands_page", **BETWEEN, service="two")
    assert (page.report, page.items, page.next_cursor) == ("commands", [two], None)
    [fair] = await sdk("insights.fairness", **BETWEEN, service="one")
    assert (fair.peer, fair.dispatched, fair.share, fair.bans, fair.banned_until) == ("acme/shop", 8, 0.8, 0, None)
    assert len((await sdk("insights.fairness_page", **BETWEEN)).items) == 2
    [clock] = await sdk("insights.skew", **BETWEEN, service="two")
    assert (clock.samples, clock.p50, clock.near_limit, clock.window_seconds) == (20, 10.5, 0.05, 60)
    assert (await sdk("insights.skew_page", **BETWEEN, service="two")).items == [clock]
    [limit] = await sdk("insights.limits", **BETWEEN, service="one")
    assert (limit.command, limit.used, limit.max, limit.usage, limit.refused) == ("send", 5, 10, 0.5, 3)
    assert (await sdk("insights.limits_page", **BETWEEN, service="three")).items == []
    [unread] = await sdk("insights.telemetry", **BETWEEN)
    assert (unread.emitted, unread.delivered, unread.waiting_max, unread.oldest_age_ms_max) == (40, None, 7, 5000)
    page = await sdk("insights.telemetry_page", **BETWEEN)
    assert (page.items, page.batch, page.grain) == ([unread], 1, "hour")


async def test_health_is_the_worst_first(sdk: Sdk, tenant: Tenant) -> None:
    rows = [results.health("a"), results.health("b", "unhealthy", problems=["old"]), results.health("c", "unknown")]
    await publish(tenant.gateway.node.platform.connection, tenant.id, "health", "now", "all", rows, batch="x-7")
    found = await sdk("insights.health", page_size=1)
    assert [(row.queue, row.status, row.problems) for row in found] == [
        ("b", "unhealthy", ["old"]),
        ("c", "unknown", []),
        ("a", "healthy", []),
    ]
    page = await sdk("insights.health_page", queue="a")
    assert (page.items, page.batch, page.report) == ([found[2]], "x-7", "health")


async def test_nothing_computed_is_no_error(sdk: Sdk) -> None:
    assert await sdk("insights.usage") == []
    page = await sdk("insights.usage_page")
    assert (page.computed_at, page.batch, page.items, page.grain) == (None, None, [], "hour")


async def test_a_range_that_is_too_long_is_refused(sdk: Sdk) -> None:
    with pytest.raises(InvalidParameter, match="grain=hour"):
        await sdk("insights.usage", since="2026-11-01T00:00:00Z", until="2026-11-16T00:00:00Z", grain="minute")


async def test_a_key_kept_to_some_queues_has_no_report_of_the_whole(kind: str, tenant: Tenant) -> None:
    narrow = await tenant.another_key(allowed_queues=("orders",))
    async with opened(kind, tenant.client.url, narrow.key) as sdk:
        with pytest.raises(Forbidden, match="whole tenant"):
            await sdk("insights.sessions")


async def test_the_platform_sees_the_pipeline(platform: Sdk, sdk: Sdk, gateway: Gateway) -> None:
    link = gateway.node.platform.connection
    await results.publish_pipeline_status(
        link, now_ms() - MINUTE, [{"stream": "AUDIT", "sequence": 0, "lastSequence": 0, "lag": 0}]
    )
    found = await platform("pipeline.status")
    assert isinstance(found, PipelineStatus)
    assert (found.state, found.batch, found.period, found.quarantined) == ("running", 4181, 60, {"no-json": 2})
    assert found.age is not None and 55 < found.age < 120 and found.streams[0].stream == "AUDIT"
    with pytest.raises(Forbidden):
        await sdk("pipeline.status")


def test_a_day_is_written_as_subjects_have_it() -> None:
    assert day_of(AT + DAY) == "20261117"
