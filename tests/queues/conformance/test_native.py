"""RabbitMQ beside Postroad: native programs on the same queue, lost connections, workers that are gone."""

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pika
import pytest
from prometheus_client.parser import text_string_to_metric_families

from postroad.api.queues import BackendUnavailable, QueueNotFound
from postroad.kernel.configuration import Secret
from postroad.queues.capability import QueuesCapability
from postroad.queues.rabbitmq import messages
from postroad.queues.rabbitmq.backend import RabbitBackend
from postroad.queues.rabbitmq.names import dead_queue, main_queue
from postroad.queues.records import QueueRecord
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.queues.conformance.conftest import PREFIX, Case, rabbit_of
from tests.queues.conformance.test_queues import LONG, drained
from tests.rabbitmq_server import needs_rabbitmq
from tests.waiting import eventually

pytestmark = needs_rabbitmq


def only_record(case: Case, name: str = "q") -> tuple[QueueRecord, QueuesCapability]:
    queues = case.tenant.gateway.node.platform.use(QueuesCapability)
    record = queues.lifecycle.cached(case.tenant.id, name)
    assert record is not None
    return record, queues


def names_of(case: Case, name: str = "q") -> tuple[str, str]:
    record, _ = only_record(case, name)
    return main_queue(PREFIX, record), dead_queue(PREFIX, record)


async def natively(case: Case, work: Callable[[Any], Any]) -> Any:
    """Run a native program, which blocks, with a channel of its own."""

    def run() -> Any:
        connection = pika.BlockingConnection(pika.URLParameters(case.rabbit_url))
        try:
            return work(connection.channel())
        finally:
            connection.close()

    return await asyncio.to_thread(run)


def publisher(case: Case, body: bytes, **properties: object) -> Callable[[Any], None]:
    def publish(channel: Any) -> None:
        channel.confirm_delivery()
        channel.basic_publish("", names_of(case)[0], body, pika.BasicProperties(**properties))

    return publish


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
    await natively(rabbit_case, publisher(rabbit_case, body, headers={"kind": 1}))
    [first] = await drained(rabbit_case, queue, 1)
    assert (first["payload"], first["headers"], first["attempt"]) == (payload, headers, 1)
    await rabbit_case.nack(queue, first, "requeue")
    [again] = await drained(rabbit_case, queue, 1)
    assert (again["messageId"], again["jobId"], again["attempt"]) == (first["messageId"], first["jobId"], 2)
    (await rabbit_case.tenant.ack(queue, again["receiptId"])).ok()


OLD = int(time.time()) - 3600


@pytest.mark.parametrize("settings", [{}, {"retentionMs": 600_000}], ids=["purge", "retention"])
async def test_the_time_of_a_native_program_ends_no_message(rabbit_case: Case, settings: dict[str, Any]) -> None:
    """A `timestamp` may be of any clock, and of any moment: it is shown, but neither a purge nor the retention goes by it."""
    queue = await rabbit_case.queue(retryDelaysMs=[0], **settings)
    (await rabbit_case.tenant.client.post(f"{queue}/purge", {})).ok()
    await natively(rabbit_case, publisher(rabbit_case, b'"new"', timestamp=OLD))
    for attempt in (1, 2, 3):
        [message] = await drained(rabbit_case, queue, 1)
        assert (message["payload"], message["attempt"]) == ("new", attempt)
        assert datetime.fromisoformat(message["headers"]["amqp-timestamp"]).timestamp() == OLD
        await rabbit_case.nack(queue, message, *(("requeue",) if attempt == 1 else ("retry",)))


async def test_what_a_native_consumer_rejects_becomes_a_dead_letter(rabbit_case: Case) -> None:
    queue = await rabbit_case.queue()
    main, _ = names_of(rabbit_case)
    published = await rabbit_case.tenant.publish(queue, 1)

    def reject(channel: Any) -> None:
        method, _, _ = channel.basic_get(main)
        channel.basic_reject(method.delivery_tag, requeue=False)

    await natively(rabbit_case, reject)
    mover = rabbit_case.rabbit.dead_letters

    async def is_moved() -> bool:
        await mover.run_once()
        return bool(await rabbit_case.dead(queue))

    await eventually(is_moved)
    [letter] = await rabbit_case.dead(queue)
    assert letter["messageId"] == published["messageId"] and "rejected" in letter["reason"]


