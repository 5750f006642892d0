"""Schedules over HTTP, on the real engine."""

from datetime import UTC, datetime
from typing import Any

import pytest

from postroad.kernel.identity import Scope
from postroad.schedules.capability import SchedulesCapability
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually

NIGHTLY = {"queue": "q", "cron": "30 2 * * *", "timeZone": "Europe/Berlin", "payload": {"job": "backup"}, "headers": {"a": "b"}}


async def events(tenant: Tenant, *names: str) -> list[dict[str, Any]]:
    return [one for one in await tenant.events("TELEMETRY") if one["event"] in names]


async def test_a_schedule_is_created_shown_replaced_and_deleted(tenant: Tenant) -> None:
    await tenant.queue()
    created = (await tenant.client.put("/v1/schedules/nightly", NIGHTLY)).ok(201)
    assert {name: created[name] for name in NIGHTLY} == NIGHTLY
    assert (created["name"], created["state"], created["catchUp"], created["firedCount"]) == ("nightly", "active", "last", 0)
    assert datetime.fromisoformat(created["nextRunAt"]) > datetime.now(UTC)

    assert (await tenant.client.put("/v1/schedules/nightly", NIGHTLY)).ok() == created  # idempotent
    assert (await tenant.client.get("/v1/schedules/nightly")).ok() == created

    changed = (await tenant.client.put("/v1/schedules/nightly", {"queue": "q", "everyMs": 60_000})).ok()
    assert "cron" not in changed and changed["everyMs"] == 60_000 and changed["payload"] is None

    assert (await tenant.client.delete("/v1/schedules/nightly")).status == 204
    (await tenant.client.get("/v1/schedules/nightly")).problem(404, "schedule-not-found")
    (await tenant.client.delete("/v1/schedules/nightly")).problem(404, "schedule-not-found")
    names = ["schedule.created", "schedule.updated", "schedule.deleted"]

    async def recorded() -> bool:
        return [one["event"] for one in await events(tenant, *names)] == names

    await eventually(recorded)
    found = (await tenant.client.get("/api/control/audit?action=schedule.*")).ok()["entries"]
    assert [one["action"] for one in found] == ["schedule.delete", "schedule.update", "schedule.create"]
    assert "backup" not in str(found)


async def test_next_runs_are_shown_until_it_is_paused(tenant: Tenant) -> None:
    await tenant.queue()
    await tenant.client.put("/v1/schedules/s", {"queue": "q", "cron": "0 0 1 1 *", "endAt": "2030-06-01T00:00:00Z"})
    runs = (await tenant.client.get("/v1/schedules/s/next")).ok()["runs"]
    assert runs == [
        "2027-01-01T00:00:00.000Z",
        "2028-01-01T00:00:00.000Z",
        "2029-01-01T00:00:00.000Z",
        "2030-01-01T00:00:00.000Z",
    ]
    assert len((await tenant.client.get("/v1/schedules/s/next?count=2")).ok()["runs"]) == 2
    (await tenant.client.get("/v1/schedules/s/next?count=101")).problem(400, "invalid-parameter")

    for _ in range(2):
        paused = (await tenant.client.post("/v1/schedules/s/pause")).ok()
    assert paused["state"] == "paused" and "nextRunAt" not in paused
    assert (await tenant.client.get("/v1/schedules/s/next")).ok()["runs"] == []
    assert (await tenant.client.post("/v1/schedules/s/resume")).ok()["state"] == "active"


