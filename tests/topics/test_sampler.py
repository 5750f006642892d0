"""`topic.sampled`: topics with traffic, also of NATS clients, and no others."""

from typing import Any

from postroad.topics.sampler import TopicSampler
from tests.gateway import Gateway, Tenant
from tests.topics.topic_samples import make_topic, publish, topics_of
from tests.waiting import eventually


def sampler_of(gateway: Gateway, tenant: Tenant) -> TopicSampler:
    platform = gateway.node.platform
    return TopicSampler(platform.connection, topics_of(gateway).table, platform.outbox, lambda: [tenant.id], seconds=3600)


async def sampled(tenant: Tenant, count: int) -> list[dict[str, Any]]:
    async def events() -> list[dict[str, Any]]:
        found = [one for one in await tenant.events("TELEMETRY") if one["event"] == "topic.sampled"]
        return found if len(found) >= count else []

    return await eventually(events)


async def test_topics_with_new_messages_are_sampled(gateway: Gateway, tenant: Tenant) -> None:
    sampler = sampler_of(gateway, tenant)
    busy, idle = await make_topic(tenant, "busy"), await make_topic(tenant, "idle")
    await publish(tenant, idle)
    assert await sampler.sample() == 0, "the first round only notes where the topics are"
    for number in range(3):
        await publish(tenant, busy, payload=number)
    assert await sampler.sample() == 1
    assert await sampler.sample() == 0
    [event] = await sampled(tenant, 1)
    assert (event["topic"], event["published"], event["messages"]) == ("busy", 3, 3)
    assert event["bytes"] > 0 and event["seconds"] > 0


async def test_a_new_and_a_recreated_topic_are_sampled_from_their_first_message(gateway: Gateway, tenant: Tenant) -> None:
    sampler = sampler_of(gateway, tenant)
    await sampler.sample()
    topic = await make_topic(tenant)
    for _ in range(5):
        await publish(tenant, topic)
    assert await sampler.sample() == 1
    assert (await tenant.client.delete(topic)).status == 204
    await publish(tenant, await make_topic(tenant))
    assert await sampler.sample() == 1
    events = await sampled(tenant, 2)
    assert [(one["published"], one["messages"]) for one in events] == [(5, 5), (1, 1)]


async def test_purged_and_dropped_messages_count_as_published(gateway: Gateway, tenant: Tenant) -> None:
    sampler, topic = sampler_of(gateway, tenant), await make_topic(tenant, maxMessages=2)
    await sampler.sample()
    for _ in range(5):
        await publish(tenant, topic)
    (await tenant.client.post(f"{topic}/purge", {"toSequence": 4})).ok()
    assert await sampler.sample() == 1
    [event] = await sampled(tenant, 1)
    assert (event["published"], event["messages"]) == (5, 1)
