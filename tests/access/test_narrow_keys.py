"""A key that is restricted to some queues sees and uses these only."""

import asyncio

import pytest

from tests.access.control import STREAM, WHOAMI
from tests.gateway import Gateway, Tenant


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
