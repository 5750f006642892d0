"""Single messages and jobs: what a backend cannot do has the exact error that names it."""

from typing import Any

from postroad.jetstream.stream_reader import Entry
from postroad.jobs.capability import JobsCapability
from postroad.jobs.reconciler import SKEW_MS
from postroad.queues.records import read_message
from tests.gateway import Answer
from tests.queues.conformance.conftest import Case
from tests.queues.conformance.test_native import only_record
from tests.queues.conformance.test_queues import drained
from tests.rabbitmq_server import needs_rabbitmq
from tests.waiting import eventually

HOUR = 3_600_000


def expect(case: Case, feature: str, response: Answer, status: int = 200) -> Any:
    """The body if the backend supports the operation; else its error for ready or leased messages."""
    if case.supports(feature):
        return response.ok(status)
    return response.problem(409, "backend-cannot")


async def job(case: Case, published: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await case.tenant.client.get(f"/v1/jobs/{published['jobId']}")).ok()
    return found


async def test_ready_messages_are_shown_and_removed_where_the_backend_can(case: Case) -> None:
    queue = await case.queue()
    published = await case.tenant.publish(queue, 1)
    client, path = case.tenant.client, f"{queue}/messages/{published['messageId']}"
    expect(case, "peek", await client.get(f"{queue}/messages"))
    expect(case, "peek", await client.get(path))
    expect(case, "remove", await client.post(f"{queue}/purge", {"filter": {"search": "x"}}))
    expect(case, "remove", await client.post(f"{queue}/purge", {"filter": {"search": "x"}, "dryRun": True}))
    expect(case, "remove", await client.delete(path), 204)


async def test_delayed_messages_are_found_and_removed(case: Case) -> None:
    queue = await case.queue()
    first, second = [await case.tenant.publish(queue, text, delayMs=HOUR) for text in ("one", "two")]
    client = case.tenant.client
    assert (await client.get(f"{queue}/messages/{first['messageId']}")).ok()["state"] == "delayed"
    found = (await client.get("/v1/messages?search=one")).ok()
    assert [one["messageId"] for one in found["messages"]] == [first["messageId"]] and not found.get("unreadable")
    (await client.delete(f"{queue}/messages/{first['messageId']}")).ok(204)
    purged = (await client.post(f"{queue}/purge", {"filter": {"search": "two", "state": "delayed"}})).ok()
    assert purged["count"] == 1
    assert {(await job(case, one))["status"] for one in (first, second)} == {"cancelled"}
    assert (await case.stats(queue))["delayed"] == 0


async def test_a_delayed_job_is_cancelled_retried_and_run(case: Case) -> None:
    queue = await case.queue()
    published = await case.tenant.publish(queue, 1, delayMs=HOUR)
    path = f"/v1/jobs/{published['jobId']}"
    assert (await case.tenant.client.post(f"{path}/cancel", {})).ok()["status"] == "cancelled"
    (await case.tenant.client.post(f"{path}/retry", {})).ok()
    [message] = await drained(case, queue, 1)
    assert (message["messageId"], message["attempt"]) == (published["messageId"], 1)
    later = await case.tenant.publish(queue, 2, delayMs=HOUR)
    (await case.tenant.client.post(f"/v1/jobs/{later['jobId']}/run", {})).ok()
    assert [one["messageId"] for one in await drained(case, queue, 1)] == [later["messageId"]]


async def test_a_ready_or_leased_job_is_cancelled_where_the_backend_can(case: Case) -> None:
    queue = await case.queue()
    published = await case.tenant.publish(queue, 1)
    if not case.supports("cancel"):
        expect(case, "cancel", await case.tenant.client.post(f"/v1/jobs/{published['jobId']}/cancel", {}))
    await drained(case, queue, 1)
    expect(case, "cancel", await case.tenant.client.post(f"/v1/jobs/{published['jobId']}/cancel", {}))


async def test_a_retrying_job_is_shown_and_run_at_once(case: Case) -> None:
    queue = await case.queue(retryDelaysMs=[HOUR])
    published = await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    await case.nack(queue, message, "retry", reason="busy")
    shown = (await case.tenant.client.get(f"{queue}/messages/{published['messageId']}")).ok()
    assert shown["state"] == "retrying" and shown["nextAt"]
    (await case.tenant.client.post(f"/v1/jobs/{published['jobId']}/run", {})).ok()
    [again] = await drained(case, queue, 1)
    assert (again["messageId"], again["attempt"]) == (published["messageId"], 2)


async def test_keys_priorities_and_groups_are_accepted_where_the_backend_can(case: Case) -> None:
    queue = await case.queue()
    for feature, field, value in (
        ("uniqueKey", "uniqueKey", "k"),
        ("priority", "priority", "high"),
        ("fairness", "groupId", "g"),
    ):
        response = await case.tenant.client.post(f"{queue}/messages", {"payload": 1, field: value})
        if case.supports(feature):
            response.ok(201)
        else:
            assert response.problem(422, "invalid-body")["errors"][0]["path"] == f"$.{field}"


async def test_a_dead_letter_queue_can_be_read(case: Case) -> None:
    await case.queue("dead")
    settings = {"deadLetterQueue": "dead", "backend": case.backend}
    response = await case.tenant.client.put("/v1/queues/q", settings)
    if case.supports("peek"):
        response.ok(201)
    else:
        assert response.problem(422, "invalid-body")["errors"][0]["path"] == "$.deadLetterQueue"


@needs_rabbitmq
async def test_jobs_in_rabbitmq_end_only_by_what_is_known(rabbit_case: Case) -> None:
    """A worker that dies between the marker of an ack and its event leaves a job that the reconciler ends."""
    case = rabbit_case
    queue = await case.queue()
    ready, leased, done, dead = [await case.tenant.publish(queue, text) for text in ("ready", "leased", "done", "dead")]
    by_id = {one["messageId"]: one for one in await drained(case, queue, 4)}
    await case.nack(queue, by_id[ready["messageId"]], "requeue")
    record, queues = only_record(case)
    receipt = queues.consumer.receipt(record, by_id[done["messageId"]]["receiptId"])
    await case.rabbit.backend.markers.mark(record, [(receipt.stream_sequence, "0")])
    receipt = queues.consumer.receipt(record, by_id[dead["messageId"]]["receiptId"])
    [entry] = await queues.backend.fetch(record, [receipt])
    assert isinstance(entry, Entry)
    await queues.dead_letters.store(record, read_message(entry.payload), receipt.stream_sequence, 1, "no stock")
    clock, reconciler = case.tenant.gateway.clock, case.tenant.gateway.node.platform.use(JobsCapability).reconciler

    async def is_reconciled() -> bool:
        clock.ahead_ms += 2 * SKEW_MS
        await reconciler.run_once()
        return [(await job(case, one))["status"] for one in (done, dead)] == ["done", "dead"]

    try:
        await eventually(is_reconciled)
    finally:
        clock.ahead_ms = 0
    assert (await job(case, ready))["status"] in ("queued", "leased")
    assert (await job(case, leased))["status"] in ("leased", "queued")
