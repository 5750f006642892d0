"""Subscriptions of the type `sse`: stored selections that clients read live."""

from typing import Any

import msgspec
import pytest
from websockets.exceptions import InvalidStatus

from postroad.client import AsyncPostroad
from postroad.kernel.identity import Scope
from tests.gateway import Client, EventReader, Gateway, Tenant
from tests.subscriptions.topic_client import TopicClient
from tests.topics.socket_client import socket, socket_of

EU_LARGE = {"filter": ["orders.eu.*"], "contentFilter": {"payload": {"amount": {"gte": 100}}}}


async def subscribe(tenant: Tenant, **more: object) -> str:
    await TopicClient(tenant).create()
    made = (await tenant.client.post("/v1/topics/orders/subscriptions", {"delivery_type": "sse", **more})).ok(201)
    assert "secret" not in made
    subscription: str = made["id"]
    return subscription


async def expect(reader: EventReader, kind: str) -> dict[str, Any]:
    event = await reader.next(30)
    assert event is not None and event.event == kind, event
    data: dict[str, Any] = msgspec.json.decode(event.data)
    return data


def path(subscription: str, query: str = "") -> str:
    return f"/v1/subscriptions/{subscription}/stream{query}"


async def test_a_subscription_selects_by_subject_and_content(tenant: Tenant) -> None:
    subscription, topic = await subscribe(tenant, **EU_LARGE), TopicClient(tenant)
    await topic.publish("orders.eu.created", {"amount": 150})
    await topic.publish("orders.eu.created", {"amount": 50})
    async with tenant.client.events(path(subscription, "?fromSequence=1")) as reader:
        assert (await expect(reader, "message"))["sequence"] == 1
        assert (await expect(reader, "ready"))["sequence"] == 2
        await topic.publish("orders.us.created", {"amount": 150})
        await topic.publish("orders.eu.created", {"amount": 99})
        await topic.publish("orders.eu.paid", {"amount": 100})
        assert (await expect(reader, "message"))["sequence"] == 5
    async with tenant.client.events(path(subscription), {"Last-Event-ID": "1"}) as reader:
        assert (await expect(reader, "message"))["sequence"] == 5


async def test_nothing_is_delivered_and_the_status_says_so(tenant: Tenant, node: Gateway) -> None:
    subscription, topic = await subscribe(tenant), TopicClient(tenant)
    await topic.publish_many(3)
    status = (await tenant.client.get(f"/v1/subscriptions/{subscription}")).ok()["status"]
    assert f"Read live by clients, at {path(subscription)};" in status["summary"]
    assert (status["lag"], status["owner"]) == (0, None)
    client = tenant.client
    (await client.post(f"/v1/subscriptions/{subscription}/replay", {"fromSequence": 1})).problem(409, "precondition-failed")
    (await client.post(f"/v1/subscriptions/{subscription}/test", {})).problem(409, "precondition-failed")
    (await client.call("PATCH", f"/v1/subscriptions/{subscription}", {"maxDeliver": 3})).problem(422, "invalid-body")


async def test_a_changed_paused_or_deleted_subscription_ends_its_connections(tenant: Tenant) -> None:
    subscription, topic, client = await subscribe(tenant), TopicClient(tenant), tenant.client
    one = f"/v1/subscriptions/{subscription}"
    async with client.events(path(subscription)) as reader:
        await expect(reader, "ready")
        (await client.call("PATCH", one, {"filter": "wanted"})).ok()
        assert await reader.next(30) is None
        position = reader.last_event_id or ""
    await topic.publish("other")
    await topic.publish("wanted")
    async with client.events(path(subscription), {"Last-Event-ID": position}) as reader:
        assert (await expect(reader, "message"))["sequence"] == 2
        await expect(reader, "ready")
        (await client.post(f"{one}/pause")).ok()
        assert await reader.next(30) is None
    (await client.get(path(subscription))).problem(409, "precondition-failed")
    (await client.post(f"{one}/resume")).ok()
    async with client.events(path(subscription)) as reader:
        await expect(reader, "ready")
        (await client.delete(one)).ok(204)
        assert await reader.next(30) is None
    (await client.get(path(subscription))).problem(404, "subscription-not-found")


async def test_a_token_reads_its_subscription_only(tenant: Tenant, node: Gateway) -> None:
    subscription = await subscribe(tenant)
    made = (await tenant.client.post("/v1/topics/orders/subscriptions", {"delivery_type": "sse"})).ok(201)
    token = (await tenant.client.post("/v1/tokens", {"resource": f"subscription/{subscription}"})).ok(201)["token"]
    anonymous: Client = node.anonymous
    async with anonymous.events(path(subscription, f"?bearer={token}")) as reader:
        await expect(reader, "ready")
        await TopicClient(tenant).publish("a")
        assert (await expect(reader, "message"))["subject"] == "a"
    (await anonymous.get(path(made["id"], f"?bearer={token}"))).problem(401, "unauthenticated")
    (await anonymous.get(f"/v1/topics/orders/stream?bearer={token}")).problem(401, "unauthenticated")