async def test_a_worker_holds_no_more_than_its_prefetch(rabbit_case: Case, engine_url: str) -> None:
    queue = await rabbit_case.queue()
    for number in range(5):
        await rabbit_case.tenant.publish(queue, number)
    changes = {"rabbitmq_url": Secret(rabbit_case.rabbit_url), "rabbitmq_prefix": PREFIX, "rabbitmq_prefetch": 2}
    async with running_gateway(gateway_settings(engine_url, **changes)) as narrow:
        worker = narrow.seen_by(rabbit_case.tenant)
        held: list[dict[str, Any]] = []

        async def holds_two() -> bool:
            held.extend(await worker.pull(queue, 5, waitMs=500, visibilityTimeoutMs=LONG))
            return len(held) >= 2

        await eventually(holds_two)
        assert len(held) == 2 and await worker.pull(queue, 5, waitMs=300) == []
        (await worker.ack(queue, held[0]["receiptId"])).ok()
        assert len(await worker.pull(queue, 5, waitMs=20_000)) == 1


async def test_a_lease_of_a_worker_that_is_gone_has_ended_and_its_message_returns(
    rabbit_case: Case, third_gateway: Gateway
) -> None:
    queue = await rabbit_case.queue()
    await rabbit_case.tenant.publish(queue, 1)
    elsewhere = third_gateway.seen_by(rabbit_case.tenant)
    [message] = await elsewhere.pull(queue, waitMs=5000, visibilityTimeoutMs=LONG)
    await rabbit_of(third_gateway).close()
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).problem(409, "lease-expired")
    [again] = await drained(rabbit_case, queue, 1)
    assert (again["messageId"], again["attempt"]) == (message["messageId"], 2)


@pytest.mark.parametrize("is_native", [False, True], ids=["own", "native"])
async def test_a_delivery_that_nobody_took_is_no_attempt(rabbit_case: Case, is_native: bool) -> None:
    """With `maxAttempts` of 1, it would be a dead letter that no consumer has seen."""
    queue = await rabbit_case.queue(maxAttempts=1)
    record, queues = only_record(rabbit_case)
    if is_native:
        await natively(rabbit_case, lambda channel: channel.basic_publish("", main_queue(PREFIX, record), b"1"))
    else:
        await rabbit_case.tenant.publish(queue, 1)
    for _ in range(2):
        groups = await queues.backend.receive(record, 1, 20)
        await queues.backend.release(record, groups)
    [message] = await drained(rabbit_case, queue, 1)
    assert (message["payload"], message["attempt"]) == (1, 1)
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).ok()
    assert await rabbit_case.tenant.pull(queue, waitMs=300) == []


