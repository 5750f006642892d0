"""Reports over HTTP, of results that are published as the pipeline does it."""

from collections.abc import Callable
from typing import Any

import pytest

from postroad.api.insights import Report
from postroad.api.reports.usage import REPORT as USAGE
from postroad.insights import metrics, service, store
from postroad.insights.results import Results, read_results
from postroad.insights.rules import Part
from postroad.insights.store import ResultsStore
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.identity import Scope
from tests.gateway import Gateway, ShiftedClock, Tenant
from tests.insights import results
from tests.insights.results import (
    DAY,
    HOUR,
    MINUTE,
    backlog,
    day_of,
    dead_letters,
    health,
    latency,
    publish,
    put,
    sessions,
    usage,
)

NOON = 1_794_830_400_000  # 2026-11-16T12:00:00Z
MIDNIGHT = NOON - 12 * HOUR
TODAY = "20261116"
OVER_TIME = ("usage", "latency", "dead-letters", "sessions", "backlog")
ROW: dict[str, Callable[..., dict[str, Any]]] = {
    "usage": usage,
    "latency": latency,
    "dead-letters": dead_letters,
    "sessions": sessions,
    "backlog": backlog,
}


def asked(report: str, since: int = NOON, until: int = NOON + 4 * HOUR, grain: str = "hour", **more: object) -> str:
    query = {"from": rfc3339(since), "to": rfc3339(until), "grain": grain, **more}
    return f"/v1/insights/{report}?" + "&".join(f"{name}={value}" for name, value in query.items())


async def read(tenant: Tenant, report: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(asked(report, **more))).ok()
    return found


