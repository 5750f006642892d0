"""Stats of queues: true in every state, on every worker and after a restart."""

import asyncio
from typing import Any

import pytest

from postroad.container import Role
from postroad.jetstream.management import stream_info
from postroad.queues import lease_log
from postroad.queues.capability import QueuesCapability
from tests.gateway import Gateway, Tenant, running_gateway
from tests.waiting import eventually

STATES = ("ready", "overdue", "leased", "retrying", "delayed", "dead", "waiting")


async def stats(tenant: Tenant, queue: str) -> dict[str, int]:
    """The states that have messages."""
    found = (await tenant.client.get(queue)).ok()["stats"]
    return {name: found[name] for name in STATES if found[name]}


async def becomes(tenant: Tenant, queue: str, **expected: int) -> None:
    found: dict[str, int] = {}

    async def is_so() -> bool:
        found.clear()
        found.update(await stats(tenant, queue))
        return found == expected

    try:
        await eventually(is_so, 10)
    except AssertionError as error:
        raise AssertionError(f"{found} instead of {expected}") from error


async def nack(tenant: Tenant, queue: str, message: dict[str, Any], action: str, **more: object) -> None:
    (await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": action, **more})).ok()


async def test_a_message_whose_lease_has_ended_is_ready_and_overdue(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=400)
    assert await stats(tenant, queue) == {"leased": 1}
    await becomes(second_gateway.seen_by(tenant), queue, ready=1, overdue=1)
    await becomes(tenant, queue, ready=1, overdue=1)
    [again] = await second_gateway.seen_by(tenant).pull(queue, waitMs=5000, visibilityTimeoutMs=60_000)
    assert again["messageId"] == message["messageId"]
    await becomes(tenant, queue, leased=1)


async def test_a_requeued_message_is_ready(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await nack(tenant, queue, message, "requeue")
    for worker in (tenant, second_gateway.seen_by(tenant)):
        assert await stats(worker, queue) == {"ready": 1}, "a nack is known to all workers when it is answered"


async def test_a_retry_is_counted_until_it_is_due(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue(retryDelaysMs=[1500])
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await nack(tenant, queue, message, "retry")
    assert await stats(second_gateway.seen_by(tenant), queue) == {"retrying": 1}
    await becomes(second_gateway.seen_by(tenant), queue, ready=1)


async def test_an_extension_with_an_old_receipt_counts_once(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=30_000)
    for worker in (tenant, second_gateway.seen_by(tenant), tenant):
        body = {"receiptId": message["receiptId"], "visibilityTimeoutMs": 60_000}
        (await worker.client.post(f"{queue}/extend", body)).ok()
    await becomes(second_gateway.seen_by(tenant), queue, leased=1)
    (await tenant.ack(queue, message["receiptId"])).ok()
    await becomes(second_gateway.seen_by(tenant), queue)


async def test_every_state_has_its_number(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    for number in range(6):
        await tenant.publish(queue, number)
    for _ in range(2):
        await tenant.publish(queue, "later", delayMs=60_000)
    leased = await tenant.pull(queue, 5, visibilityTimeoutMs=60_000)
    await nack(tenant, queue, leased[0], "retry", delayMs=60_000)
    await nack(tenant, queue, leased[1], "dlq")
    await nack(tenant, queue, leased[2], "requeue")
    (await tenant.client.post(f"{queue}/extend", {"receiptId": leased[3]["receiptId"], "visibilityTimeoutMs": 0})).ok()
    for worker in (tenant, second_gateway.seen_by(tenant)):
        await becomes(worker, queue, ready=3, overdue=1, leased=1, retrying=1, delayed=2, dead=1)
    assert (await tenant.client.get(queue)).ok()["stats"]["oldestAgeMs"] >= 0


async def test_all_waiting_pulls_are_counted_on_every_worker(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    elsewhere = second_gateway.seen_by(tenant)
    waiting = [asyncio.create_task(one.pull(queue, waitMs=20_000)) for one in (tenant, tenant, elsewhere)]
    try:
        await becomes(tenant, queue, waiting=3)
        await becomes(elsewhere, queue, waiting=3)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    await becomes(tenant, queue)
    await becomes(elsewhere, queue)


async def test_stats_survive_a_restart_of_all_workers(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the frames of the log were replaced by a snapshot."""
    async with running_gateway(gateway.settings) as first:
        tenant = await first.tenant()
        queue = await tenant.queue()
        for number in range(4):
            await tenant.publish(queue, number)
        leased = await tenant.pull(queue, 4, visibilityTimeoutMs=60_000)
        await nack(tenant, queue, leased[0], "retry", delayMs=60_000)
        (await tenant.client.post(f"{queue}/extend", {"receiptId": leased[1]["receiptId"], "visibilityTimeoutMs": 0})).ok()
        (await tenant.ack(queue, leased[2]["receiptId"])).ok()
    async with running_gateway(gateway.settings) as second:
        await becomes(second.seen_by(tenant), queue, ready=1, overdue=1, leased=1, retrying=1)
        monkeypatch.setattr(lease_log, "_COMPACT_MIN", -(10**9))
        await second.node.platform.use(QueuesCapability).lease_log.compact()
        info = await stream_info(second.node.platform.connection, lease_log.STREAM)
        assert info is not None and info.state.messages < info.state.last_seq
    async with running_gateway(gateway.settings) as third:
        after = third.seen_by(tenant)
        await becomes(after, queue, ready=1, overdue=1, leased=1, retrying=1)
        (await after.ack(queue, leased[0]["receiptId"])).problem(409, "already-settled")
        (await after.ack(queue, leased[3]["receiptId"])).ok()
        await becomes(after, queue, ready=1, overdue=1, retrying=1)


async def test_a_purge_ends_all_leases(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    for number in range(3):
        await tenant.publish(queue, number)
    await tenant.pull(queue, 2, visibilityTimeoutMs=60_000)
    (await tenant.client.post(f"{queue}/purge", {})).ok()
    await tenant.publish(queue, "next")
    for worker in (tenant, second_gateway.seen_by(tenant)):
        assert await stats(worker, queue) == {"ready": 1}


async def test_a_recreated_queue_has_no_leases(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    await tenant.pull(queue, visibilityTimeoutMs=60_000)
    (await tenant.client.delete(queue)).ok(204)
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    assert await stats(tenant, queue) == {"ready": 1}


async def test_a_peek_tells_what_is_leased(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    for number in range(3):
        await tenant.publish(queue, number)
    first, second = await tenant.pull(queue, 2, visibilityTimeoutMs=60_000)
    await nack(tenant, queue, second, "retry", delayMs=60_000)
    for worker in (tenant, second_gateway.seen_by(tenant)):
        peeked = (await worker.client.get(f"{queue}/messages")).ok()["messages"]
        assert [one["state"] for one in peeked] == ["leased", "retrying", "ready"]
        assert peeked[0]["messageId"] == first["messageId"] and peeked[0]["leaseUntil"] > peeked[0]["enqueuedAt"]
        assert "nextAt" in peeked[1] and "leaseUntil" not in peeked[1]
        assert "leaseUntil" not in peeked[2] and "nextAt" not in peeked[2]


async def test_a_cancelled_or_promoted_job_is_counted_at_once(gateway: Gateway) -> None:
    async with running_gateway(gateway.settings, Role.ALL) as node:
        tenant = await node.tenant()
        queue = await tenant.queue()
        for number in range(3):
            await tenant.publish(queue, number)
        leased = await tenant.pull(queue, 3, visibilityTimeoutMs=60_000)
        await nack(tenant, queue, leased[0], "retry", delayMs=60_000)
        assert await stats(tenant, queue) == {"leased": 2, "retrying": 1}
        (await tenant.client.post(f"/v1/jobs/{leased[0]['jobId']}/run", {})).ok()
        await becomes(tenant, queue, leased=2, ready=1)
        (await tenant.client.post(f"/v1/jobs/{leased[1]['jobId']}/cancel", {})).ok()
        await becomes(tenant, queue, leased=1, ready=1)
