"""Deliveries while their topic or subscription changes: deleted, recreated, written by a NATS client, emptied by retention."""

from typing import Any

import nats
import pytest

from postroad.container import Role
from postroad.kernel.names import topic_subject
from postroad.subscriptions import metrics
from tests.gateway import Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.subscriptions.conftest import LOOPBACK
from tests.subscriptions.receiver import Receiver
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually


async def _has_no_lag(topic: TopicClient, subscription: dict[str, Any]) -> None:
    async def settled() -> bool:
        return bool((await topic.status(subscription))["lag"] == 0)

    await eventually(settled)


@pytest.mark.parametrize("ordering", ["none", "key"])
async def test_a_recreated_topic_delivers_its_own_messages(tenant: Tenant, receiver: Receiver, ordering: str) -> None:
    """Its sequences start at 1 again: nothing of the first topic may be delivered in their place."""
    topic = TopicClient(tenant)
    await topic.create()
    await topic.subscribe(f"{receiver.url}/first", name="crm", ordering=ordering)
    for number in range(3):
        await topic.publish("a", f"first {number}")
    await eventually(lambda: len(receiver.received) == 3)
    (await tenant.client.delete(f"/v1/topics/{topic.name}?cascade=true")).ok(204)
    await topic.create()
    second = await topic.subscribe(f"{receiver.url}/second", name="crm", ordering=ordering)
    for number in range(3):
        await topic.publish("a", f"second {number}")
    await eventually(lambda: len(receiver.received) >= 6)
    later = [(one.path, one.sequence, one.body) for one in receiver.received[3:]]
    assert sorted(later) == [("/second", number + 1, f'"second {number}"'.encode()) for number in range(3)]
    await _has_no_lag(topic, second)
    assert (await topic.status(second))["deliveredCount"] == 3


async def test_messages_of_a_nats_client_are_delivered_as_bytes(tenant: Tenant, receiver: Receiver, engine_url: str) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, ordering="key", orderingKey="header:x-key")
    queue = await tenant.queue("work")
    await topic.subscribe(delivery_type="queue", queue="work")
    bodies = [b"", b"\x00\xff", b"[" * 3000, b'{"open": ']
    strange = {"Content-Type": "application/json", "X-Key": "a\tb", "traceparent": "nonsense", "Postroad-Hops": "many"}
    client = await nats.connect(engine_url)
    try:
        for body in bodies:
            await client.jetstream().publish(f"{topic_subject(tenant.id, topic.name)}.foreign", body)
            await client.jetstream().publish(f"{topic_subject(tenant.id, topic.name)}.foreign.more", body, headers=strange)
    finally:
        await client.close()
    await topic.publish("own", {"n": 1})
    await eventually(lambda: len(receiver.received) >= 9)
    by_sequence = {one.sequence: one for one in receiver.received}
    assert [by_sequence[number].body for number in range(1, 10)] == [*(body for body in bodies for _ in range(2)), b'{"n":1}']
    assert by_sequence[1].headers["content-type"] == "application/octet-stream"
    await _has_no_lag(topic, made)
    assert await topic.dead(made) == []
    pulled: list[dict[str, Any]] = []

    async def has_all() -> bool:
        pulled.extend(await tenant.pull(queue, 10))
        return len(pulled) >= 9

    await eventually(has_all)
    assert pulled[-1]["payload"] == {"n": 1}


async def test_a_subscription_deleted_with_deliveries_in_flight_ends(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(f"{receiver.url}/deleted")
    other = await topic.subscribe(f"{receiver.url}/other")
    await topic.publish()
    await eventually(lambda: len(receiver.received) == 2)
    receiver.hold()
    await topic.publish_many(20)
    await eventually(lambda: {one.path for one in receiver.received[2:]} == {"/deleted", "/other"})
    (await tenant.client.delete(f"/v1/subscriptions/{made['id']}")).ok(204)
    (await tenant.client.get(f"/v1/subscriptions/{made['id']}")).problem(404, "subscription-not-found")

    begun = [one.sequence for one in receiver.received if one.path == "/deleted"]
    receiver.released.set()
    await eventually(lambda: {one.sequence for one in receiver.received if one.path == "/other"} == set(range(1, 22)))
    await _has_no_lag(topic, other)
    last = await topic.publish()
    await eventually(lambda: any(one.path == "/other" and one.sequence == last for one in receiver.received))
    attempted = [one.sequence for one in receiver.received if one.path == "/deleted"]
    assert len(attempted) < 20 and last not in attempted
    assert attempted[: len(begun)] == begun
    again = await topic.subscribe(f"{receiver.url}/again", name="again")
    await topic.publish()
    await eventually(lambda: any(one.path == "/again" for one in receiver.received))
    assert (await topic.status(again))["dead"] == 0


async def test_messages_that_retention_removes_are_not_waited_for(own_server: Server, receiver: Receiver) -> None:
    """Open messages that were dropped are counted and settled; unread ones are passed over."""
    settings = gateway_settings(own_server.url, outbound_allow=LOOPBACK, delivery_cache_bytes=1)
    async with running_gateway(settings, Role.ALL) as own:
        topic = TopicClient(await own.tenant())
        await topic.create(maxMessages=2)
        receiver.answer = lambda _got: (503, {"Retry-After": "3600"}, b"")
        made = await topic.subscribe(receiver.url)
        await topic.publish_many(2)

        async def is_held_back() -> bool:
            status = await topic.status(made)
            return bool(status["open"] == 2 and "asked for a pause" in status["summary"])

        await eventually(is_held_back)
        await topic.publish_many(6)  # the topic keeps the last two

        async def has_dropped() -> bool:
            return bool((await topic.status(made))["open"] == 8)

        await eventually(has_dropped)
        attempted = set(receiver.sequences)
        removed = metrics.removed._value.get()
        receiver.answer = lambda _got: 200
        own.clock.ahead_ms += 3_700_000
        await eventually(lambda: set(receiver.sequences) >= {7, 8}, 60)
        await _has_no_lag(topic, made)
        assert set(receiver.sequences) - attempted == {7, 8}
        assert metrics.removed._value.get() - removed == 6
        status = await topic.status(made)
        assert (status["deliveredCount"], status["dead"], status["open"]) == (2, 0, 0)
        assert status["summary"] == "Everything is delivered."
