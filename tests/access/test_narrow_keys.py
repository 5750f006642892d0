"""A key that is restricted to some queues sees and uses these only."""

import asyncio
from typing import Any

import pytest

from tests.access.control import STREAM, WHOAMI
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


@pytest.fixture
async def narrow(tenant: Tenant) -> Tenant:
    """A key for `orders.*` of a tenant that has other queues, too."""
    for name in ("invoices", "orders.eu", "orders.us", "reorders.eu"):
        await tenant.queue(name)
    return await tenant.another_key(allowed_queues=("orders.*",))


async def test_it_lists_its_queues_only(narrow: Tenant) -> None:
    listed = (await narrow.client.get("/v1/queues")).ok()
    assert [queue["name"] for queue in listed["queues"]] == ["orders.eu", "orders.us"]
    first = (await narrow.client.get("/v1/queues?limit=1")).ok()
    assert [queue["name"] for queue in first["queues"]] == ["orders.eu"]
    second = (await narrow.client.get(f"/v1/queues?limit=1&cursor={first['nextCursor']}")).ok()
    assert ([queue["name"] for queue in second["queues"]], second["nextCursor"]) == (["orders.us"], None)


async def test_it_uses_its_queues(narrow: Tenant) -> None:
    (await narrow.client.put("/v1/queues/orders.new")).ok(201)
    queue = "/v1/queues/orders.eu"
    await narrow.publish(queue, 1)
    [message] = await narrow.pull(queue)
    assert (await narrow.ack(queue, message["receiptId"])).ok() == {"ok": True}
    assert (await narrow.client.get(queue)).status == 200
    assert (await narrow.client.delete("/v1/queues/orders.new")).status == 204


@pytest.mark.parametrize("name", ["invoices", "reorders.eu", "orders", "missing", "orders%2Aeu"])
async def test_other_queues_are_forbidden_whether_they_exist_or_not(narrow: Tenant, name: str) -> None:
    queue = f"/v1/queues/{name}"
    for call in (
        narrow.client.get(queue),
        narrow.client.put(queue),
        narrow.client.delete(queue),
        narrow.client.post(f"{queue}/messages", {"payload": 1}),
        narrow.client.post(f"{queue}/messages/batch", {"messages": [{"payload": 1}]}),
        narrow.client.post(f"{queue}/pull", {}),
        narrow.client.post(f"{queue}/ack", {"receiptId": "x"}),
    ):
        (await call).problem(403, "forbidden")


async def test_publishing_elsewhere_does_not_create_a_queue(gateway: Gateway) -> None:
    tenant = await gateway.tenant(auto_create_queues=True)
    narrow = await tenant.another_key(allowed_queues=("orders.*",))
    (await narrow.client.post("/v1/queues/invoices/messages", {"payload": 1})).problem(403, "forbidden")
    assert (await narrow.client.post("/v1/queues/orders.eu/messages", {"payload": 1})).status == 201
    assert [queue["name"] for queue in (await tenant.client.get("/v1/queues")).ok()["queues"]] == ["orders.eu"]


async def test_it_sees_the_events_of_its_queues_only(tenant: Tenant, narrow: Tenant) -> None:
    async with narrow.client.events(f"{STREAM}?events=job.*") as reader:
        for queue in ("invoices", "orders.eu", "reorders.eu", "orders.us"):
            await tenant.publish(f"/v1/queues/{queue}", 1)
        events = await reader.take(2)
        assert [event.json["queue"] for event in events] == ["orders.eu", "orders.us"]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.next()


async def test_a_key_without_queues_can_use_none(tenant: Tenant) -> None:
    await tenant.queue("orders")
    none = await tenant.another_key(allowed_queues=())
    assert (await none.client.get("/v1/queues")).ok()["queues"] == []
    (await none.client.get("/v1/queues/orders")).problem(403, "forbidden")


async def test_restrictions_of_topics_and_streams_do_not_restrict_queues(tenant: Tenant) -> None:
    await tenant.queue("orders")
    key = await tenant.another_key(allowed_topics=("x",), allowed_streams=())
    assert (await key.client.get("/v1/queues/orders")).status == 200


async def test_whoami_shows_the_restrictions(narrow: Tenant) -> None:
    me = (await narrow.client.get(WHOAMI)).ok()
    assert (me["allowedQueues"], me["allowedTopics"], me["allowedStreams"]) == (["orders.*"], ["*"], ["*"])


async def banned(tenant: Tenant, service: str) -> None:
    """A service with a ban, which raises an alert."""
    (await tenant.client.put(f"/v1/services/{service}")).ok(201)
    (await tenant.client.put(f"/v1/routes/{service}/ship", {"queue": "q"})).ok(201)
    ban = {"source": service, "kind": "warm", "target": service, "command": "ship", "reason": "r"}
    (await tenant.client.post("/v1/bans", ban)).ok(201)


@pytest.mark.usefixtures("control")
async def test_it_sees_the_alerts_of_its_services_only(tenant: Tenant) -> None:
    await tenant.queue("q")
    for service in ("orders", "billing"):
        await banned(tenant, service)

    async def alerts() -> list[Any]:
        found = (await tenant.client.get("/v1/alerts")).ok()["alerts"]
        return found if len(found) == 2 else []

    by_group = {one["group"]: one["id"] for one in await eventually(alerts)}
    own, other = by_group[f"{tenant.id}/orders"], by_group[f"{tenant.id}/billing"]
    narrow = (await tenant.another_key(allowed_services=("orders",))).client
    assert [one["id"] for one in (await narrow.get("/v1/alerts")).ok()["alerts"]] == [own]
    assert (await narrow.get(f"/v1/alerts/{own}")).ok()["id"] == own
    (await narrow.post(f"/v1/alerts/{own}/ack")).ok()
    for call in (narrow.get(f"/v1/alerts/{other}"), narrow.post(f"/v1/alerts/{other}/ack")):
        (await call).problem(404, "alert-not-found")
    (await narrow.post(f"/v1/alerts/{other}/resolve")).problem(404, "alert-not-found")
    assert (await tenant.client.get(f"/v1/alerts/{other}")).ok()["status"] == "open"


async def test_replays_and_destinations_of_alerts_need_a_key_for_the_whole_tenant(tenant: Tenant, narrow: Tenant) -> None:
    """They carry dead letters and events of all queues."""
    replay = {"from": "dead-letters", "queue": "invoices", "reason": "r", "dryRun": True}
    stored = (await tenant.client.post("/v1/replays", replay)).ok(202)["id"]
    for call in (
        narrow.client.post("/v1/replays", replay),
        narrow.client.get("/v1/replays"),
        narrow.client.post(f"/v1/replays/{stored}/resume"),
        narrow.client.put("/v1/alert-rules/all", {"events": "*"}),
        narrow.client.put("/v1/alert-channels/mine", {"kind": "webhook", "url": "https://example.com/"}),
        narrow.client.get("/v1/alert-channels"),
    ):
        assert "whole tenant" in (await call).problem(403, "forbidden")["detail"]
    assert (await narrow.client.get("/v1/alert-rules")).ok()["rules"]


async def test_it_does_not_see_the_tasks_of_replays(tenant: Tenant, narrow: Tenant) -> None:
    replay = {"from": "dead-letters", "queue": "orders.eu", "reason": "r"}
    (await tenant.client.post("/v1/replays", replay)).ok(202)
    [task] = (await tenant.client.get("/v1/tasks")).ok()["tasks"]
    assert (await narrow.client.get("/v1/tasks")).ok()["tasks"] == []
    (await narrow.client.delete(f"/v1/tasks/{task['id']}")).problem(404, "task-not-found")