async def test_a_run_now_publishes_one_message(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.client.put("/v1/schedules/nightly", NIGHTLY)
    published = (await tenant.client.post("/v1/schedules/nightly/run")).ok(201)
    [message] = await tenant.pull(queue, 10)
    assert message["messageId"] == published["messageId"] and message["payload"] == {"job": "backup"}
    assert message["headers"]["postroad-schedule"] == "nightly"


async def test_schedules_are_listed_in_pages_and_by_queue(tenant: Tenant) -> None:
    for queue in ("q", "other"):
        await tenant.queue(queue)
    for index in range(5):
        queue = "other" if index == 3 else "q"
        (await tenant.client.put(f"/v1/schedules/s{index}", {"queue": queue, "cron": "@daily"})).ok(201)
    first = (await tenant.client.get("/v1/schedules?limit=2&queue=q")).ok()
    second = (await tenant.client.get(f"/v1/schedules?limit=2&queue=q&cursor={first['nextCursor']}")).ok()
    assert [one["name"] for one in first["schedules"] + second["schedules"]] == ["s0", "s1", "s2", "s4"]
    assert second["nextCursor"] is None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"queue": "q"}, 422, "invalid-body"),
        ({"queue": "q", "cron": "0 0 30 2 *"}, 422, "invalid-body"),
        ({"queue": "q", "cron": "x"}, 422, "invalid-body"),
        ({"queue": "q", "cron": "@daily", "timeZone": "Mars/Base"}, 422, "invalid-body"),
        ({"queue": "q", "everyMs": 10}, 422, "invalid-body"),
        ({"queue": "q", "cron": "@daily", "catchUp": "some"}, 422, "invalid-body"),
        ({"queue": "q", "cron": "@daily", "startAt": "2026-01-01T00:00:00"}, 422, "invalid-body"),
        ({"queue": "q", "cron": "@daily", "headers": {f"h{n}": "" for n in range(63)}}, 422, "invalid-body"),
        ({"queue": "q", "cron": "@daily", "payload": "x" * 70_000}, 413, "too-large"),
        ({"queue": "missing", "cron": "@daily"}, 404, "queue-not-found"),
    ],
)
async def test_invalid_settings_are_refused(tenant: Tenant, body: dict[str, Any], status: int, code: str) -> None:
    await tenant.queue()
    (await tenant.client.put("/v1/schedules/s", body)).problem(status, code)


async def test_a_name_is_checked(tenant: Tenant) -> None:
    await tenant.queue()
    (await tenant.client.put(f"/v1/schedules/{'x' * 81}", NIGHTLY)).problem(400, "invalid-parameter")
    (await tenant.client.get("/v1/schedules/a%20b")).problem(400, "invalid-parameter")


async def test_scopes_and_restrictions_to_queues_apply(tenant: Tenant, gateway: Gateway) -> None:
    for queue in ("q", "other"):
        await tenant.queue(queue)
    await tenant.client.put("/v1/schedules/s", {"queue": "other", "cron": "@daily"})
    reader = await tenant.another_key((Scope.READ, Scope.PUBLISH, Scope.WRITE))
    (await reader.client.put("/v1/schedules/mine", NIGHTLY)).problem(403, "forbidden")
    restricted = await tenant.another_key(allowed_queues=("q",))
    (await restricted.client.put("/v1/schedules/mine", {"queue": "other", "cron": "@daily"})).problem(403, "forbidden")
    (await restricted.client.put("/v1/schedules/s", NIGHTLY)).problem(403, "forbidden")
    for call in ("get", "delete"):
        (await getattr(restricted.client, call)("/v1/schedules/s")).problem(404, "schedule-not-found")
    for action in ("pause", "resume", "run"):
        (await restricted.client.post(f"/v1/schedules/s/{action}")).problem(404, "schedule-not-found")
    assert (await restricted.client.get("/v1/schedules")).ok()["schedules"] == []
    stranger = await gateway.tenant()
    (await stranger.client.get("/v1/schedules/s")).problem(404, "schedule-not-found")
    assert (await stranger.client.get("/v1/schedules")).ok()["schedules"] == []


async def test_a_deleted_tenant_has_no_schedules(tenant: Tenant, gateway: Gateway) -> None:
    await tenant.queue()
    await tenant.client.put("/v1/schedules/s", NIGHTLY)
    capability = gateway.node.platform.use(SchedulesCapability)
    await capability.delete_tenant(tenant.id)
    assert capability.table.count_under(f"{tenant.id}.") == 0


async def test_the_number_of_schedules_is_limited(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, schedules_max=1)) as gateway:
        tenant = await gateway.tenant(auto_create_queues=True)
        (await tenant.client.put("/v1/schedules/one", NIGHTLY)).ok(201)
        (await tenant.client.put("/v1/schedules/two", NIGHTLY)).problem(403, "forbidden")
        (await tenant.client.put("/v1/schedules/one", {**NIGHTLY, "cron": "@daily"})).ok()
