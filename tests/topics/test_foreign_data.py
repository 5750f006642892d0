"""Topics and plain NATS clients: nats-py reads and writes them, and nothing that it writes blocks a topic."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
from nats.aio.client import Client

from tests.gateway import Gateway, Tenant
from tests.topics.socket_client import socket_of
from tests.topics.topic_samples import make_topic, publish, replay, stats, topics_of


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def test_a_nats_client_reads_what_was_published(engine_url: str, tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await publish(tenant, topic, "orders.eu", {"id": 7}, headers={"X-Kind": "new"})
    await publish(tenant, topic, "other", 1)
    async with connected(engine_url) as client:
        reader = await client.jetstream().subscribe(f"t.{tenant.id}__orders.orders.>", ordered_consumer=True)
        message = await reader.next_msg(timeout=10)
        assert message.data == b'{"id":7}' and message.subject == f"t.{tenant.id}__orders.orders.eu"
        assert message.headers is not None
        assert message.headers["X-Kind"] == "new" and message.headers["Content-Type"] == "application/json"
        assert message.metadata.sequence.stream == 1


async def test_a_nats_client_publishes(engine_url: str, tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    async with connected(engine_url) as client:
        stream = client.jetstream()
        ack = await stream.publish(
            f"t.{tenant.id}__orders.a.b", b'{"x":1}', headers={"Content-Type": "application/json", "k": "v"}
        )
        assert (ack.stream, ack.seq) == (f"T_{tenant.id}__orders", 1)
        await stream.publish(f"t.{tenant.id}__orders.raw", b"\xff\x00")
    json, raw = await replay(tenant, topic)
    assert (json["subject"], json["payload"], json["headers"]) == ("a.b", {"x": 1}, {"k": "v"})
    assert base64.b64decode(raw["body_b64"]) == b"\xff\x00" and raw["headers"] == {} and "contentType" not in raw
    assert (await publish(tenant, topic))["sequence"] == 3


FOREIGN: list[tuple[str, bytes, bytes]] = [
    ("end of a batch", b"Status: 204\r\n", b"x"),
    ("error", b"Status: 503\r\nDescription: no\r\n", b"x"),
    ("position of its own", b"Nats-Sequence: 77\r\nNats-Subject: elsewhere\r\nNats-Time-Stamp: never\r\n", b"x"),
    ("broken time", b"Nats-Time-Stamp: nonsense\r\n", b"x"),
    ("pending", b"Nats-Num-Pending: 0\r\nNats-Last-Sequence: 0\r\n", b"x"),
    ("no UTF-8", b"X-Text: \xff\xfe\r\n", b"x"),
    ("no UTF-8 in the name", b"X-\xff: a\r\n", b"x"),
    ("twice", b"X-Two: a\r\nX-Two: b\r\n", b"x"),
    ("without a colon", b"nothing\r\n", b"x"),
    ("empty name", b": a\r\n", b"x"),
    ("folded", b"X-Fold: a\r\n b\r\n", b"x"),
    ("invalid JSON", b"Content-Type: application/json\r\n", b"{\xff"),
    ("deep JSON", b"Content-Type: application/json\r\n", b"[" * 100_000),
    ("large hops", b"Postroad-Hops: 99999999999999999999\r\n", b"x"),
    ("hops of text", b"Postroad-Hops: many\r\n", b"x"),
    ("mark", b"Postroad-Idempotency: 1 x y\r\n", b"x"),
    ("trace", b"traceparent: \x01\r\n", b"x"),
    ("nothing", b"", b""),
]


@pytest.mark.parametrize(("headers", "body"), [(one[1], one[2]) for one in FOREIGN], ids=[one[0] for one in FOREIGN])
async def test_foreign_messages_block_nothing(gateway: Gateway, tenant: Tenant, headers: bytes, body: bytes) -> None:
    topic = await make_topic(tenant)
    await publish(tenant, topic, payload="before", idempotencyKey="k")
    connection = gateway.node.platform.connection
    subject = f"t.{tenant.id}__orders.foreign".encode()
    head = b"NATS/1.0\r\n" + headers + b"\r\n"
    ack = await connection.request_encoded(
        lambda reply: b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply.encode(), len(head), len(head) + len(body), head, body)
    )
    assert b'"seq":2' in ack.data.replace(b" ", b""), ack.data
    await publish(tenant, topic, payload="after")
    messages = await replay(tenant, topic)
    assert [message["sequence"] for message in messages] == [1, 2, 3]
    assert (messages[0]["payload"], messages[2]["payload"]) == ("before", "after")
    foreign = messages[1]
    assert foreign["subject"] == "foreign" and base64.b64decode(foreign["body_b64"]) == body
    assert (await tenant.client.get(f"{topic}/messages?count=true&fromSequence=2")).ok()["count"] == 2
    assert [one["sequence"] for one in await replay(tenant, topic, "?subject=foreign&subject=other")] == [2]
    assert (await stats(tenant, topic))["messages"] == 3
    assert (await publish(tenant, topic, payload="before", idempotencyKey="k"))["sequence"] == 1


@pytest.mark.parametrize("token", [b"\xff", b"a\x0bb", b"a\x0cb", b"a\x00b"])
async def test_a_foreign_subject_of_any_bytes_blocks_nothing(gateway: Gateway, tenant: Tenant, token: bytes) -> None:
    topic = await make_topic(tenant)
    connection, reconnects = gateway.node.platform.connection, list[str]()
    remove = connection.on_reconnect(lambda: reconnects.append("lost"))
    subject = b"t.%b__orders.%b" % (tenant.id.encode(), token)
    async with socket_of(tenant) as reader:
        await reader.subscribe()
        await connection.request_encoded(lambda reply: b"PUB %b %b 1\r\nx\r\n" % (subject, reply.encode()))
        await publish(tenant, topic, payload="after")
        assert await reader.messages(2, "a") == [1, 2]
    remove()
    assert reconnects == []
    assert [one["subject"] for one in await replay(tenant, topic)] == [token.decode("utf-8", "replace"), "a.b"]


async def test_a_foreign_message_with_the_id_of_a_key_is_not_taken_for_another_body(gateway: Gateway, tenant: Tenant) -> None:
    """It has no hash to compare with, so its position is returned."""
    from postroad.topics.rules import message_id

    topic = await make_topic(tenant)
    known = message_id(tenant.record.id, "k")
    async with connected(gateway.settings.nats_url.reveal() if gateway.settings.nats_url else "") as client:
        await client.jetstream().publish(f"t.{tenant.id}__orders.a", b"foreign", headers={"Nats-Msg-Id": known})
    assert (await publish(tenant, topic, payload="mine", idempotencyKey="k"))["sequence"] == 1


async def test_other_tenants_see_nothing_of_a_topic(gateway: Gateway, tenant: Tenant) -> None:
    other, topic = await gateway.tenant(), await make_topic(tenant)
    await publish(tenant, topic, payload="secret", idempotencyKey="k")
    for answer in (
        await other.client.get(topic),
        await other.client.get(f"{topic}/messages"),
        await other.client.post(f"{topic}/purge", {}),
        await other.client.delete(topic),
        await other.client.post(f"{topic}/messages", {"subject": "a", "payload": 1}),
        await other.client.call("PATCH", topic, {"maxMessages": 1}),
    ):
        answer.problem(404, "topic-not-found")
    assert (await other.client.get("/v1/topics")).ok()["topics"] == []
    await make_topic(other)
    assert (await publish(other, topic, payload="own", idempotencyKey="k"))["sequence"] == 1
    assert [one["payload"] for one in await replay(other, topic)] == ["own"]
    assert [one["payload"] for one in await replay(tenant, topic)] == ["secret"]
    assert topics_of(gateway).lifecycle.cached(tenant.id, "orders") is not None