async def test_a_dead_letter_is_not_delivered_again_if_its_lease_ends_meanwhile(
    rabbit_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel is lost between the dead letter and the end of the lease."""
    queue = await rabbit_case.queue()
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await drained(rabbit_case, queue, 1)
    receiver = rabbit_case.receiver()
    _, queues = only_record(rabbit_case)
    store = queues.dead_letters.store

    async def store_and_lose_the_channel(*arguments: Any) -> Any:
        letter = await store(*arguments)
        assert receiver._channel is not None
        await receiver._channel.close()
        return letter

    monkeypatch.setattr(queues.dead_letters, "store", store_and_lose_the_channel)
    await rabbit_case.nack(queue, message, "dlq")
    assert await rabbit_case.tenant.pull(queue, waitMs=1500) == []
    assert [one["messageId"] for one in await rabbit_case.dead(queue)] == [message["messageId"]]


async def test_an_answered_ack_outlives_the_connection(rabbit_case: Case) -> None:
    """AMQP does not confirm acks: the one that RabbitMQ did not get is suppressed when the message is delivered again."""
    queue = await rabbit_case.queue()
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await drained(rabbit_case, queue, 1)
    backend = rabbit_case.rabbit.backend
    [receiver] = [one for one in backend.owned.receivers.values() if one.queue == names_of(rabbit_case)[0]]
    channel = receiver._channel
    assert channel is not None

    async def lose(*_: object, **__: object) -> None:
        """An ack that is not sent."""

    channel.basic_ack = lose  # type: ignore[method-assign]
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).ok()
    await channel.close()
    assert await rabbit_case.tenant.pull(queue, waitMs=1500) == []
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).ok()


async def test_an_answered_ack_of_a_native_message_outlives_the_connection(rabbit_case: Case) -> None:
    """It would come again with other ids, so its ack is answered only after a response of RabbitMQ on the same channel."""
    queue = await rabbit_case.queue()
    await natively(rabbit_case, publisher(rabbit_case, b'"native"'))
    [message] = await drained(rabbit_case, queue, 1)
    channel = rabbit_case.receiver()._channel
    assert channel is not None

    async def lose(*_: object, **__: object) -> None:
        """An ack that is lost with the connection."""
        await channel.close()

    channel.basic_ack = lose  # type: ignore[method-assign]
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).problem(503, "backend-unavailable")
    (await rabbit_case.tenant.ack(queue, message["receiptId"])).problem(409, "lease-expired")
    [again] = await drained(rabbit_case, queue, 1)
    assert again["payload"] == "native"
    for _ in range(2):
        (await rabbit_case.tenant.ack(queue, again["receiptId"])).ok()
    second = rabbit_case.receiver()._channel
    assert second is not None
    await second.close()
    assert await rabbit_case.tenant.pull(queue, waitMs=1000) == []


async def test_each_attempt_is_counted_even_if_rabbitmq_counts_none(rabbit_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which returns `x-delivery-count` counts differs between its versions."""
    monkeypatch.setattr(messages, "_deliveries", lambda _headers: 0)
    queue = await rabbit_case.queue(maxAttempts=3, retryDelaysMs=[0])
    await rabbit_case.tenant.publish(queue, 1)
    [first] = await rabbit_case.tenant.pull(queue, waitMs=20_000, visibilityTimeoutMs=200)
    [second] = await drained(rabbit_case, queue, 1)
    await rabbit_case.nack(queue, second, "requeue")
    [third] = await drained(rabbit_case, queue, 1)
    assert [one["attempt"] for one in (first, second, third)] == [1, 2, 3]
    await rabbit_case.nack(queue, third, "retry")
    [letter] = await rabbit_case.dead(queue)
    assert letter["attempts"] == 3


async def test_an_attempt_ends_with_a_reject_since_rabbitmq_4_3_does_not_count_nacks(rabbit_case: Case) -> None:
    queue = await rabbit_case.queue(retryDelaysMs=[0])
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await drained(rabbit_case, queue, 1)
    channel = rabbit_case.receiver()._channel
    assert channel is not None
    sent: list[str] = []
    for name in ("basic_reject", "basic_nack"):
        monkey = getattr(channel, name)

        async def send(*given: Any, _name: str = name, _send: Any = monkey, **more: Any) -> None:
            sent.append(_name)
            await _send(*given, **more)

        setattr(channel, name, send)
    await rabbit_case.nack(queue, message, "requeue")
    [again] = await rabbit_case.tenant.pull(queue, waitMs=20_000, visibilityTimeoutMs=200)
    await drained(rabbit_case, queue, 1)
    assert again["attempt"] == 2 and sent == ["basic_reject"] * 2


async def test_a_native_message_returns_even_if_its_copy_cannot_be_stored(
    rabbit_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await rabbit_case.queue()
    await natively(rabbit_case, publisher(rabbit_case, b'"native"'))
    [_] = await rabbit_case.tenant.pull(queue, waitMs=20_000, visibilityTimeoutMs=200)

    async def fail(*_: object) -> None:
        raise BackendUnavailable("RabbitMQ did not accept the message", retry_after=1)

    monkeypatch.setattr(rabbit_case.rabbit.backend.owned, "_publish", fail)
    [again] = await drained(rabbit_case, queue, 1)
    assert again["payload"] == "native"


async def test_a_lease_that_could_not_be_ended_lasts_and_ends_by_itself(
    rabbit_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its timer, RabbitMQ would wait for the message until it closes the channel, with all leases on it."""
    queue = await rabbit_case.queue()
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await drained(rabbit_case, queue, 1)

    async def fail(*_: object) -> None:
        raise RuntimeError("of the test")

    with monkeypatch.context() as patched:
        patched.setattr(rabbit_case.rabbit.backend.markers, "mark", fail)
        (await rabbit_case.tenant.ack(queue, message["receiptId"])).problem(500, "internal")
        (await rabbit_case.elsewhere.ack(queue, message["receiptId"])).problem(503, "engine-unavailable")
    shortened = {"receiptId": message["receiptId"], "visibilityTimeoutMs": 100}
    (await rabbit_case.tenant.client.post(f"{queue}/extend", shortened)).ok()
    [again] = await drained(rabbit_case, queue, 1)
    assert again["messageId"] == message["messageId"]


async def test_an_outbox_goes_on_after_an_error_and_follows_the_settings(
    rabbit_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await rabbit_case.queue(retentionMs=3_600_000)
    main, _ = names_of(rabbit_case)
    publish, failures = RabbitBackend.publish, itertools.count()

    async def fail_first(*given: Any, **more: Any) -> None:
        if next(failures) == 0:
            raise RuntimeError("of the test")
        await publish(*given, **more)

    monkeypatch.setattr(RabbitBackend, "publish", fail_first)
    await rabbit_case.tenant.publish(queue, 1, delayMs=1)
    await drained(rabbit_case, queue, 1)
    (await rabbit_case.tenant.client.patch(queue, {"retentionMs": 7_200_000})).ok()
    await rabbit_case.tenant.publish(queue, 2, delayMs=1)

    async def is_ready() -> bool:
        return bool((await rabbit_case.stats(queue))["ready"]) and not (await rabbit_case.stats(queue))["delayed"]

    await eventually(is_ready)

    async def found() -> Any:
        return await natively(rabbit_case, lambda channel: channel.basic_get(main, auto_ack=True)[1])

    properties = await eventually(found)
    assert int(properties.expiration) > 3_600_000


async def test_a_queue_of_another_program_is_neither_adopted_nor_deleted(rabbit_case: Case) -> None:
    name = f"{PREFIX}.{rabbit_case.tenant.id}.theirs"
    await natively(rabbit_case, lambda channel: channel.queue_declare(name, durable=True))
    client = rabbit_case.tenant.client
    for _ in range(2):
        problem = (await client.put("/v1/queues/theirs", {"backend": "rabbitmq"})).problem(409, "backend-cannot")
        assert "inequivalent arg" in problem["detail"]
    (await client.get("/v1/queues/theirs")).problem(404, "queue-not-found")
    await natively(rabbit_case, lambda channel: channel.queue_delete(name))
    await rabbit_case.queue("theirs")


@pytest.mark.parametrize("first", ["publish", "pull", "outbox", "purge"])
async def test_a_queue_that_rabbitmq_has_lost_is_declared_again(rabbit_case: Case, first: str) -> None:
    """Somebody has deleted it there, or a node has lost its data."""
    queue = await rabbit_case.queue()
    await rabbit_case.tenant.publish(queue, "lost")
    await natively(rabbit_case, lambda channel: [channel.queue_delete(name) for name in names_of(rabbit_case)])
    if first == "pull":
        assert await rabbit_case.tenant.pull(queue) == []
    if first == "purge":
        (await rabbit_case.tenant.client.post(f"{queue}/purge", {})).ok()
    await rabbit_case.tenant.publish(queue, "new", delayMs=1 if first == "outbox" else 0)
    assert [one["payload"] for one in await drained(rabbit_case, queue, 1)] == ["new"]


async def test_a_dead_letter_queue_that_rabbitmq_has_lost_is_declared_again(rabbit_case: Case) -> None:
    """Until then RabbitMQ keeps what it dead-letters, and tries again after some minutes."""
    await rabbit_case.queue()
    _, dead = names_of(rabbit_case)
    await natively(rabbit_case, lambda channel: channel.queue_delete(dead))
    assert await rabbit_case.rabbit.backend.rabbit.count(dead) is None
    await rabbit_case.rabbit.dead_letters.run_once()
    assert await rabbit_case.rabbit.backend.rabbit.count(dead) == 0


async def test_a_queue_that_is_being_deleted_is_not_declared_again(rabbit_case: Case) -> None:
    queue = await rabbit_case.queue()
    record, _ = only_record(rabbit_case)
    (await rabbit_case.tenant.client.delete(rabbit_case.created.pop())).ok(204)
    with pytest.raises(QueueNotFound):
        await rabbit_case.rabbit.backend.restore(record)
    assert await rabbit_case.rabbit.backend.rabbit.count(main_queue(PREFIX, record)) is None
    (await rabbit_case.tenant.client.get(queue)).problem(404, "queue-not-found")


async def test_the_metrics_count_what_happens(rabbit_case: Case) -> None:
    names = ("published", "leases_expired", "forwarded", "strays", "suppressed", "dead_lettered", "failed_calls")

    async def counts() -> dict[str, float]:
        text = (await rabbit_case.tenant.gateway.anonymous.get("/metrics")).body.decode()
        samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
        return {name: sum(one.value for one in samples if one.name == f"postroad_rabbitmq_{name}_total") for name in names}

    queue, before = await rabbit_case.queue(retryDelaysMs=[0]), await counts()
    record, queues = only_record(rabbit_case)
    await rabbit_case.tenant.publish(queue, 1)
    await queues.backend.release(record, await queues.backend.receive(record, 1, 20))  # a stray
    [_] = await rabbit_case.tenant.pull(queue, waitMs=20_000, visibilityTimeoutMs=200)
    [again] = await drained(rabbit_case, queue, 1)
    (await rabbit_case.tenant.client.post(f"{queue}/purge", {})).ok()
    await rabbit_case.nack(queue, again, "requeue")
    assert await rabbit_case.tenant.pull(queue, waitMs=1000) == []
    await rabbit_case.tenant.publish(queue, 2)
    [message] = await drained(rabbit_case, queue, 1)
    (await rabbit_case.elsewhere.ack(queue, message["receiptId"])).ok()

    async def are_counted() -> bool:
        after = await counts()
        return {name for name in names if after[name] > before[name]} >= {
            "published",
            "leases_expired",
            "forwarded",
            "strays",
            "suppressed",
        }

    await eventually(are_counted)
