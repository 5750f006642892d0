"""Jobs of real messages, through a whole node: what is answered is what can be asked for."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroad.container import Role
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server


@pytest.fixture
async def node(own_server: Server, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url, data_dir=tmp_path / "data"), Role.ALL) as running:
        yield running


async def job(tenant: Tenant, published: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = (await tenant.client.get(f"/v1/jobs/{published['jobId']}")).ok()
    return found


async def test_a_message_is_a_job_from_its_publish_to_its_end(node: Gateway) -> None:
    tenant = await node.tenant()
    queue = await tenant.queue("orders")
    published = await tenant.publish(queue, {"n": 1}, correlationId="cart-7")
    found = await job(tenant, published)
    assert (found["status"], found["messageId"], found["correlationId"]) == ("queued", published["messageId"], "cart-7")
    delayed = await tenant.publish(queue, {"n": 2}, delayMs=60_000)
    assert (await job(tenant, delayed))["status"] == "delayed"
    [message] = await tenant.pull(queue)
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert (await job(tenant, published))["status"] == "done"
    listed = (await tenant.client.get("/v1/jobs?status=done")).ok()["jobs"]
    assert [one["jobId"] for one in listed] == [published["jobId"]]
    events = (await tenant.client.get(f"/v1/jobs/{published['jobId']}/events")).ok()["events"]
    assert [event["event"] for event in events] == ["job.queued", "job.leased", "job.done"]
    (await tenant.client.delete(queue)).ok(204)
    other_tenant = await node.tenant()
    (await other_tenant.client.get(f"/v1/jobs/{published['jobId']}")).problem(404, "job-not-found")


async def test_what_is_purged_has_expired(node: Gateway) -> None:
    tenant = await node.tenant()
    queue = await tenant.queue("orders")
    published = await tenant.publish(queue, 1)
    (await tenant.client.post(f"{queue}/purge", {})).ok()
    found = await job(tenant, published)
    assert (found["status"], found["lastError"]) == ("expired", "purged")
