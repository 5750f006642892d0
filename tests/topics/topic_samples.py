"""Calls that the tests of topics share."""

from typing import Any

from postroad.jetstream import stream_reader
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.names import topic_stream, topic_subject
from postroad.topics.capability import TopicsCapability
from tests.gateway import Answer, Gateway, Tenant


async def make_topic(tenant: Tenant, name: str = "orders", **settings: object) -> str:
    """Create a topic; return the path that its routes start with."""
    (await tenant.client.put(f"/v1/topics/{name}", settings)).ok(201)
    return f"/v1/topics/{name}"


async def try_publish(tenant: Tenant, topic: str, subject: str = "a.b", payload: object = None, **more: object) -> Answer:
    return await tenant.client.post(f"{topic}/messages", {"subject": subject, "payload": payload, **more})


async def publish(tenant: Tenant, topic: str, subject: str = "a.b", payload: object = None, **more: object) -> Any:
    return (await try_publish(tenant, topic, subject, payload, **more)).ok(201)


async def replay(tenant: Tenant, topic: str, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tenant.client.get(f"{topic}/messages{query}")).ok()["messages"]
    return found


async def stats(tenant: Tenant, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(topic)).ok()["stats"]
    return found


def topics_of(gateway: Gateway) -> TopicsCapability:
    return gateway.node.platform.use(TopicsCapability)


async def stored(tenant: Tenant, name: str = "orders") -> list[Entry]:
    """All entries of the topic's stream."""
    connection = tenant.gateway.node.platform.connection
    page = await stream_reader.read(connection, topic_stream(tenant.id, name), f"{topic_subject(tenant.id, name)}.>", 1, 1000)
    return list(page.entries)
