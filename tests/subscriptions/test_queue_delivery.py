"""Deliveries to a queue of the tenant."""

import base64

from tests.gateway import Tenant
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually


async def test_messages_of_a_topic_arrive_in_a_queue_as_jobs(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    queue = await tenant.queue("work")
    made = await topic.subscribe(delivery_type="queue", queue="work", filter="eu.>")
    await topic.publish("eu.created", {"n": 1}, headers={"x-source": "shop"})
    await topic.publish("us.created", {"n": 2})
    [message] = await tenant.pull(queue, 10, waitMs=10_000)
    assert message["payload"] == {"n": 1}
    assert message["headers"] == {
        "x-source": "shop",
        "X-MQ-Topic": "orders",
        "X-MQ-Subject": "eu.created",
        "X-MQ-Id": "1",
        "X-MQ-Hops": "1",
    }
    job = (await tenant.client.get(f"/v1/jobs/{message['jobId']}")).ok()
    assert job["queue"] == "work"

    async def is_counted() -> bool:
        return bool((await topic.status(made))["deliveredCount"] == 1)

    await eventually(is_counted)


async def test_bytes_arrive_as_base64(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    queue = await tenant.queue("work")
    await topic.subscribe(delivery_type="queue", queue="work")
    text = base64.b64encode(b"\x00\xff").decode()
    await topic.publish(body_b64=text, contentType="image/png")
    [message] = await tenant.pull(queue, 1, waitMs=10_000)
    assert message["payload"] == text
    assert (message["headers"]["X-MQ-Encoding"], message["headers"]["X-MQ-Content-Type"]) == ("base64", "image/png")


async def test_a_payload_that_the_queue_refuses_is_a_dead_letter(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    await tenant.queue("strict", schema={"type": "object", "required": ["id"]})
    made = await topic.subscribe(delivery_type="queue", queue="strict")
    await topic.publish(payload={"no": "id"})

    async def dead() -> bool:
        return bool(await topic.dead(made))

    await eventually(dead)
    assert "schema-mismatch" in (await topic.dead(made))[0]["reason"]


async def test_a_queue_that_was_deleted_is_waited_for(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    queue = await tenant.queue("work")
    made = await topic.subscribe(delivery_type="queue", queue="work", retryDelaysMs=[200])
    (await tenant.client.delete(queue)).ok(204)
    await topic.publish()

    async def is_failing() -> bool:
        return "queue-not-found" in ((await topic.status(made))["lastError"] or "")

    await eventually(is_failing)
    await tenant.queue("work")
    assert len(await tenant.pull(queue, 1, waitMs=20_000)) == 1
