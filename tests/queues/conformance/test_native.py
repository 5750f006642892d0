"""RabbitMQ beside Postroad: native programs on the same queue, lost connections, workers that are gone."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pika
import pytest

from postroad.queues.capability import QueuesCapability
from postroad.queues.rabbitmq.names import dead_queue, main_queue
from tests.queues.conformance.conftest import PREFIX, Case
from tests.queues.conformance.test_queues import LONG, drained
from tests.rabbitmq_server import needs_rabbitmq
from tests.waiting import eventually

pytestmark = needs_rabbitmq


def names_of(case: Case, name: str = "q") -> tuple[str, str]:
    record = case.tenant.gateway.node.platform.use(QueuesCapability).lifecycle.cached(case.tenant.id, name)
    assert record is not None
    return main_queue(PREFIX, record), dead_queue(PREFIX, record)


async def natively(case: Case, work: Callable[[Any], Any]) -> Any:
    """Run a native program, which blocks, with a channel of its own."""

    def run() -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(case.url))
        try:
            return work(connection.channel())
        finally:
            connection.close()

    return await asyncio.to_thread(run)


async def test_a_native_program_reads_what_was_published(rabbit_case: Case) -> None:
    queue = await rabbit_case.queue()
    main, _ = names_of(rabbit_case)
    published = await rabbit_case.tenant.publish(queue, {"n": 1}, headers={"kind": "x"}, correlationId="c")

    def consume(channel: Any) -> Any:
        method, properties, body = channel.basic_get(main)
        channel.basic_ack(method.delivery_tag)
        return properties, body

    properties, body = await natively(rabbit_case, consume)
    assert json.loads(body) == {"n": 1}
    assert (properties.message_id, properties.correlation_id) == (published["messageId"], "c")
    assert properties.headers["kind"] == "x" and properties.headers["x-postroad-job"] == published["jobId"]
    assert properties.headers["x-postroad-attempt"] == 1


@pytest.mark.parametrize(
    ("body", "payload", "headers"),
    [
        (b'{"n": 1}', {"n": 1}, {"kind": "1"}),
        (b"plain text", "plain text", {"kind": "1"}),
        (b"\xff\xfe", "//4=", {"kind": "1", "x-postroad-encoding": "base64"}),
    ],
)
async def test_a_native_message_is_leased_with_ids_that_it_keeps(
    rabbit_case: Case, body: bytes, payload: object, headers: dict[str, str]
) -> None:
    queue = await rabbit_case.queue(retryDelaysMs=[0])
    main, _ = names_of(rabbit_case)

    def publish(channel: Any) -> None:
        channel.confirm_delivery()
        channel.basic_publish("", main, body, pika.BasicProperties(headers={"kind": 1}))

    await natively(rabbit_case, publish)
    [first] = await drained(rabbit_case, queue, 1)
    assert (first["payload"], first["headers"], first["attempt"]) == (payload, headers, 1)
    await rabbit_case.nack(queue, first, "requeue")
    [again] = await drained(rabbit_case, queue, 1)
    assert (again["messageId"], again["jobId"], again["attempt"]) == (first["messageId"], first["jobId"], 2)
    (await rabbit_case.tenant.ack(queue, again["receiptId"])).ok()


async def test_what_a_native_consumer_rejects_becomes_a_dead_letter(rabbit_case: Case) -> None:
    queue = await rabbit_case.queue()
    main, _ = names_of(rabbit_case)
    published = await rabbit_case.tenant.publish(queue, 1)

    def reject(channel: Any) -> None:
        method, _, _ = channel.basic_get(main)
        channel.basic_reject(method.delivery_tag, requeue=False)

    await natively(rabbit_case, reject)
    assert rabbit_case.rabbit is not None
    mover = rabbit_case.rabbit.dead_letters

    async def is_moved() -> bool:
        await mover.run_once()
        return bool(await rabbit_case.dead(queue))

    await eventually(is_moved)
    [letter] = await rabbit_case.dead(queue)
    assert letter["messageId"] == published["messageId"] and "rejected" in letter["reason"]


async def test_a_lease_of_a_worker_that_is_gone_has_ended_and_its_message_returns(rabbit_case: Case) -> None:
    queue = await rabbit_case.queue()
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await rabbit_case.elsewhere.pull(queue, waitMs=5000, visibilityTimeoutMs=LONG)
    assert rabbit_case.other_rabbit is not None
    await rabbit_case.other_rabbit.stop()
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).problem(409, "lease-expired")
    [again] = await drained(rabbit_case, queue, 1)
    assert (again["messageId"], again["attempt"]) == (message["messageId"], 2)


async def test_an_answered_ack_outlives_the_connection(rabbit_case: Case) -> None:
    """AMQP does not confirm acks: the one that RabbitMQ did not get is suppressed when the message is delivered again."""
    queue = await rabbit_case.queue()
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await drained(rabbit_case, queue, 1)
    assert rabbit_case.rabbit is not None
    backend = rabbit_case.rabbit.backend
    [receiver] = [one for one in backend._receivers.values() if one.queue == names_of(rabbit_case)[0]]
    channel = receiver._channel
    assert channel is not None

    async def lose(*_: object, **__: object) -> None:
        """An ack that is not sent."""

    channel.basic_ack = lose  # type: ignore[method-assign]
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).ok()
    await channel.close()
    assert await rabbit_case.tenant.pull(queue, waitMs=1500) == []
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).ok()