async def all_pages(tenant: Tenant, report: str, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    path = asked(report, **more)
    cursor = ""
    for _ in range(1000):
        page = (await tenant.client.get(path + cursor)).ok()
        found += page["items"]
        if page["nextCursor"] is None:
            return found
        cursor = f"&cursor={page['nextCursor']}"
    raise AssertionError("it does not end")


def whole(row: dict[str, Any]) -> dict[str, Any]:
    """As the API shows it: times to the second, if they are."""
    return {name: value.replace(".000Z", "Z") if isinstance(value, str) else value for name, value in row.items()}


# What is answered


@pytest.mark.parametrize("report", OVER_TIME)
async def test_a_report_has_the_rows_that_were_computed(tenant: Tenant, engine: Connection, report: str) -> None:
    row = ROW[report](NOON)
    await publish(engine, tenant.id, report, TODAY, "hour", [row], batch=4181, dropped=3)
    assert await read(tenant, report) == {
        "report": report,
        "grain": "hour",
        "from": "2026-11-16T12:00:00.000Z",
        "to": "2026-11-16T16:00:00.000Z",
        "computedAt": "2026-11-16T12:00:04Z",
        "asOf": None,
        "batch": 4181,
        "items": [whole(row)],
        "dropped": 3,
        "nextCursor": None,
    }


async def test_health_has_the_rows_that_were_computed(tenant: Tenant, engine: Connection) -> None:
    rows = [
        health("a"),
        health("z", "unhealthy", problems=["old", "growing"], expectedDrainSeconds=60, oldestAgeMs=130_000),
        health("m", "unknown", sampledAt=None, growthPerMinute=None),
        health("b", "unhealthy", problems=["unpolled"]),
    ]
    await publish(engine, tenant.id, "health", "now", "all", rows, batch="b-1")
    found = (await tenant.client.get("/v1/insights/health")).ok()
    assert found == {
        "report": "health",
        "computedAt": "2026-11-16T12:00:04Z",
        "asOf": None,
        "batch": "b-1",
        "items": [whole(rows[index]) for index in (3, 1, 2, 0)],
        "dropped": 0,
        "nextCursor": None,
    }
    assert [row["queue"] for row in (await tenant.client.get("/v1/insights/health?queue=m")).ok()["items"]] == ["m"]
    names, cursor = [], ""
    for _ in rows:
        page = (await tenant.client.get(f"/v1/insights/health?limit=1{cursor}")).ok()
        names += [row["queue"] for row in page["items"]]
        cursor = f"&cursor={page['nextCursor']}"
    assert names == ["b", "z", "m", "a"] and page["nextCursor"] is None


@pytest.mark.parametrize("report", [*OVER_TIME, "health"])
async def test_what_was_not_computed_yet_is_empty_and_says_so(tenant: Tenant, report: str) -> None:
    found = (await tenant.client.get(f"/v1/insights/{report}")).ok()
    assert (found["items"], found["computedAt"], found["batch"], found["nextCursor"]) == ([], None, None, None)


async def test_numbers_of_spark_and_fields_that_it_leaves_out(tenant: Tenant, engine: Connection) -> None:
    """A sum may come as 12.0; what is null is not written at all; what is not known here is not shown."""
    await publish(engine, tenant.id, "usage", TODAY, "hour", [usage(NOON, published=12.0, carbon=7)])
    [row] = (await read(tenant, "usage"))["items"]
    assert row["published"] == 12 and isinstance(row["published"], int) and "carbon" not in row
    await publish(engine, tenant.id, "backlog", TODAY, "hour", [{"time": rfc3339(NOON), "queue": "q", "ready": 1.5}])
    [row] = (await read(tenant, "backlog"))["items"]
    assert row == {
        "time": "2026-11-16T12:00:00Z",
        "queue": "q",
        "ready": 1.5,
        "readyMax": 0,
        "leased": 0,
        "retrying": 0,
        "delayed": 0,
        "dead": 0,
        "oldestAgeMsMax": None,
    }


async def test_a_newer_batch_takes_the_place_of_the_older_one_at_once(
    tenant: Tenant, engine: Connection, gateway: Gateway
) -> None:
    for batch, count in ((1, 3), (2, 5), (3, 4)):
        at = f"2026-11-16T12:00:0{batch}.500Z"
        await publish(engine, tenant.id, "latency", TODAY, "hour", [latency(NOON, count=count)], batch=batch, computedAt=at)
        for _ in range(2):  # read, and read again from the cache
            found = await read(tenant, "latency")
            assert ([row["count"] for row in found["items"]], found["batch"]) == ([count], batch)
            assert found["computedAt"].startswith(f"2026-11-16T12:00:0{batch}.5")


async def test_a_batch_that_is_sent_again_changes_nothing(tenant: Tenant, engine: Connection) -> None:
    for count in (1, 2):
        await publish(engine, tenant.id, "latency", TODAY, "hour", [latency(NOON, count=count)], batch=9)
    assert [row["count"] for row in (await read(tenant, "latency"))["items"]] == [1]


async def test_computed_at_is_that_of_the_newest_results_in_the_range(tenant: Tenant, engine: Connection) -> None:
    for day, at in (
        ("20261115", "2026-11-16T00:00:10Z"),
        ("20261116", "2026-11-16T09:00:00Z"),
        ("20261117", "2026-11-14T00:00:00Z"),
    ):
        await publish(engine, tenant.id, "usage", day, "day", [], batch=int(day), computedAt=at)
    found = await read(tenant, "usage", since=MIDNIGHT - DAY, until=MIDNIGHT + 2 * DAY, grain="day")
    assert (found["computedAt"], found["batch"]) == ("2026-11-16T09:00:00Z", 20261116)


# Which rows


async def test_rows_come_by_time_and_then_by_name_whatever_their_order_was(tenant: Tenant, engine: Connection) -> None:
    rows = [latency(NOON + hour * HOUR, queue, phase) for hour in (0, 1) for queue in "ab" for phase in ("processing", "wait")]
    await publish(engine, tenant.id, "latency", TODAY, "hour", rows[::-1])
    assert (await read(tenant, "latency"))["items"] == [whole(row) for row in rows]


async def test_rows_are_of_the_range_and_nothing_else(tenant: Tenant, engine: Connection) -> None:
    await publish(engine, tenant.id, "sessions", TODAY, "hour", [sessions(MIDNIGHT + hour * HOUR) for hour in range(24)])
    await publish(engine, tenant.id, "sessions", "20261115", "hour", [sessions(MIDNIGHT - HOUR), sessions(NOON)])
    found = await read(tenant, "sessions", since=MIDNIGHT - 90 * MINUTE, until=MIDNIGHT + 90 * MINUTE)
    assert [row["time"][8:13] for row in found["items"]] == ["15T23", "16T00", "16T01"]
    assert (found["from"], found["to"]) == ("2026-11-15T22:00:00.000Z", "2026-11-16T02:00:00.000Z")


@pytest.mark.parametrize(
    ("grain", "part", "unit"), [("day", "day", DAY), ("hour", "hour", HOUR), ("minute", "minute-12", MINUTE)]
)
async def test_each_grain_has_rows_of_its_own(tenant: Tenant, engine: Connection, grain: str, part: str, unit: int) -> None:
    for name, at in (("day", MIDNIGHT), ("hour", NOON), ("minute-12", NOON + MINUTE)):
        await publish(engine, tenant.id, "sessions", TODAY, name, [sessions(at, touched=len(name))])
    [row] = (await read(tenant, "sessions", since=NOON, until=NOON + 2 * MINUTE, grain=grain))["items"]
    assert row["touched"] == len(part)


async def test_the_last_day_by_the_hour_if_nothing_is_said(tenant: Tenant, engine: Connection, clock: ShiftedClock) -> None:
    clock.ahead_ms = NOON + 30 * MINUTE - now_ms()
    await publish(engine, tenant.id, "usage", TODAY, "hour", [usage(NOON), usage(NOON + HOUR)])
    await publish(engine, tenant.id, "usage", "20261115", "hour", [usage(NOON - DAY - HOUR), usage(NOON - DAY)])
    found = (await tenant.client.get("/v1/insights/usage")).ok()
    assert [row["time"] for row in found["items"]] == ["2026-11-15T12:00:00Z", "2026-11-16T12:00:00Z"]
    assert (found["grain"], found["from"], found["to"]) == ("hour", "2026-11-15T12:00:00.000Z", "2026-11-16T13:00:00.000Z")


async def test_one_queue_is_asked_for(tenant: Tenant, engine: Connection) -> None:
    for report in ("latency", "dead-letters", "backlog"):
        await publish(engine, tenant.id, report, TODAY, "hour", [ROW[report](NOON, queue) for queue in ("a", "b", "a.b")])
        found = await read(tenant, report, queue="a")
        assert [row["queue"] for row in found["items"]] == ["a"]
    for report in ("usage", "sessions"):
        (await tenant.client.get(asked(report, queue="a"))).problem(400, "invalid-parameter")


# Pages


@pytest.mark.parametrize("limit", [1, 3, 7, 1000])
async def test_pages_have_every_row_once(tenant: Tenant, engine: Connection, limit: int) -> None:
    rows = [
        dead_letters(MIDNIGHT + hour * HOUR, queue, reason)
        for hour in range(-3, 3)
        for queue in "ab"
        for reason in ("no route", "x" * 900)
    ]
    await publish(engine, tenant.id, "dead-letters", "20261115", "hour", rows[:12], dropped=2)
    await publish(engine, tenant.id, "dead-letters", TODAY, "hour", rows[12:], dropped=5)
    more: dict[str, Any] = {"since": MIDNIGHT - 4 * HOUR, "until": MIDNIGHT + 4 * HOUR, "limit": limit}
    assert await all_pages(tenant, "dead-letters", **more) == [whole(row) for row in rows]
    dropped, cursor = 0, ""
    while True:
        page = (await tenant.client.get(asked("dead-letters", **more) + cursor)).ok()
        dropped += page["dropped"]
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert dropped == 7


async def test_a_list_goes_on_in_the_range_that_it_began_with(tenant: Tenant, engine: Connection, clock: ShiftedClock) -> None:
    clock.ahead_ms = NOON + 30 * MINUTE - now_ms()
    await publish(engine, tenant.id, "usage", TODAY, "hour", [usage(NOON), usage(NOON + HOUR)])
    await publish(engine, tenant.id, "usage", "20261115", "hour", [usage(NOON - DAY)])
    first = (await tenant.client.get("/v1/insights/usage?limit=1")).ok()
    clock.ahead_ms += 2 * HOUR
    second = (await tenant.client.get(f"/v1/insights/usage?limit=9&cursor={first['nextCursor']}")).ok()
    assert [row["time"] for row in second["items"]] == ["2026-11-16T12:00:00Z"]
    assert (second["from"], second["to"], second["grain"]) == (first["from"], first["to"], first["grain"])


async def test_a_page_that_would_cost_too_much_ends_early(
    tenant: Tenant, engine: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_PAGE_BYTES_MAX", 500)
    monkeypatch.setattr(service, "_CONCURRENT_READS", 2)
    for day in range(8):
        at = MIDNIGHT + day * DAY
        await publish(engine, tenant.id, "latency", day_of(at), "day", [latency(at, "a"), latency(at, "b")])
    more = {"since": MIDNIGHT, "until": MIDNIGHT + 8 * DAY, "grain": "day"}
    page = await read(tenant, "latency", **more, queue="b")
    assert 1 <= len(page["items"]) < 8 and page["nextCursor"]
    assert len(await all_pages(tenant, "latency", **more, queue="b")) == 8
    empty = await read(tenant, "latency", **more, queue="none")
    assert empty["items"] == [] and empty["nextCursor"]
    assert await all_pages(tenant, "latency", **more, queue="none") == []


async def test_rows_are_read_anew_only_when_there_are_new_ones(
    engine: Connection, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_times: list[bytes] = []

    def counted(payload: bytes, report: Report[Any], of: str) -> Results:
        read_times.append(payload)
        return read_results(payload, report, of)

    monkeypatch.setattr(store, "read_results", counted)
    results_store = ResultsStore(engine)
    await publish(engine, tenant.id, "usage", TODAY, "day", [usage(MIDNIGHT)])
    for _ in range(3):
        await results_store.read(tenant.id, USAGE, [Part(TODAY, "day", 0, 0)])
    assert len(read_times) == 1
    await publish(engine, tenant.id, "usage", TODAY, "day", [usage(MIDNIGHT)], batch=2)
    await results_store.read(tenant.id, USAGE, [Part(TODAY, "day", 0, 0)])
    assert len(read_times) == 2
    monkeypatch.setattr(store, "CACHE_BYTES_MAX", 900)
    for day in range(5):
        await publish(engine, tenant.id, "usage", day_of(MIDNIGHT + day * DAY), "day", [usage(MIDNIGHT + day * DAY)], batch=3)
        await results_store.read(tenant.id, USAGE, [Part(day_of(MIDNIGHT + day * DAY), "day", 0, 0)])
    assert 0 < results_store._cached_bytes <= 900
    assert results_store._cached_bytes == sum(one.size for one in results_store._cache.values())


# What is asked wrongly


@pytest.mark.parametrize(
    ("report", "query"),
    [
        ("usage", "from=yesterday"),
        ("usage", "from=2026-11-16"),
        ("usage", "to=2026-11-16T00:00:00"),
        ("usage", "grain=week"),
        ("usage", "limit=0"),
        ("usage", "limit=1001"),
        ("usage", "cursor=x"),
        ("usage", "cursor=%21"),
        ("usage", "unknown=1"),
        ("latency", "queue="),
        ("latency", "from=2026-11-16T00:00:00Z&to=2026-11-16T00:00:00Z"),
        ("latency", "from=2026-11-01T00:00:00Z&to=2026-11-16T00:00:00Z&grain=minute"),
        ("latency", "from=2026-01-01T00:00:00Z&to=2026-11-16T00:00:00Z&grain=hour"),
        ("latency", "from=2020-01-01T00:00:00Z&to=2026-11-16T00:00:00Z"),
        ("latency", "from=0001-01-01T00:00:00Z&to=9999-12-31T23:59:59Z"),
        ("health", "from=2026-11-16T00:00:00Z"),
        ("health", "grain=day"),
        ("health", "cursor=x"),
    ],
)
async def test_what_is_asked_wrongly_is_400(tenant: Tenant, report: str, query: str) -> None:
    (await tenant.client.get(f"/v1/insights/{report}?{query}")).problem(400, "invalid-parameter")


async def test_a_cursor_is_for_the_kind_of_report_that_gave_it_out(tenant: Tenant, engine: Connection) -> None:
    await publish(engine, tenant.id, "health", "now", "all", [health("a"), health("b")])
    cursor = (await tenant.client.get("/v1/insights/health?limit=1")).ok()["nextCursor"]
    (await tenant.client.get(f"/v1/insights/latency?cursor={cursor}")).problem(400, "invalid-parameter")


async def test_times_at_the_edges_of_what_can_be_written_are_fine(tenant: Tenant) -> None:
    for query in (
        "from=9999-12-31T00:00:00Z&to=9999-12-31T23:59:59Z",
        "to=0001-01-02T00:00:00Z",
        "from=1970-01-01T00:00:00Z&to=1970-01-02T00:00:00Z",
    ):
        answer = await tenant.client.get(f"/v1/insights/usage?{query}")
        assert answer.status in (200, 400), answer


# Who sees what


async def test_a_tenants_results_are_its_own(tenant: Tenant, gateway: Gateway, engine: Connection) -> None:
    other = await gateway.tenant()
    for report in OVER_TIME:
        await publish(engine, tenant.id, report, TODAY, "hour", [ROW[report](NOON)])
    await publish(engine, tenant.id, "health", "now", "all", [health()])
    for report in OVER_TIME:
        assert len((await read(tenant, report))["items"]) == 1
        found = await read(other, report)
        assert (found["items"], found["computedAt"]) == ([], None)
    assert (await other.client.get("/v1/insights/health")).ok()["items"] == []


async def test_results_that_say_they_are_anothers_are_not_shown(tenant: Tenant, engine: Connection) -> None:
    """Whose subject it is and who the body names must be the same."""
    await publish(engine, tenant.id, "latency", TODAY, "hour", [latency(NOON)], body={"tenant": "another"})
    await publish(engine, tenant.id, "backlog", TODAY, "hour", [backlog(NOON)], body={"report": "latency"})
    for report in ("latency", "backlog"):
        assert (await read(tenant, report))["items"] == []


async def test_a_key_kept_to_some_queues_sees_their_rows_alone(tenant: Tenant, engine: Connection) -> None:
    narrow = await tenant.another_key(allowed_queues=("orders.*",))
    for report in ("latency", "dead-letters", "backlog"):
        rows = [ROW[report](NOON, queue) for queue in ("invoices", "orders.eu", "orders.us", "reorders.x")]
        await publish(engine, tenant.id, report, TODAY, "hour", rows)
        assert [row["queue"] for row in await all_pages(narrow, report, limit=1)] == ["orders.eu", "orders.us"]
        assert (await read(narrow, report, queue="invoices"))["items"] == []
    await publish(engine, tenant.id, "health", "now", "all", [health("invoices"), health("orders.eu")])
    assert [row["queue"] for row in (await narrow.client.get("/v1/insights/health")).ok()["items"]] == ["orders.eu"]


@pytest.mark.parametrize("restrictions", [{"allowed_queues": ("a",)}, {"allowed_streams": ("a",)}, {"allowed_topics": ("a",)}])
async def test_a_restricted_key_may_not_read_reports_of_the_whole_tenant(tenant: Tenant, restrictions: dict[str, Any]) -> None:
    narrow = await tenant.another_key(**restrictions)
    for report in ("usage", "sessions"):
        (await narrow.client.get(f"/v1/insights/{report}")).problem(403, "forbidden")


async def test_reports_need_the_scope_read(tenant: Tenant) -> None:
    publisher = await tenant.another_key((Scope.PUBLISH,))
    (await publisher.client.get("/v1/insights/usage")).problem(403, "forbidden")


async def test_results_go_with_their_tenant(tenant: Tenant, gateway: Gateway, engine: Connection) -> None:
    other = await gateway.tenant()
    for one in (tenant, other):
        await publish(engine, one.id, "latency", TODAY, "hour", [latency(NOON)])
    await ResultsStore(engine).delete_all(tenant.id)
    assert (await read(tenant, "latency"))["items"] == []
    assert len((await read(other, "latency"))["items"]) == 1


# What is no result


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe\x00",
        b"[" * 5000,
        b'{"v":1,"report":"latency","tenant":"x","rows":"many","batch":1,"computedAt":"2026-11-16T12:00:00Z"}',
        b'{"v":2}',
    ],
    ids=range(9),
)
async def test_what_cannot_be_read_breaks_no_answer(tenant: Tenant, engine: Connection, body: bytes) -> None:
    before = metrics.unreadable._value.get()
    await publish(engine, tenant.id, "latency", TODAY, "hour", [latency(NOON)])
    await put(engine, f"insight.{tenant.id}.latency.20261115.hour", body)
    await put(engine, f"insight.{tenant.id}.health.now.all", body)
    found = await read(tenant, "latency", since=MIDNIGHT - DAY, until=NOON + HOUR)
    assert [row["time"] for row in found["items"]] == ["2026-11-16T12:00:00Z"]
    assert (await tenant.client.get("/v1/insights/health")).ok()["items"] == []
    assert metrics.unreadable._value.get() == before + 2


async def test_other_versions_and_times_that_are_none_are_left_out(tenant: Tenant, engine: Connection) -> None:
    await publish(engine, tenant.id, "latency", TODAY, "hour", [latency(NOON)], v=2)
    await publish(engine, tenant.id, "backlog", TODAY, "hour", [backlog(NOON)], computedAt="noon")
    for report in ("latency", "backlog"):
        assert (await read(tenant, report))["items"] == []


async def test_good_rows_beside_bad_ones_are_shown_and_the_bad_ones_counted(tenant: Tenant, engine: Connection) -> None:
    bad: list[Any] = [{**latency(NOON), "count": "many"}, {**latency(NOON), "time": "noon"}, {"queue": "q"}, 7, None]
    await publish(
        engine,
        tenant.id,
        "latency",
        TODAY,
        "hour",
        [*bad, latency(NOON, "good"), {**latency(NOON), "time": "2026-11-16T12:00:00"}],
    )
    found = await read(tenant, "latency")
    assert ([row["queue"] for row in found["items"]], found["dropped"]) == (["good"], 6)


def test_the_helpers_write_the_day_as_the_pipeline_does() -> None:
    assert (day_of(NOON), results.usage(NOON)["time"]) == (TODAY, "2026-11-16T12:00:00.000Z")
