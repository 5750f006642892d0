"""Load tests of a running node: real requests to its own port."""

from typing import Any

import pytest

from postroad.api.loadtests import NewLoadTest
from postroad.api.tasks import Progress, TaskState
from postroad.container import Role
from postroad.kernel.identity import Scope
from postroad.kernel.ids import new_id
from postroad.loadtests.capability import LoadTestsCapability
from postroad.loadtests.rules import LOAD_TEST
from postroad.tasks.rules import TaskRecord
from tests.gateway import Client, Gateway, Tenant, gateway_settings, running_gateway
from tests.live_state.test_live import live
from tests.waiting import eventually

pytestmark = pytest.mark.engine


async def start(client: Client, **wanted: object) -> dict[str, Any]:
    async def started() -> dict[str, Any] | None:
        answer = await client.post("/v1/loadtests", wanted)
        if answer.status == 409:  # the test before has not ended
            return None
        found: dict[str, Any] = answer.ok(202)
        return found

    found = await eventually(started, 60)
    assert isinstance(found, dict)
    return found


async def ended(client: Client, test: str) -> dict[str, Any]:
    async def is_ended() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(f"/v1/loadtests/{test}")).ok()
        return found if found["endedAt"] else None

    found = await eventually(is_ended, 60)
    assert isinstance(found, dict)
    return found


async def is_clean(tenant: Tenant) -> bool:
    queues = (await tenant.client.get("/v1/queues")).ok()["queues"]
    keys = (await tenant.client.get("/api/control/keys")).ok()["keys"]
    return not any(one["name"].startswith(("loadtest-", "load test")) for one in (*queues, *keys))


async def test_a_test_publishes_consumes_and_leaves_nothing(node: Gateway, tenant: Tenant) -> None:
    test = await start(tenant.client, ratePerSecond=50, seconds=2, publishers=4, consumers=2, payloadBytes=300)
    assert test["state"] == "queued" and test["points"] == [] and test["ratePerSecond"] == 50
    assert test["queue"].startswith("loadtest-")
    found = await ended(tenant.client, test["id"])
    assert (found["state"], found["error"]) == ("done", None)
    totals, points = found["totals"], found["points"]
    count = totals["published"]  # fewer than 100 on a machine that is too busy for the rate
    assert 0 < count == totals["consumed"] <= 100 and totals["errors"] == {}
    assert [point["second"] for point in points] == list(range(len(points)))
    assert sum(point["published"] for point in points) == sum(point["consumed"] for point in points) == count
    assert [point["requested"] for point in points[:3]][:2] == [50, 50]
    assert 0 < totals["p50Ms"] <= totals["p95Ms"] <= totals["p99Ms"] <= totals["maxMs"]
    assert "1 gateway worker" in found["environment"]
    await eventually(lambda: is_clean(tenant))
    [listed] = (await tenant.client.get("/v1/loadtests")).ok()["loadtests"]
    assert listed["id"] == test["id"] and "points" not in listed and listed["latest"] == points[-1]
    task = (await tenant.client.get(f"/v1/tasks/{test['id']}")).ok()
    assert (task["kind"], task["progress"]["moved"]) == ("loadtest", count)

    async def events() -> bool:
        found = [one for one in await tenant.events("TELEMETRY") if one["event"].startswith("loadtest.")]
        return [one["event"] for one in found] == ["loadtest.started", "loadtest.ended"] and found[1]["published"] == count

    await eventually(events)
    actions = [one["action"] for one in (await tenant.client.get("/api/control/audit")).ok()["entries"]]
    assert "loadtest.start" in actions


async def test_a_test_is_stopped(tenant: Tenant) -> None:
    test = await start(tenant.client, ratePerSecond=20, seconds=20)
    await eventually(lambda: _has_points(tenant, test["id"]), 30)
    (await tenant.client.delete(f"/v1/loadtests/{test['id']}")).ok(202)
    found = await ended(tenant.client, test["id"])
    assert found["state"] == "cancelled" and 0 < found["totals"]["published"] < 400
    await eventually(lambda: is_clean(tenant))
    (await tenant.client.delete(f"/v1/loadtests/{test['id']}")).ok(202)


async def _has_points(tenant: Tenant, test: str) -> bool:
    return bool((await tenant.client.get(f"/v1/loadtests/{test}")).ok()["points"])


