"""Jobs of messages in ordered queues: dead letters, redrive, cancellation, run now."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroad.container import Role
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.queues.test_ordered import nack, payloads, publish_each
from tests.servers import Server
from tests.waiting import eventually


@pytest.fixture
async def node(own_server: Server, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url, data_dir=tmp_path / "data"), Role.ALL) as running:
        yield running


@pytest.fixture
async def tenant(node: Gateway) -> Tenant:
    return await node.tenant()


async def test_dead_lettering_unblocks_the_group_and_redrive_appends(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "a2")
    [a1] = await tenant.pull(queue)
    (await nack(tenant, queue, a1, "dlq", reason="bad")).ok()
    (await nack(tenant, queue, a1, "dlq", reason="bad")).ok()
    (await tenant.ack(queue, a1["receiptId"])).problem(409, "already-settled")
    dead = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    assert [(one["payload"], one["reason"], one["attempts"], one["groupId"]) for one in dead] == [("a1", "bad", 1, "a")]
    assert (await tenant.client.get(f"{queue}/dlq?groupId=b")).ok()["messages"] == []
    (await tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)

    async def redriven() -> bool:
        return not (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]

    await eventually(redriven, 15)
    assert payloads(await tenant.pull(queue, 10)) == ["a2", "a1"]


async def test_a_cancelled_job_leaves_its_group(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    published = await publish_each(tenant, queue, "a1", "a2", "a3")
    [a1] = await tenant.pull(queue)
    for one in published[:2]:

        async def cancelled(job: str = one["jobId"]) -> bool:
            return (await tenant.client.post(f"/v1/jobs/{job}/cancel", {})).status == 200

        await eventually(cancelled, 10)
    extension = {"receiptId": a1["receiptId"], "visibilityTimeoutMs": 1000}
    (await tenant.client.post(f"{queue}/extend", extension)).problem(409, "job-cancelled")
    assert payloads(await tenant.pull(queue, 5, waitMs=5000)) == ["a3"]


async def test_a_retrying_job_is_run_at_once(tenant: Tenant) -> None:
    queue = await tenant.queue(ordered=True)
    [published, _] = await publish_each(tenant, queue, "a1", "a2")
    [a1] = await tenant.pull(queue)
    (await nack(tenant, queue, a1, delayMs=3_600_000)).ok()
    assert await tenant.pull(queue, 5) == []

    async def has_run() -> bool:
        job = (await tenant.client.get(f"/v1/jobs/{published['jobId']}")).ok()
        if job["status"] == "retrying":
            (await tenant.client.post(f"/v1/jobs/{published['jobId']}/run", {})).ok()
            return True
        return False

    await eventually(has_run, 10)
    assert payloads(await tenant.pull(queue, 5, waitMs=5000)) == ["a1", "a2"]
