"""Rewinds, and ordered deliveries by group to ordered queues."""

import asyncio
from typing import Any

import msgspec

from postroad.kernel.context import RequestContext
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.kernel.ids import new_id
from postroad.queues.capability import QueuesCapability
from postroad.queues.numbered_deliveries import NumberedDeliveries
from postroad.queues.records import StoredMessage
from tests.gateway import Gateway, Tenant
from tests.subscriptions.receiver import Receiver
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually


async def pulled(tenant: Tenant, queue: str, count: int) -> list[dict[str, Any]]:
    """Pull and acknowledge this many messages."""
    found: list[dict[str, Any]] = []

    async def are_there() -> bool:
        messages = await tenant.pull(queue, 100, waitMs=1000)
        if messages:
            receipts = [one["receiptId"] for one in messages]
            (await tenant.client.post(f"{queue}/ack", {"receiptIds": receipts})).ok()
        found.extend(messages)
        return len(found) >= count

    await eventually(are_there, 60)
    return found


async def rewound(tenant: Tenant, made: dict[str, Any], **request: object) -> dict[str, Any]:
    shown: dict[str, Any] = (await tenant.client.post(f"/v1/subscriptions/{made['id']}/rewind", request)).ok()
    return shown


async def is_settled(topic: TopicClient, made: dict[str, Any]) -> bool:
    return bool((await topic.status(made))["lag"] == 0)


async def test_a_group_arrives_in_order_in_an_ordered_queue(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    queue = await tenant.queue("work", ordered=True)
    await topic.subscribe(delivery_type="queue", queue="work", ordering="key", orderingKey="group")
    for n in range(30):
        await topic.publish(payload=n, groupId="abc"[n % 3])
    found = await pulled(tenant, queue, 30)
    for index, group in enumerate("abc"):
        assert [one["payload"] for one in found if one["groupId"] == group] == list(range(index, 30, 3))
    assert len(found) == 30


async def test_a_number_is_stored_once_and_never_after_a_later_one(tenant: Tenant, node: Gateway) -> None:
    queue = await tenant.queue("work", ordered=True)
    platform = node.node.platform
    queues = platform.use(QueuesCapability)
    record = await queues.lifecycle.find(tenant.id, "work")
    context = RequestContext(Caller(tenant.id, "", frozenset(ALL_SCOPES)))
    # A second process knows nothing of what the first has stored.
    first, second = (
        NumberedDeliveries(platform.connection, platform.committers, queues.publisher, platform.outbox, queues.throughput)
        for _ in range(2)
    )

    async def deliver(by: NumberedDeliveries, number: int, sequence: str = "s") -> bool:
        payload = msgspec.Raw(str(number).encode())
        message = StoredMessage(v=1, id=new_id(), job=new_id(), at=1, group="g", payload=payload)
        return await by.deliver(context, record, message, sequence, number)

    assert [await deliver(first, 1), await deliver(first, 1), await deliver(second, 1)] == [True, False, False]
    assert [await deliver(second, 3), await deliver(first, 2), await deliver(first, 4)] == [True, False, True]
    assert [await deliver(second, 4), await deliver(second, 1, "other")] == [False, True]
    assert sorted(await asyncio.gather(*(deliver(one, 5) for one in (first, second)))) == [False, True]
    assert [one["payload"] for one in await pulled(tenant, queue, 5)] == [1, 3, 4, 1, 5]


async def test_a_rewind_delivers_again_in_order_and_goes_on(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    queue = await tenant.queue("work", ordered=True)
    made = await topic.subscribe(delivery_type="queue", queue="work", ordering="key", orderingKey="group")
    for n in range(1, 6):
        await topic.publish(payload=n, groupId="g")
    assert [one["payload"] for one in await pulled(tenant, queue, 5)] == [1, 2, 3, 4, 5]
    await eventually(lambda: is_settled(topic, made))
    shown = await rewound(tenant, made, fromSequence=3)
    assert shown["rewind"] == {"fromSequence": 3, "toSequence": 5}
    again = await pulled(tenant, queue, 3)
    assert [one["payload"] for one in again] == [3, 4, 5]
    assert all(one["headers"]["X-MQ-Replayed"] == "true" for one in again)
    await topic.publish(payload=6, groupId="g")
    [new] = await pulled(tenant, queue, 1)
    assert new["payload"] == 6 and "X-MQ-Replayed" not in new["headers"]
    await eventually(lambda: is_settled(topic, made))
    assert (await tenant.client.delete(f"/v1/subscriptions/{made['id']}/rewind")).ok().get("rewind") is None
    await topic.publish(payload=7, groupId="g")
    assert [one["payload"] for one in await pulled(tenant, queue, 1)] == [7]


async def test_a_rewind_stops_at_a_time_until_it_is_ended(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, ordering="key", orderingKey="group")
    for n in range(1, 5):
        await topic.publish(payload=n)
    await eventually(lambda: len(receiver.received) == 4)
    await eventually(lambda: is_settled(topic, made))
    read = (await tenant.client.get("/v1/topics/orders/messages")).ok()["messages"]
    earlier = [one["sequence"] for one in read[1:] if one["timestamp"] < read[3]["timestamp"]]  # both, unless of one millisecond
    await rewound(tenant, made, fromSequence=2, toTime=read[3]["timestamp"])
    await eventually(lambda: len(receiver.received) >= 4 + len(earlier))
    assert receiver.sequences[4:] == earlier
    assert [one.headers.get("x-mq-replayed") for one in receiver.received] == [None] * 4 + ["true"] * len(earlier)
    await topic.publish(payload=5)
    await eventually(lambda: is_settled(topic, made))
    assert len(receiver.received) == 4 + len(earlier)
    (await tenant.client.delete(f"/v1/subscriptions/{made['id']}/rewind")).ok()
    await eventually(lambda: len(receiver.received) == 5 + len(earlier))
    assert receiver.sequences[-1] == 5


async def test_what_a_rewind_needs(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    await tenant.queue("work")
    made = await topic.subscribe(delivery_type="queue", queue="work")
    path = f"/v1/subscriptions/{made['id']}/rewind"
    for wrong in ({}, {"fromSequence": 1, "fromTime": "2026-01-01T00:00:00Z"}, {"fromSequence": 0}):
        assert (await tenant.client.post(path, wrong)).status in (400, 422)
    live = await topic.subscribe(delivery_type="sse")
    assert (await tenant.client.post(f"/v1/subscriptions/{live['id']}/rewind", {"fromSequence": 1})).status == 409
    missing = path.replace(made["id"], "0" * 8 + made["id"][8:])
    assert (await tenant.client.post(missing, {"fromSequence": 1})).status == 404
