"""Ordered queues: `dedupeId` of messages and `receiveId` of pulls, also through restarts."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from postroad.queues.capability import QueuesCapability
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.queues.test_ordered import ack, payloads, publish_each
from tests.servers import Server
from tests.waiting import eventually


async def publish(tenant: Tenant, queue: str, payload: object = 1, **more: object) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.post(f"{queue}/messages", {"payload": payload, **more})).ok(201)
    return found


async def test_a_repeated_dedupe_id_stores_nothing_and_returns_the_first_message(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    first = await publish(tenant, queue, "x", groupId="a", dedupeId="d")
    assert "duplicate" not in first
    other = second_gateway.seen_by(await tenant.another_key())
    for one, more in ((tenant, {"groupId": "a"}), (other, {"groupId": "b"}), (other, {})):
        assert await publish(one, queue, {"other": "body"}, dedupeId="d", **more) == {**first, "duplicate": True}
    messages = await tenant.pull(queue, 10)
    assert payloads(messages) == ["x"]
    assert messages[0]["sequence"] == first["sequence"]
    await ack(tenant, queue, *messages)
    assert await publish(tenant, queue, "x", dedupeId="d") == {**first, "duplicate": True}, "also after the ack"
    assert (await publish(tenant, queue, "y", dedupeId="other"))["sequence"] > first["sequence"]


async def test_a_dedupe_id_holds_in_its_scope(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True, dedupeScope="group")
    first = await publish(tenant, queue, 1, groupId="a", dedupeId="d")
    assert (await publish(tenant, queue, 2, groupId="b", dedupeId="d"))["messageId"] != first["messageId"]
    assert (await publish(tenant, queue, 3, groupId="a", dedupeId="d"))["messageId"] == first["messageId"]


async def test_the_content_is_the_dedupe_id_if_the_queue_says_so(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True, dedupeByContent=True)
    first = await publish(tenant, queue, {"a": 1})
    assert (await publish(tenant, queue, {"a": 1}, headers={"other": "header"}))["messageId"] == first["messageId"]
    assert (await publish(tenant, queue, {"a": 2}))["messageId"] != first["messageId"]
    assert (await publish(tenant, queue, {"a": 1}, dedupeId="own"))["messageId"] != first["messageId"]
    assert len(await tenant.pull(queue, 10)) == 3


async def test_a_dedupe_id_is_forgotten_after_its_window(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True, dedupeWindowMs=1000)
    first = await publish(tenant, queue, 1, dedupeId="d")

    async def is_stored_again() -> bool:
        return bool((await publish(tenant, queue, 1, dedupeId="d"))["messageId"] != first["messageId"])

    await eventually(is_stored_again, 15)


async def test_a_batch_with_duplicates_keeps_order(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    first = await publish(tenant, queue, "a0", groupId="a", dedupeId="0")
    messages = [{"payload": f"a{n}", "groupId": "a", "dedupeId": str(n)} for n in (1, 0, 2, 1, 3)]
    result = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    ids = [one["messageId"] for one in result["results"]]
    assert ids[1] == first["messageId"] and ids[3] == ids[0] and len(set(ids)) == 4
    assert [one.get("duplicate", False) for one in result["results"]] == [False, True, False, True, False]
    assert payloads(await tenant.pull(queue, 10)) == ["a0", "a1", "a2", "a3"]


async def test_an_idempotency_key_works_with_and_without_a_dedupe_id(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    for more in ({}, {"dedupeId": "d"}):
        key = f"k{len(more)}"
        first = await publish(tenant, queue, 1, idempotencyKey=key, **more)
        again = await publish(tenant, queue, 1, idempotencyKey=key, **more)
        assert (again["messageId"], again["sequence"]) == (first["messageId"], first["sequence"])
    other = {"payload": 2, "idempotencyKey": "k0"}
    (await tenant.client.post(f"{queue}/messages", other)).problem(422, "idempotency-mismatch")
    assert len(await tenant.pull(queue, 10)) == 2


async def test_concurrent_publishes_of_one_dedupe_id_store_one_message(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    both = (tenant, second_gateway.seen_by(tenant))
    found = await asyncio.gather(*(publish(both[n % 2], queue, n, dedupeId="d", groupId=str(n % 3)) for n in range(40)))
    assert len({(one["messageId"], one["sequence"]) for one in found}) == 1
    assert len(await tenant.pull(queue, 50)) == 1


async def test_a_repeated_pull_gets_the_same_messages_with_new_leases(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    other = second_gateway.seen_by(tenant)
    await publish_each(tenant, queue, "a1", "b1", "a2", "c1", "d1")
    first = await tenant.pull(queue, 3, receiveId="r", maxPerGroup=1, visibilityTimeoutMs=5000)
    again = await other.pull(queue, 3, receiveId="r", visibilityTimeoutMs=60_000)
    assert payloads(first) == payloads(again) == ["a1", "b1", "c1"]
    assert [one["attempt"] for one in again] == [1, 1, 1]
    assert payloads(await tenant.pull(queue, 3, receiveId="another")) == ["d1"]
    await ack(tenant, queue, again[0])
    assert payloads(await tenant.pull(queue, 3, receiveId="r")) == ["a2"], "one was settled: this is a new pull"


@pytest.mark.parametrize("kind", ["gateway", "engine"])
async def test_dedupe_receive_ids_and_leases_survive_a_restart(own_server: Server, kind: str) -> None:
    settings = gateway_settings(own_server.url)
    async with running_gateway(settings) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue(ordered=True)
        first = await publish(tenant, queue, "a1", groupId="a", dedupeId="d")
        await publish_each(tenant, queue, "a2", "b1", "c1")
        held = await tenant.pull(queue, 2, receiveId="r", maxPerGroup=1, visibilityTimeoutMs=120_000)
        [c1] = await tenant.pull(queue)
        await ack(tenant, queue, c1)
        if kind == "engine":
            own_server.kill()
            own_server.start()
            await survived(tenant, queue, first, held)
    if kind == "gateway":
        async with running_gateway(settings) as another:
            await survived(another.seen_by(tenant), queue, first, held)


async def survived(tenant: Tenant, queue: str, first: dict[str, Any], held: list[dict[str, Any]]) -> None:
    async def is_back() -> bool:
        return (await tenant.client.get(queue)).status == 200

    await eventually(is_back, 30)
    assert (await publish(tenant, queue, "z", dedupeId="d"))["messageId"] == first["messageId"]
    assert await tenant.pull(queue, 5) == [], "both groups are held, and the third is settled"
    assert sorted(payloads(await tenant.pull(queue, 5, receiveId="r"))) == sorted(payloads(held))
    await ack(tenant, queue, *held)
    assert payloads(await tenant.pull(queue, 5, waitMs=5000)) == ["a2"]


@pytest.fixture
def two_dispatchers(gateway: Gateway, second_gateway: Gateway) -> Iterator[None]:
    """Each gateway believes that it is the only one: the conditions of the records must do."""
    routings = [one.node.platform.use(QueuesCapability).ordered_leases._routing for one in (gateway, second_gateway)]
    before = [one._candidates for one in routings]
    for one in routings:
        one._candidates = lambda _stream, name=one._membership.name: [name]  # type: ignore[method-assign, misc]
    yield
    for one, candidates in zip(routings, before, strict=True):
        one._candidates = candidates  # type: ignore[method-assign]


@pytest.mark.usefixtures("two_dispatchers")
async def test_an_ack_at_a_dispatcher_with_an_old_state_takes_effect(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    other = second_gateway.seen_by(tenant)
    await publish_each(tenant, queue, "a1", "a2")
    [a1] = await other.pull(queue, waitMs=5000)
    await ack(other, queue, a1)
    [a2] = await tenant.pull(queue, visibilityTimeoutMs=1500, waitMs=5000)
    await ack(other, queue, a2)
    assert await tenant.pull(queue, waitMs=4000) == [], "an acknowledged message returned"


@pytest.mark.usefixtures("two_dispatchers")
async def test_two_dispatchers_at_once_deliver_every_message_once_and_in_order(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue(ordered=True)
    other = second_gateway.seen_by(tenant)
    messages = [{"payload": [group, n], "groupId": str(group)} for n in range(20) for group in range(5)]
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    delivered: dict[int, list[int]] = {group: [] for group in range(5)}

    async def consume(consumer: Tenant, count: int) -> None:
        while sum(map(len, delivered.values())) < 100:
            found = await consumer.pull(queue, count, waitMs=200)
            for one in found:
                delivered[one["payload"][0]].append(one["payload"][1])
            if found:
                await ack(consumer, queue, *found)

    async with asyncio.timeout(60):
        await asyncio.gather(*(consume((tenant, other)[n % 2], 1 + n) for n in range(6)))
    assert delivered == {group: list(range(20)) for group in range(5)}