async def test_other_tenants_and_other_types_are_refused(tenant: Tenant, node: Gateway) -> None:
    subscription = await subscribe(tenant)
    other = await node.tenant()
    (await other.client.get(path(subscription))).problem(404, "subscription-not-found")
    (await (await tenant.another_key((Scope.WRITE,))).client.get(path(subscription))).problem(403, "forbidden")
    pushed = await TopicClient(tenant).subscribe("https://example.com/hook")
    (await tenant.client.get(path(pushed["id"]))).problem(409, "precondition-failed")


@pytest.mark.parametrize("name", ["board"])
async def test_creating_it_again_returns_it(tenant: Tenant, name: str) -> None:
    subscription = await subscribe(tenant, name=name)
    again = await tenant.client.post("/v1/topics/orders/subscriptions", {"delivery_type": "sse", "name": name})
    assert again.ok(200)["id"] == subscription


async def test_the_client_follows_a_subscription(tenant: Tenant, node: Gateway) -> None:
    subscription = await subscribe(tenant, filter="a")
    await TopicClient(tenant).publish("a", {"n": 1})
    async with AsyncPostroad(node.url, tenant.key) as client:
        messages = client.subscriptions.follow(subscription, from_sequence=1)
        assert (await anext(messages)).payload == {"n": 1}
        await messages.aclose()


# Over a WebSocket


async def subscribe_socket(tenant: Tenant, **more: object) -> str:
    return await subscribe(tenant, **{"delivery_type": "websocket", **more})


async def test_a_socket_reads_a_subscription(tenant: Tenant) -> None:
    subscription, topic = await subscribe_socket(tenant, **EU_LARGE), TopicClient(tenant)
    await topic.publish("orders.eu.created", {"amount": 150})
    await topic.publish("orders.eu.created", {"amount": 50})
    async with socket_of(tenant, f"/v1/ws/{subscription}?fromSequence=1") as reader:
        found = await reader.expect("subscribed")
        assert (found["sequence"], found["pending"]) == (0, 2)
        first = await reader.expect("message")
        assert first["sequence"] == 1 and first["payload"] == {"amount": 150} and "ref" not in first
        await reader.expect("ready")
        assert (await tenant.client.get(f"/v1/subscriptions/{subscription}")).ok()["status"]["connections"] == 1
        await topic.publish("orders.eu.paid", {"amount": 100})
        assert await reader.messages(1) == [3]
        await reader.send("subscribe", ref="x", topic="orders")
        await reader.problem("precondition-failed", "x")
        await reader.send("ping")
        await reader.expect("pong")
    token = (await tenant.client.post("/v1/tokens", {"resource": f"subscription/{subscription}"})).ok(201)["token"]
    async with socket(tenant.gateway, None, f"/v1/ws/{subscription}?after={first['id']}&bearer={token}") as reader:
        await reader.expect("subscribed")
        assert await reader.messages(1) == [3]


async def test_a_change_ends_the_sockets_of_a_subscription(tenant: Tenant) -> None:
    subscription, topic = await subscribe_socket(tenant), TopicClient(tenant)
    async with socket_of(tenant, f"/v1/ws/{subscription}") as reader:
        await reader.expect("subscribed")
        await reader.expect("ready")
        (await tenant.client.patch(f"/v1/subscriptions/{subscription}", {"latestOnly": 100})).ok()
        assert (await reader.closed_with())[0] == 1001
    async with socket_of(tenant, f"/v1/ws/{subscription}") as reader:
        await reader.expect("subscribed")
        await reader.expect("ready")
        for _ in range(3):
            await topic.publish("orders.eu.created", {})
        assert (await reader.messages(1))[0] <= 3
        (await tenant.client.post(f"/v1/subscriptions/{subscription}/pause")).ok()
        assert (await reader.closed_with())[0] == 1001
    with pytest.raises(InvalidStatus) as refused:
        async with socket_of(tenant, f"/v1/ws/{subscription}"):
            pass
    assert refused.value.response.status_code == 409


async def test_each_type_has_its_route(tenant: Tenant) -> None:
    events = await subscribe(tenant)
    sockets = (await tenant.client.post("/v1/topics/orders/subscriptions", {"delivery_type": "websocket"})).ok(201)["id"]
    (await tenant.client.get(path(sockets))).problem(409, "precondition-failed")
    for subscription, status in ((events, 409), ("missing", 404)):
        with pytest.raises(InvalidStatus) as refused:
            async with socket_of(tenant, f"/v1/ws/{subscription}"):
                pass
        assert refused.value.response.status_code == status


async def test_latest_only_is_for_subscriptions_that_are_read_live(tenant: Tenant) -> None:
    await TopicClient(tenant).create()
    (await tenant.client.put("/v1/queues/q", {})).ok(201)
    wanted = {"delivery_type": "queue", "queue": "q", "latestOnly": 100}
    (await tenant.client.post("/v1/topics/orders/subscriptions", wanted)).problem(422, "invalid-body")
    made = (await tenant.client.post("/v1/topics/orders/subscriptions", {**wanted, "latestOnly": None})).ok(201)
    (await tenant.client.patch(f"/v1/subscriptions/{made['id']}", {"latestOnly": 100})).problem(422, "invalid-body")
