"""Progress that workers report, and what they learn with it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroad.container import Role
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually


@pytest.fixture
async def node(own_server: Server, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url, data_dir=tmp_path / "data"), Role.ALL) as running:
        yield running


@pytest.fixture
async def tenant(node: Gateway) -> Tenant:
    return await node.tenant()


async def progress(tenant: Tenant, published: dict[str, Any]) -> Any:
    found = (await tenant.client.get(f"/v1/jobs/{published['jobId']}")).ok().get("progress")
    return found and {name: value for name, value in found.items() if name != "at"}


async def test_a_job_shows_the_latest_report_and_few_events(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    assert await progress(tenant, published) is None
    for percent in range(0, 100, 2):
        answer = await tenant.client.post(
            f"{queue}/progress", {"receiptId": message["receiptId"], "percent": percent, "note": f"row {percent}"}
        )
        assert answer.ok()["ok"] and answer.json["leaseUntil"]

    async def is_shown() -> bool:
        return bool(await progress(tenant, published) == {"percent": 98, "note": "row 98"})

    await eventually(is_shown)
    events = (await tenant.client.get(f"/v1/jobs/{published['jobId']}/events")).ok()["events"]
    assert 1 <= sum(event["event"] == "job.progressed" for event in events) < 25
    found = (await tenant.client.get(f"/v1/jobs/{published['jobId']}")).ok()
    assert (found["status"], found["attempts"]) == ("leased", 1)
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert (await progress(tenant, published))["percent"] == 98
    refused = await tenant.client.post(f"{queue}/progress", {"receiptId": message["receiptId"], "percent": 100})
    refused.problem(409, "already-settled")


async def test_a_worker_learns_of_a_cancellation(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    receipt = message["receiptId"]
    (await tenant.client.post(f"/v1/jobs/{published['jobId']}/cancel")).ok()
    (await tenant.client.post(f"{queue}/progress", {"receiptId": receipt, "percent": 1})).problem(409, "job-cancelled")
    extended = await tenant.client.post(f"{queue}/extend", {"receiptId": receipt, "visibilityTimeoutMs": 60_000})
    extended.problem(409, "job-cancelled")
    [result] = (await tenant.client.post(f"{queue}/extend", {"receiptIds": [receipt], "visibilityTimeoutMs": 60_000})).ok()[
        "results"
    ]
    assert result["problem"]["code"] == "job-cancelled"


@pytest.mark.parametrize(
    "body", [{}, {"percent": -1}, {"percent": 101}, {"percent": "1"}, {"note": "x" * 501}, {"percent": 1, "other": 1}]
)
async def test_a_report_that_cannot_be_used_is_refused(tenant: Tenant, body: dict[str, object]) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    answer = await tenant.client.post(f"{queue}/progress", {"receiptId": message["receiptId"], **body})
    answer.problem(422, "invalid-body")
    (await tenant.client.post(f"{queue}/progress", {"receiptId": "nonsense", "percent": 1})).problem(400, "receipt-invalid")
