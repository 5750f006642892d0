"""Jobs that are cancelled, run at once and retried on request."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from postroad.container import Role
from postroad.jobs.capability import JobsCapability
from postroad.jobs.reconciler import SKEW_MS
from postroad.kernel.clock import now_ms, rfc3339
from postroad.queues.capability import QueuesCapability
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


async def job(tenant: Tenant, published: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(f"/v1/jobs/{published['jobId']}")).ok()
    return found


async def change(tenant: Tenant, published: dict[str, str], action: str, body: object = None) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.post(f"/v1/jobs/{published['jobId']}/{action}", body)).ok()
    return found


async def until(tenant: Tenant, published: dict[str, str], status: str) -> None:
    """`leased` may appear some milliseconds late."""

    async def has_status() -> bool:
        return bool((await job(tenant, published))["status"] == status)

    await eventually(has_status)


async def events(tenant: Tenant, published: dict[str, str]) -> list[str]:
    found = (await tenant.client.get(f"/v1/jobs/{published['jobId']}/events")).ok()["events"]
    return [event["event"] for event in found]


# Publish at a time


async def test_a_message_with_run_at_is_delayed_until_then(tenant: Tenant) -> None:
    queue = await tenant.queue()
    at = now_ms() + 3_600_000
    delayed = await job(tenant, await tenant.publish(queue, 1, runAt=rfc3339(at)))
    assert (delayed["status"], delayed["dueAt"]) == ("delayed", rfc3339(at))
    soon = await tenant.publish(queue, 2, runAt=rfc3339(now_ms() + 300))
    [message] = await tenant.pull(queue, waitMs=10_000)
    assert message["jobId"] == soon["jobId"]


async def test_a_time_that_has_passed_is_now_and_a_zone_counts(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1, runAt="2020-01-01T00:00:00+02:00")
    assert len(await tenant.pull(queue)) == 1


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"runAt": "2099-01-01T00:00:00Z"}, "$.runAt"),
        ({"runAt": "2020-01-01T00:00:00Z", "delayMs": 5}, "$.runAt"),
        ({"runAt": "2020-01-01T00:00:00"}, "$.runAt"),
        ({"runAt": "tomorrow"}, "$.runAt"),
    ],
)
async def test_a_run_at_that_cannot_be_used_is_refused(tenant: Tenant, fields: dict[str, object], path: str) -> None:
    queue = await tenant.queue()
    problem = (await tenant.client.post(f"{queue}/messages", {"payload": 1, **fields})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == path
    batch = (await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": 1, **fields}]})).json
    assert "$.messages[0].runAt" in str(batch) or "$.messages[...].runAt" in str(batch)


async def test_the_same_idempotency_key_with_another_run_at_is_refused(tenant: Tenant) -> None:
    queue = await tenant.queue()
    body = {"payload": 1, "idempotencyKey": "k", "runAt": "2020-01-01T00:00:00Z"}
    first = (await tenant.client.post(f"{queue}/messages", body)).ok(201)
    assert (await tenant.client.post(f"{queue}/messages", body)).ok(201) == first
    other = await tenant.client.post(f"{queue}/messages", body | {"runAt": "2020-01-01T00:00:01Z"})
    other.problem(422, "idempotency-mismatch")


# Cancel


async def test_the_job_of_a_deferred_message_can_be_cancelled(tenant: Tenant) -> None:
    queue = await tenant.queue()
    messages = [{"payload": n, "groupId": "noisy"} for n in range(150)]
    published = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()["results"]
    assert (await tenant.client.get(queue)).ok()["stats"]["deferred"] > 0
    for one in (published[-1], published[60], published[0]):
        assert (await change(tenant, one, "cancel"))["status"] == "cancelled"
    gone, received = {published[n]["messageId"] for n in (-1, 60, 0)}, set[str]()
    while len(received) < 147:
        pulled = await tenant.pull(queue, 50, waitMs=2000)
        received |= {one["messageId"] for one in pulled}
        (await tenant.client.post(f"{queue}/ack", {"receiptIds": [one["receiptId"] for one in pulled]})).ok()
    assert not gone & received
    assert await tenant.pull(queue, 10, waitMs=300) == []


@pytest.mark.parametrize("delay_ms", [0, 3_600_000])
async def test_a_cancelled_job_is_not_delivered(tenant: Tenant, delay_ms: int) -> None:
    queue = await tenant.queue()
    other = await tenant.publish(queue, "other")
    published = await tenant.publish(queue, 1, delayMs=delay_ms)
    found = await change(tenant, published, "cancel", {"reason": "not needed"})
    assert (found["status"], found["lastError"]) == ("cancelled", "not needed")
    assert await change(tenant, published, "cancel") == found, "a repetition changes nothing"
    assert await events(tenant, published) == ["job.queued", "job.cancelled"]
    assert [message["jobId"] for message in await tenant.pull(queue, 10)] == [other["jobId"]]
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["ready"], stats["delayed"]) == (0, 0)
    listed = (await tenant.client.get("/v1/jobs?status=cancelled")).ok()["jobs"]
    assert [one["jobId"] for one in listed] == [published["jobId"]]


async def test_a_retrying_job_is_cancelled(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": "retry", "delayMs": 400})
    assert (await change(tenant, published, "cancel"))["status"] == "cancelled"
    assert await tenant.pull(queue, waitMs=1_000) == []


async def test_a_delayed_job_that_became_ready_is_found_among_others(tenant: Tenant) -> None:
    """The sequence of such a message is in none of its events."""
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1, delayMs=200)
    await tenant.publish(queue, 2, delayMs=200)

    async def is_ready() -> bool:
        return bool((await tenant.client.get(queue)).ok()["stats"]["ready"] == 2)

    await eventually(is_ready)
    assert (await change(tenant, published, "cancel"))["status"] == "cancelled"
    assert [message["payload"] for message in await tenant.pull(queue, 10)] == [2]


async def test_a_cancelled_job_that_a_worker_has_is_not_delivered_again(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1)
    await tenant.pull(queue, visibilityTimeoutMs=500)
    assert (await change(tenant, published, "cancel"))["status"] == "cancelled"
    assert await tenant.pull(queue, waitMs=1_500) == []
    assert (await job(tenant, published))["status"] == "cancelled"


async def test_a_worker_that_acknowledges_a_cancelled_job_has_done_it(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1)
    [message] = await tenant.pull(queue)
    await change(tenant, published, "cancel")
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert (await job(tenant, published))["status"] == "done"


async def test_an_ended_job_cannot_be_cancelled(tenant: Tenant) -> None:
    queue = await tenant.queue()
    done, dead = await tenant.publish(queue, 1), await tenant.publish(queue, 2)
    first, second = await tenant.pull(queue, 2)
    (await tenant.ack(queue, first["receiptId"])).ok()
    await tenant.client.post(f"{queue}/nack", {"receiptId": second["receiptId"], "action": "dlq"})
    for published, status in ((done, "done"), (dead, "dead")):
        problem = (await tenant.client.post(f"/v1/jobs/{published['jobId']}/cancel")).problem(409, "job-ended")
        assert status in problem["detail"]
    (await tenant.client.post("/v1/jobs/nothing/cancel")).problem(404, "job-not-found")


async def test_jobs_of_others_cannot_be_changed(tenant: Tenant, node: Gateway) -> None:
    published = await tenant.publish(await tenant.queue(), 1)
    for other in (await node.tenant(), await tenant.another_key(allowed_queues=("x",))):
        for action in ("cancel", "run", "retry"):
            (await other.client.post(f"/v1/jobs/{published['jobId']}/{action}")).problem(404, "job-not-found")


async def test_a_cancellation_whose_event_was_lost_is_repeated_or_reconciled(tenant: Tenant, node: Gateway) -> None:
    """The process died after the message had left the queue."""
    queues, jobs = node.node.platform.use(QueuesCapability), node.node.platform.use(JobsCapability)
    queue = await tenant.queue("orders")
    repeated, reconciled = await tenant.publish(queue, 1, delayMs=3_600_000), await tenant.publish(queue, 2)
    record = await queues.lifecycle.find(tenant.id, "orders")
    for published in (repeated, reconciled):
        located = await queues.locator.find(record, published["messageId"], 0, now_ms() - 60_000)
        assert located is not None
        sequence = located.entry.sequence
        await queues.cancelled_messages.store(record, located.message, sequence, attempts=0, lease_until=0, reason="why")
        await node.node.platform.connection.api(f"STREAM.MSG.DELETE.{record.stream}", {"seq": sequence})
    assert (await job(tenant, repeated))["status"] == "delayed"
    assert (await change(tenant, repeated, "cancel"))["status"] == "cancelled"
    node.clock.ahead_ms += 2 * SKEW_MS
    for _ in range(2):
        await jobs.reconciler.run_once()
    found = await job(tenant, reconciled)
    assert (found["status"], found["lastError"]) == ("cancelled", "why")


async def test_cancel_and_pull_at_the_same_time_never_lose_track(tenant: Tenant, node: Gateway) -> None:
    """Each job is either cancelled and perhaps delivered once, or done."""
    queue = await tenant.queue()
    published = [await tenant.publish(queue, n) for n in range(20)]

    async def work() -> None:
        while messages := await tenant.pull(queue, 3):
            for message in messages:
                (await tenant.ack(queue, message["receiptId"])).ok()

    async def cancel() -> None:
        for one in reversed(published):
            answer = await tenant.client.post(f"/v1/jobs/{one['jobId']}/cancel")
            assert answer.status == 200 or answer.json["code"] == "job-ended", answer.json

    await asyncio.gather(work(), cancel())
    statuses = [(await job(tenant, one))["status"] for one in published]
    assert set(statuses) <= {"done", "cancelled"} and "cancelled" in statuses
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["ready"], stats["leased"]) == (0, 0)


# Run now


async def test_a_delayed_job_runs_now(tenant: Tenant) -> None:
    queue = await tenant.queue(retentionMs=600_000)
    published = await tenant.publish(queue, 1, delayMs=3_600_000)
    assert (await change(tenant, published, "run"))["status"] == "queued"
    [message] = await tenant.pull(queue, waitMs=5_000)
    assert (message["jobId"], message["attempt"]) == (published["jobId"], 1)
    await until(tenant, published, "leased")
    assert (await change_refused(tenant, published, "run"))["code"] == "job-in-progress"
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert (await change_refused(tenant, published, "run"))["code"] == "job-ended"
    assert (await tenant.client.get(queue)).ok()["stats"]["delayed"] == 0


async def change_refused(tenant: Tenant, published: dict[str, str], action: str) -> dict[str, Any]:
    answer = await tenant.client.post(f"/v1/jobs/{published['jobId']}/{action}")
    assert answer.status in (409, 410), answer.json
    found: dict[str, Any] = answer.json
    return found


async def test_a_job_that_runs_now_can_be_cancelled(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1, delayMs=3_600_000)
    await change(tenant, published, "run")
    assert (await change(tenant, published, "cancel"))["status"] == "cancelled"
    assert await tenant.pull(queue, waitMs=500) == []


async def test_a_retrying_job_runs_now(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1)
    [first] = await tenant.pull(queue)
    await tenant.client.post(f"{queue}/nack", {"receiptId": first["receiptId"], "action": "retry", "delayMs": 3_600_000})
    for n in range(3):  # deliveries in between
        await tenant.publish(queue, n)
        [other] = await tenant.pull(queue)
        (await tenant.ack(queue, other["receiptId"])).ok()
    assert (await change(tenant, published, "run"))["status"] == "queued"
    [again] = await tenant.pull(queue, waitMs=5_000)
    assert (again["jobId"], again["attempt"]) == (published["jobId"], 2)
    (await tenant.ack(queue, again["receiptId"])).ok()
    assert (await job(tenant, published))["status"] == "done"


async def test_a_ready_job_stays_as_it_is(tenant: Tenant) -> None:
    published = await tenant.publish(await tenant.queue(), 1)
    assert (await change(tenant, published, "run"))["status"] == "queued"
    assert await events(tenant, published) == ["job.queued"]


# Retry


async def test_a_dead_job_returns_to_its_queue(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, {"n": 1})
    [message] = await tenant.pull(queue)
    await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": "dlq", "reason": "bad"})
    found = await change(tenant, published, "retry")
    assert (found["status"], found["attempts"], found["lastError"]) == ("queued", 0, "bad")
    assert (await tenant.client.get(f"{queue}/dlq")).ok()["total"] == 0
    [again] = await tenant.pull(queue)
    assert (again["jobId"], again["payload"], again["attempt"]) == (published["jobId"], {"n": 1}, 1)
    (await tenant.ack(queue, again["receiptId"])).ok()
    assert (await job(tenant, published))["status"] == "done"


async def test_a_cancelled_job_returns_to_its_queue_and_can_be_cancelled_again(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, {"n": 1}, headers={"kind": "x"})
    for _ in range(2):
        assert (await change(tenant, published, "cancel"))["status"] == "cancelled"
        assert (await change(tenant, published, "retry"))["status"] == "queued"
    [message] = await tenant.pull(queue)
    assert (message["payload"], message["headers"]) == ({"n": 1}, {"kind": "x"})
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert (await job(tenant, published))["status"] == "done"


async def test_a_cancelled_job_is_not_retried_while_a_worker_may_have_it(tenant: Tenant, node: Gateway) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1)
    await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await until(tenant, published, "leased")
    await change(tenant, published, "cancel")
    assert (await change_refused(tenant, published, "retry"))["code"] == "job-in-progress"
    node.clock.ahead_ms = 61_000
    assert (await change(tenant, published, "retry"))["status"] == "queued"


async def test_a_job_without_a_payload_is_gone(tenant: Tenant) -> None:
    queue = await tenant.queue()
    done, dead = await tenant.publish(queue, 1), await tenant.publish(queue, 2)
    first, second = await tenant.pull(queue, 2)
    assert (await change_refused(tenant, done, "retry"))["code"] == "precondition-failed"
    (await tenant.ack(queue, first["receiptId"])).ok()
    await tenant.client.post(f"{queue}/nack", {"receiptId": second["receiptId"], "action": "dlq"})
    (await tenant.client.delete(f"{queue}/dlq/{dead['messageId']}")).ok(204)
    for published in (done, dead):
        problem = await change_refused(tenant, published, "retry")
        assert (problem["status"], problem["code"]) == (410, "payload-gone")


async def test_a_deleted_queue_takes_its_cancelled_messages_with_it(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1)
    await change(tenant, published, "cancel")
    (await tenant.client.delete(queue)).ok(204)
    (await tenant.client.post(f"/v1/jobs/{published['jobId']}/retry")).problem(404, "queue-not-found")
    await tenant.queue()
    assert (await change_refused(tenant, published, "retry"))["code"] == "payload-gone"


# Unique keys and expiry


async def test_a_cancelled_job_releases_its_unique_key_and_a_retry_needs_it(tenant: Tenant) -> None:
    queue = await tenant.queue()
    first = await tenant.publish(queue, 1, uniqueKey="k", delayMs=3_600_000)
    await change(tenant, first, "cancel")
    second = await tenant.publish(queue, 2, uniqueKey="k")
    assert second["jobId"] != first["jobId"]
    problem = await change_refused(tenant, first, "retry")
    assert problem["code"] == "precondition-failed" and "uniqueKey" in problem["detail"]
    await change(tenant, second, "cancel")
    assert (await change(tenant, first, "retry"))["status"] == "queued"
    assert (await tenant.publish(queue, 3, uniqueKey="k"))["jobId"] == first["jobId"]
    [message] = await tenant.pull(queue, 10)
    assert message["payload"] == 1


async def test_a_delayed_job_with_a_key_runs_now(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await tenant.publish(queue, 1, uniqueKey="k", delayMs=3_600_000)
    await change(tenant, published, "run")
    [message] = await tenant.pull(queue, waitMs=5_000)
    assert message["jobId"] == published["jobId"]


async def test_the_reconciler_finds_messages_with_a_key(tenant: Tenant, node: Gateway) -> None:
    queue = await tenant.queue()
    jobs = [await tenant.publish(queue, 1, uniqueKey="a"), await tenant.publish(queue, 1, uniqueKey="b", delayMs=100)]
    node.clock.ahead_ms += 2 * SKEW_MS
    for _ in range(3):
        assert await node.node.platform.use(JobsCapability).reconciler.run_once() == 0
    assert [(await job(tenant, one))["status"] for one in jobs] == ["queued", "queued"]


async def test_an_expired_job_has_an_event_and_is_counted(tenant: Tenant) -> None:
    queue = await tenant.queue()
    at = now_ms() + 500
    published = await tenant.publish(queue, 1, expiresAt=rfc3339(at))
    found = await job(tenant, published)
    assert (found["status"], found["expiresAt"]) == ("queued", rfc3339(at))

    async def has_event() -> bool:
        return await events(tenant, published) == ["job.queued", "job.expired"]

    await eventually(has_event)
    found = await job(tenant, published)
    assert (found["status"], found["updatedAt"]) == ("expired", rfc3339(at))
    assert (await change_refused(tenant, published, "cancel"))["code"] == "job-ended"
    assert (await change_refused(tenant, published, "retry"))["code"] == "payload-gone"
    assert f'postroad_messages_expired_total{{tenant="{tenant.id}"}}' in (await tenant.client.get("/metrics")).body.decode()
