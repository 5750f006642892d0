"""Consumers and publishers of a queue by key, traffic, and messages that died again after a redrive."""

from typing import Any

import pytest

from postroad.container import Role
from postroad.kernel.identity import Scope
from postroad.queues.client_routes import summary_of, traffic_of
from postroad.queues.consumer_activity import ConsumerActivity
from postroad.telemetry.flow_counters import Flow
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually


async def consumers(tenant: Tenant, queue: str) -> dict[str, dict[str, Any]]:
    found = (await tenant.client.get(f"{queue}/consumers")).ok()
    assert found["summary"]
    return {one["keyId"]: one for one in found["consumers"]}


async def test_consumers_show_their_pulls_leases_acks_and_failures(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    assert await consumers(tenant, queue) == {}
    worker, idler = await tenant.another_key(), await tenant.another_key()
    for number in range(4):
        await tenant.publish(queue, number)
    pulled = await worker.pull(queue, 4)
    await idler.pull(queue, 1)
    await worker.ack(queue, pulled[0]["receiptId"])
    (await worker.client.post(f"{queue}/nack", {"receiptId": pulled[1]["receiptId"], "action": "requeue"})).ok()

    async def is_reported() -> bool:
        found = await consumers(tenant, queue)
        return worker.record.id in found and found[worker.record.id]["inFlight"] == 2

    await eventually(is_reported, 20)
    found = await consumers(tenant, queue)
    busy, idle = found[worker.record.id], found[idler.record.id]
    assert busy["lastPullAt"] and busy["lastAckAt"] and busy["keyName"] == "a test's"
    assert (busy["overdue"], busy["failedPerSecond"], busy["ackedPerSecond"]) == (0, 0.1, 0.1)
    assert busy["meanProcessingMs"] is not None
    assert idle["lastPullAt"] and idle["lastAckAt"] is None and idle["inFlight"] == 0


async def test_leases_that_ended_are_overdue_until_they_are_delivered_again(tenant: Tenant) -> None:
    queue = await tenant.queue("orders", visibilityTimeoutMs=1)
    await tenant.publish(queue, 1)
    await tenant.pull(queue)

    async def is_overdue() -> bool:
        found = await consumers(tenant, queue)
        return bool(found) and found[tenant.record.id]["overdue"] == 1

    await eventually(is_overdue, 20)


async def test_consumers_of_another_gateway_are_shown(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    await tenant.publish(queue, 1)
    elsewhere = second_gateway.seen_by(tenant)
    [message] = await elsewhere.pull(queue)

    async def has_lease(count: int) -> bool:
        found = await consumers(tenant, queue)
        return bool(found) and found[tenant.record.id]["inFlight"] == count

    await eventually(lambda: has_lease(1), 20)
    await tenant.ack(queue, message["receiptId"])  # through the other one
    await eventually(lambda: has_lease(0), 20)


async def test_publishers_and_traffic_name_the_keys(gateway: Gateway, tenant: Tenant) -> None:
    orders, emails = await tenant.queue("orders"), await tenant.queue("emails")
    shop, mailer = await tenant.another_key(), await tenant.another_key()
    for number in range(20):
        await shop.publish(orders, number)
    await shop.publish(emails, 1)
    for message in await mailer.pull(orders, 10):
        await mailer.ack(orders, message["receiptId"])

    async def traffic(by: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await tenant.client.get(f"/v1/traffic?by={by}")).ok()["rows"]
        return rows

    async def is_counted() -> bool:
        return len(await traffic("key,queue")) == 3

    await eventually(is_counted, 20)
    by_pair = await traffic("key,queue")
    assert (by_pair[0]["keyId"], by_pair[0]["queue"]) == (shop.record.id, "orders")
    assert by_pair[0]["since"] and 0 < by_pair[0]["share"] < 1 and by_pair[0]["keyName"] == "a test's"
    assert {one["keyId"] for one in await traffic("key")} == {shop.record.id, mailer.record.id}
    assert {one["queue"] for one in await traffic("queue")} == {"orders", "emails"}
    [publisher] = (await tenant.client.get(f"{orders}/publishers")).ok()["publishers"]
    assert publisher["keyId"] == shop.record.id and publisher["perSecond"] > 0
    narrow = await tenant.another_key((Scope.READ,), allowed_queues=("emails",))
    assert {one["queue"] for one in (await narrow.client.get("/v1/traffic")).ok()["rows"]} == {"emails"}
    other = await gateway.tenant()
    assert (await other.client.get("/v1/traffic")).ok()["rows"] == []
    (await tenant.client.get("/v1/traffic?by=tenant")).problem(400, "invalid-parameter")
    (await tenant.client.get("/v1/queues/missing/consumers")).problem(404, "queue-not-found")


def flow(source: str, target: str, rate: float, since: int = 1) -> Flow:
    return Flow(source, target, rate, 0.0, since, since + 1)


def test_traffic_is_added_up_by_key_and_queue() -> None:
    flows = [flow("key:a", "queue:q", 5, 3), flow("queue:q", "key:a", 2, 1), flow("key:b", "queue:q", 9)]
    assert [row[:4] for row in traffic_of(flows, "key,queue")] == [("b", "q", 9, 0), ("a", "q", 5, 2)]
    assert [row[:4] for row in traffic_of(flows, "queue")] == [(None, "q", 14, 2)]
    assert traffic_of(flows, "key")[1][5:] == (1, 4), "since the first, until the last"


def activity(**more: Any) -> ConsumerActivity:
    given = {"key": "k", "last_pull_ms": 0, "last_ack_ms": 0, "in_flight": 0, "overdue": 0, "pulled_per_second": 0.0}
    given |= {"acked_per_second": 0.0, "failed_per_second": 0.0, "mean_processing_ms": None}
    return ConsumerActivity(**{**given, **more})


@pytest.mark.parametrize(
    ("found", "waiting", "sentence"),
    [
        ([], 0, "No consumer has pulled in the last 15 minutes."),
        ([activity(last_pull_ms=1_000)], 0, "1 consumer, none has pulled for 16 min."),
        ([activity()], 0, "1 consumer, none has pulled in the last 15 minutes."),
        (
            [activity(last_pull_ms=990_000, last_ack_ms=280_000, in_flight=5, overdue=2)] * 3,
            0,
            "3 consumers, none has acknowledged for 12 min; 6 leases are overdue.",
        ),
        ([activity(last_pull_ms=990_000, in_flight=1)], 0, "1 consumer, none has acknowledged yet."),
        (
            [activity(last_pull_ms=990_000, last_ack_ms=280_000, in_flight=1, overdue=1)],
            0,
            "1 consumer, none has acknowledged for 12 min; 1 lease is overdue.",
        ),
        ([activity(last_pull_ms=1_000)], 1, "1 consumer, 0 messages in flight."),
    ],
)
def test_the_sentence_names_the_cause(found: list[ConsumerActivity], waiting: int, sentence: str) -> None:
    assert summary_of(found, waiting, 1_000_000) == sentence


async def test_a_redrive_reports_the_messages_that_died_again(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue("orders", maxAttempts=1)

        async def reject(count: int) -> None:
            for message in await tenant.pull(queue, count):
                body = {"receiptId": message["receiptId"], "action": "dlq", "reason": "no stock"}
                (await tenant.client.post(f"{queue}/nack", body)).ok()

        for number in range(3):
            await tenant.publish(queue, number)
        await reject(3)
        task = (await tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)["task"]
        path = f"/v1/tasks/{task['id']}"

        async def is_done() -> bool:
            return bool((await tenant.client.get(path)).ok()["state"] == "done")

        await eventually(is_done, 20)
        assert (await tenant.client.get(path)).ok()["progress"]["diedAgain"] == 0
        await tenant.publish(queue, "new, and not of the redrive")
        await reject(2)
        [acked] = await tenant.pull(queue, 1)
        await tenant.ack(queue, acked["receiptId"])
        await reject(1)
        progress = (await tenant.client.get(path)).ok()["progress"]
        assert (progress["moved"], progress["diedAgain"]) == (3, 2)
        dead = (await tenant.client.get(f"{queue}/dlq?redrive={task['id']}")).ok()["messages"]
        assert sorted(one["payload"] for one in dead) == [0, 1]
        assert (await tenant.client.get(f"{queue}/dlq")).ok()["total"] == 3