async def test_messages_of_a_test_on_a_named_queue_stay(tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    test = await start(tenant.client, queue="orders", ratePerSecond=20, seconds=1, consumers=0)
    found = await ended(tenant.client, test["id"])
    assert 0 < found["totals"]["published"] <= 20 and found["queue"] == "orders"
    assert (await tenant.stats(queue))["ready"] == found["totals"]["published"]
    [message] = await tenant.pull(queue)
    assert message["payload"]["loadTest"] == test["id"]
    await eventually(lambda: is_clean(tenant))


async def test_as_fast_as_possible_stays_within_the_limit(tenant: Tenant) -> None:
    test = await start(tenant.client, seconds=2)
    found = await ended(tenant.client, test["id"])
    assert found["ratePerSecond"] == 400 and 0 < found["totals"]["published"] <= 800
    assert found["points"][0]["requested"] is None


async def test_one_test_runs_at_a_time(node: Gateway, tenant: Tenant) -> None:
    test = await start(tenant.client, ratePerSecond=5, seconds=20)
    other = await node.tenant()
    problem = (await other.client.post("/v1/loadtests", {})).problem(409, "load-test-running")
    assert tenant.id not in problem["detail"]
    (await other.client.get(f"/v1/loadtests/{test['id']}")).problem(404, "load-test-not-found")
    (await other.client.delete(f"/v1/loadtests/{test['id']}")).problem(404, "load-test-not-found")
    assert (await other.client.get("/v1/loadtests")).ok()["loadtests"] == []
    (await tenant.client.delete(f"/v1/loadtests/{test['id']}")).ok(202)
    await ended(tenant.client, test["id"])


async def test_requests_over_the_limits_are_refused(tenant: Tenant) -> None:
    for body, path in (
        ({"ratePerSecond": 401}, "$.ratePerSecond"),
        ({"seconds": 21}, "$.seconds"),
        ({"consumers": 5}, "$.consumers"),
    ):
        problem = (await tenant.client.post("/v1/loadtests", body)).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == path
    (await tenant.client.post("/v1/loadtests", {"queue": "missing", "consumers": 0})).problem(404, "queue-not-found")
    (await tenant.client.post("/v1/loadtests", {"queue": "a b", "consumers": 0})).problem(422, "invalid-body")
    assert (await tenant.client.get("/v1/loadtests/limits")).ok()["ratePerSecond"] == 400


async def test_a_restricted_key_tests_its_own_queues_only(tenant: Tenant) -> None:
    await tenant.queue("orders")
    narrow = await tenant.another_key(allowed_queues=("emails",))
    (await narrow.client.post("/v1/loadtests", {})).problem(403, "forbidden")
    (await narrow.client.post("/v1/loadtests", {"queue": "orders", "consumers": 0})).problem(403, "forbidden")
    reader = await tenant.another_key((Scope.READ,))
    (await reader.client.post("/v1/loadtests", {})).problem(403, "forbidden")


async def test_a_test_ends_with_the_key_that_started_it(tenant: Tenant) -> None:
    starter = await tenant.another_key()
    test = await start(starter.client, ratePerSecond=20, seconds=20)
    await eventually(lambda: _has_points(tenant, test["id"]), 30)
    (await tenant.client.patch(f"/api/control/keys/{starter.record.id}", {"enabled": False})).ok()
    found = await ended(tenant.client, test["id"])
    assert found["state"] == "failed" and "key that started the test" in found["error"]
    await eventually(lambda: is_clean(tenant))


async def test_an_interrupted_test_fails_and_is_cleaned_up(node: Gateway, tenant: Tenant) -> None:
    """As after a kill of the process that ran it: its task has a position, and its queue and key are there."""
    platform, record = node.node.platform, _task(tenant, position=3)
    runner = platform.use(LoadTestsCapability).runner
    await runner._add_key(record, NewLoadTest(seconds=5), f"loadtest-{record.id[-12:]}")
    await tenant.queue(f"loadtest-{record.id[-12:]}")
    await platform.tasks.table.create(record.key, record)
    found = await ended(tenant.client, record.id)
    assert found["state"] == "failed" and "interrupted" in found["error"]
    await eventually(lambda: is_clean(tenant))


async def test_what_a_cancelled_test_left_is_removed_later(node: Gateway, tenant: Tenant) -> None:
    """The task was cancelled while no process ran it: no handler cleans up."""
    record = _task(tenant, position=3, state=TaskState.CANCELLED)
    await tenant.queue(f"loadtest-{record.id[-12:]}")
    await node.node.platform.tasks.table.create(record.key, record)
    await eventually(lambda: is_clean(tenant), 30)


def _task(tenant: Tenant, **more: Any) -> TaskRecord:
    return TaskRecord(
        id=new_id(),
        tenant=tenant.id,
        kind=LOAD_TEST,
        target="loadtest-",
        wanted={"seconds": 5},
        progress=Progress(total=5),
        created_by=tenant.record.id,
        created_at_ms=1,
        updated_at_ms=1,
        **more,
    )


async def test_the_live_state_has_the_last_second(tenant: Tenant) -> None:
    async with live(tenant.client, "loadtests") as state:
        assert state.sections["loadtests"] == {}
        test = await start(tenant.client, ratePerSecond=20, seconds=2)
        rows = state.sections["loadtests"]
        await state.until(lambda: rows.get(test["id"], {}).get("state") == "done", 60)
        assert rows[test["id"]]["latest"]["second"] >= 1 and 0 < rows[test["id"]]["totals"]["published"] <= 40


async def test_an_installation_that_does_not_listen_on_loopback_refuses(engine_url: str, node: Gateway, tenant: Tenant) -> None:
    async with running_gateway(gateway_settings(engine_url, loadtests="off"), Role.GATEWAY) as other:
        client = other.with_key(tenant.key)
        (await client.post("/v1/loadtests", {})).problem(403, "load-tests-disabled")
        assert (await client.get("/v1/loadtests/limits")).ok()["enabled"] is False
