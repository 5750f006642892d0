"""Operations that contradict an earlier one with the same receipt, on one worker and across workers."""

from typing import Any

import pytest

from tests.gateway import Answer, Gateway, Tenant

pytestmark = pytest.mark.usefixtures("both_paths")

OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "ack": ("ack", {}),
    "retry": ("nack", {"action": "retry"}),
    "requeue": ("nack", {"action": "requeue", "delayMs": 60_000}),
    "dlq": ("nack", {"action": "dlq"}),
    "extend": ("extend", {"visibilityTimeoutMs": 60_000}),
}
FINAL = [name for name in OPERATIONS if name != "extend"]


async def settle(tenant: Tenant, queue: str, name: str, receipt: str) -> Answer:
    operation, more = OPERATIONS[name]
    return await tenant.client.post(f"{queue}/{operation}", {"receiptId": receipt, **more})


async def leased(tenant: Tenant) -> tuple[str, dict[str, Any]]:
    queue = await tenant.queue(retryDelaysMs=[60_000])
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    return queue, message


@pytest.mark.parametrize("first", FINAL)
@pytest.mark.parametrize("second", OPERATIONS)
async def test_after_a_lease_was_ended_only_the_same_operation_is_accepted(
    gateway: Gateway, second_gateway: Gateway, first: str, second: str
) -> None:
    tenant = await gateway.tenant()
    queue, message = await leased(tenant)
    receipt = message["receiptId"]
    (await settle(tenant, queue, first, receipt)).ok()
    for worker in (tenant, second_gateway.seen_by(tenant)):
        answer = await settle(worker, queue, second, receipt)
        if first == second:
            answer.ok()
        else:
            answer.problem(409, "already-settled")
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["retrying"], stats["dead"]) == (first in ("retry", "requeue"), first == "dlq"), "the first one is in effect"


async def test_a_late_ack_does_not_end_the_lease_of_the_next_consumer(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue, first = await leased(tenant)
    elsewhere = second_gateway.seen_by(tenant)
    body = {"receiptId": first["receiptId"], "action": "retry", "delayMs": 0}
    (await tenant.client.post(f"{queue}/nack", body)).ok()
    [second] = await elsewhere.pull(queue, waitMs=5000, visibilityTimeoutMs=60_000)
    assert second["attempt"] == 2
    for worker in (tenant, elsewhere):
        (await worker.ack(queue, first["receiptId"])).problem(409, "already-settled")
        (await worker.client.post(f"{queue}/nack", body)).ok()  # a repetition: it must not return the message a second time
    assert await tenant.pull(queue) == []
    assert (await elsewhere.ack(queue, second["receiptId"])).ok() == {"ok": True}


async def test_an_earlier_receipt_ends_with_a_shortened_lease(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue, first = await leased(tenant)
    body = {"receiptId": first["receiptId"], "visibilityTimeoutMs": 0}
    (await tenant.client.post(f"{queue}/extend", body)).ok()
    [second] = await tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=60_000)
    for worker in (tenant, second_gateway.seen_by(tenant)):
        (await worker.ack(queue, first["receiptId"])).problem(409, "lease-expired")
    assert await tenant.stats(queue) == {"ready": 0, "leased": 1, "delayed": 0}
    (await tenant.ack(queue, second["receiptId"])).ok()


async def test_a_shortened_lease_can_be_extended(tenant: Tenant) -> None:
    queue, first = await leased(tenant)
    body = {"receiptId": first["receiptId"], "visibilityTimeoutMs": 20_000}
    receipt = (await tenant.client.post(f"{queue}/extend", body)).ok()["newReceiptId"]
    body = {"receiptId": receipt, "visibilityTimeoutMs": 100_000}
    receipt = (await tenant.client.post(f"{queue}/extend", body)).ok()["newReceiptId"]
    (await tenant.ack(queue, receipt)).ok()


async def test_a_dead_letter_that_was_deleted_is_not_stored_by_a_repetition(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue, message = await leased(tenant)
    (await settle(tenant, queue, "dlq", message["receiptId"])).ok()
    (await tenant.client.delete(f"{queue}/dlq/{message['messageId']}")).ok(204)
    for worker in (tenant, second_gateway.seen_by(tenant)):
        (await settle(worker, queue, "dlq", message["receiptId"])).ok()
    assert (await tenant.client.get(queue)).ok()["stats"]["dead"] == 0


async def test_of_many_receipts_each_has_its_own_result(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(3):
        await tenant.publish(queue, number)
    receipts = [message["receiptId"] for message in await tenant.pull(queue, 3, visibilityTimeoutMs=60_000)]
    (await tenant.ack(queue, receipts[0])).ok()
    (await settle(tenant, queue, "requeue", receipts[1])).ok()
    answer = (await tenant.client.post(f"{queue}/nack", {"receiptIds": receipts, "action": "retry"})).ok()
    assert [one.get("problem", {}).get("code") for one in answer["results"]] == ["already-settled", "already-settled", None]
    extended = (await tenant.client.post(f"{queue}/extend", {"receiptIds": receipts, "visibilityTimeoutMs": 1000})).ok()
    assert [one["ok"] for one in extended["results"]] == [False, False, False]
