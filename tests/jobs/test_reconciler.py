"""Jobs whose last event was lost end all the same."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroad.container import Role
from postroad.jetstream.deliveries import ACK
from postroad.jetstream.management import purge_stream
from postroad.jetstream.pull_consumer import PullConsumer
from postroad.jobs.capability import JobsCapability
from postroad.jobs.reconciler import SKEW_MS, stored_between
from postroad.jobs.rules import JobRecord, Step
from postroad.kernel.context import RequestContext
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.queues.capability import QueuesCapability
from postroad.queues.records import QueueRecord, read_message
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server


@pytest.fixture
async def node(own_server: Server, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url, data_dir=tmp_path / "data"), Role.ALL) as running:
        yield running


async def record_of(tenant: Tenant, name: str) -> QueueRecord:
    return await tenant.gateway.node.platform.use(QueuesCapability).lifecycle.find(tenant.id, name)


async def job(tenant: Tenant, published: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(f"/v1/jobs/{published['jobId']}")).ok()
    return found


async def status(tenant: Tenant, published: dict[str, str]) -> object:
    return (await job(tenant, published))["status"]


async def acknowledge_silently(tenant: Tenant, name: str, *, is_dead: bool = False) -> None:
    """Remove the oldest message like a worker that dies before it stores the event."""
    record, queues = await record_of(tenant, name), tenant.gateway.node.platform.use(QueuesCapability)
    consumer = PullConsumer(tenant.gateway.node.platform.connection, record.stream, record.consumer)
    [delivery] = await consumer.pull(1, 5)
    if is_dead:
        stored = read_message(delivery.payload)
        await queues.dead_letters.store(record, stored, delivery.ref.stream_sequence, 1, "no stock")
    await consumer.acknowledge([(delivery.ref, ACK)])


async def reconcile(node: Gateway, rounds: int = 2) -> int:
    """Reconcile some time later."""
    node.clock.ahead_ms += 2 * SKEW_MS
    reconciler = node.node.platform.use(JobsCapability).reconciler
    return sum([await reconciler.run_once() for _ in range(rounds)])


async def test_an_acknowledged_job_whose_event_was_lost_is_done(node: Gateway) -> None:
    tenant = await node.tenant()
    queue = await tenant.queue("orders")
    lost = await tenant.publish(queue, 1)
    kept = [await tenant.publish(queue, n) for n in range(3)]
    delayed = await tenant.publish(queue, 1, delayMs=3_600_000)
    await acknowledge_silently(tenant, "orders")
    assert await status(tenant, lost) == "queued"
    assert await reconcile(node, rounds=1) == 0, "one search is not sufficient"
    assert await reconcile(node, rounds=1) == 1
    assert await status(tenant, lost) == "done"
    events = (await tenant.client.get(f"/v1/jobs/{lost['jobId']}/events")).ok()["events"]
    assert [(event["event"], event.get("is_reconciled")) for event in events][-1] == ("job.done", True)
    assert [await status(tenant, one) for one in kept] == ["queued"] * 3
    assert await status(tenant, delayed) == "delayed"
    assert await reconcile(node) == 0


async def test_a_job_behind_an_old_message_is_found(node: Gateway) -> None:
    """The oldest message stays; those between are gone."""
    tenant = await node.tenant()
    queue = await tenant.queue("orders")
    first = await tenant.publish(queue, "stays")
    assert await tenant.pull(queue, visibilityTimeoutMs=3_600_000)
    lost = [await tenant.publish(queue, n) for n in range(3)]
    last = await tenant.publish(queue, "stays, too")
    for _ in lost:
        await acknowledge_silently(tenant, "orders")
    assert await reconcile(node) == 3
    assert [await status(tenant, one) for one in lost] == ["done"] * 3
    assert (await status(tenant, first), await status(tenant, last)) == ("leased", "queued")


async def test_a_dead_letter_whose_event_was_lost_is_dead(node: Gateway) -> None:
    tenant = await node.tenant()
    queue = await tenant.queue("orders")
    lost = await tenant.publish(queue, 1)
    await acknowledge_silently(tenant, "orders", is_dead=True)
    assert await reconcile(node) == 1
    found = await job(tenant, lost)
    assert (found["status"], found["lastError"]) == ("dead", "no stock")


async def test_a_purge_whose_event_was_lost_expires_the_jobs(node: Gateway) -> None:
    tenant = await node.tenant()
    queue = await tenant.queue("orders")
    lost, record = await tenant.publish(queue, 1), await record_of(tenant, "orders")
    platform = node.node.platform
    context = RequestContext(Caller(tenant.id, "k", frozenset(ALL_SCOPES)))
    await platform.audit.record(context, "queue.purge", "orders")
    await purge_stream(platform.connection, record.stream, f"{record.subject}.ready")
    assert await reconcile(node) == 1
    found = await job(tenant, lost)
    assert (found["status"], found["lastError"]) == ("expired", "purged")


async def test_jobs_of_a_queue_that_was_deleted_without_an_event_expire(node: Gateway) -> None:
    tenant = await node.tenant()
    node.clock.ahead_ms = -2 * SKEW_MS
    queues = [await tenant.queue(name) for name in ("gone", "again")]
    lost = [await tenant.publish(queue, 1) for queue in queues]
    await node.node.platform.use(QueuesCapability).lifecycle.delete_all(tenant.id)
    node.clock.ahead_ms = 0
    new = await tenant.publish(await tenant.queue("again"), 1)
    assert await reconcile(node) == 2
    assert [(await job(tenant, one))["lastError"] for one in lost] == ["the queue was deleted"] * 2
    assert await status(tenant, new) == "queued"


def record(step: Step, redriven_at: int = 0) -> JobRecord:
    return JobRecord("t", "j", "q", "m", 1_000_000, 1_000_000, step.at, (step,), redriven_at)


def test_a_message_is_searched_for_where_its_job_allows() -> None:
    queued = Step(False, 0, 0, 1_000_000, "queued")
    assert stored_between(record(queued)) == (1_000_000 - SKEW_MS, 1_000_000 + SKEW_MS)
    delayed = queued._replace(due_at=5_000_000)
    assert stored_between(record(delayed)) == (5_000_000 - SKEW_MS, 5_000_000 + SKEW_MS)
    retried = Step(False, 2, 4, 9_000_000, "retrying", 9_500_000)
    assert stored_between(record(retried)) == (1_000_000 - SKEW_MS, 9_000_000 + SKEW_MS)
    redriven = Step(False, 0, 0, 7_000_000, "queued")
    first, last = stored_between(record(redriven, redriven_at=7_000_000))
    assert (first, last > 10**12) == (7_000_000 - SKEW_MS, True)
