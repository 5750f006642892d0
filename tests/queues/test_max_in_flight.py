"""`maxInFlight`: never more than so many messages are leased, on all workers together."""

import asyncio
from collections import Counter

from tests.gateway import Client, Gateway, Tenant


async def test_a_pull_gets_nothing_at_the_limit_and_waits_for_an_ack(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(maxInFlight=2)
    for number in range(4):
        await tenant.publish(queue, number)
    first, second = await tenant.pull(queue, 10)
    other = await second_gateway.key_of(tenant.id)
    assert await tenant.pull(queue) == [] and await other.pull(queue) == []
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["ready"], stats["leased"]) == (2, 2)
    waiting = asyncio.create_task(other.pull(queue, 5, waitMs=20_000))
    (await tenant.ack(queue, first["receiptId"])).ok()
    assert [message["payload"] for message in await waiting] == [2]
    await tenant.client.post(f"{queue}/nack", {"receiptId": second["receiptId"], "action": "retry", "delayMs": 300})
    assert await tenant.pull(queue) == [], "a message that waits for a retry counts"
    [again] = await tenant.pull(queue, 5, waitMs=20_000)
    assert (again["payload"], again["attempt"]) == (1, 2)


async def test_the_limit_can_be_changed(tenant: Tenant) -> None:
    queue = await tenant.queue(maxInFlight=1)
    for number in range(6):
        await tenant.publish(queue, number)
    assert len(await tenant.pull(queue, 10)) == 1
    (await tenant.client.put(queue, {"maxInFlight": 3})).ok()
    assert len(await tenant.pull(queue, 10)) == 2
    (await tenant.client.put(queue, {})).ok()
    assert len(await tenant.pull(queue, 10)) == 3


async def test_many_pullers_on_two_workers_never_exceed_the_limit(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(maxInFlight=3)
    messages = [{"payload": number} for number in range(60)]
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    clients = [tenant.client, (await second_gateway.key_of(tenant.id)).client]
    leased: set[str] = set()
    most, done = 0, Counter[int]()

    async def work(client: Client) -> None:
        nonlocal most
        while len(done) < len(messages):
            pulled = (await client.post(f"{queue}/pull", {"maxMessages": 2, "waitMs": 500})).ok()["messages"]
            leased.update(message["receiptId"] for message in pulled)
            most = max(most, len(leased))
            await asyncio.sleep(0)
            for message in pulled:
                leased.discard(message["receiptId"])  # before the ack, which lets the next message go
                (await client.post(f"{queue}/ack", {"receiptId": message["receiptId"]})).ok()
                done[message["payload"]] += 1

    async with asyncio.timeout(120):
        await asyncio.gather(*(work(clients[number % 2]) for number in range(6)))
    assert most <= 3 and len(done) == 60
    assert set(done.values()) == {1}


async def test_a_limit_that_cannot_be_used_is_refused(tenant: Tenant) -> None:
    for value in (-1, 100_001, "1"):
        (await tenant.client.put("/v1/queues/q", {"maxInFlight": value})).problem(422, "invalid-body")
