"""A hundred endpoints that never respond and a hundred names without addresses: a healthy endpoint gets every message."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from postroad.container import Role
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.servers import Server
from tests.subscriptions.receiver import receiving
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually

HUNG = 100
UNKNOWN = 100
MESSAGES = 50


@pytest.fixture
async def node(own_server: Server) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(own_server.url, outbound_allow="127.0.0.0/8"), Role.ALL) as running:
        yield running


async def test_dead_endpoints_do_not_delay_a_healthy_one(node: Gateway) -> None:
    tenant = await node.tenant()
    topic = TopicClient(tenant)
    await topic.create()
    async with receiving() as dead, receiving() as healthy:
        dead.hold()
        urls = [f"{dead.url}/{number}" for number in range(HUNG)]
        urls += [f"https://no-such-name-{number}.invalid/" for number in range(UNKNOWN)]
        await asyncio.gather(*(topic.subscribe(url, ackWaitMs=300_000, retryDelaysMs=[100]) for url in urls))
        made = await topic.subscribe(healthy.url)
        await topic.publish()
        await eventually(lambda: dead.in_flight == HUNG, 60)
        await eventually(lambda: healthy.received)
        for _ in range(MESSAGES - 1):
            await topic.publish()
        await eventually(lambda: len(set(healthy.sequences)) == MESSAGES, 60)
        assert dead.in_flight == HUNG  # one each: an endpoint that has never responded gets no second request

        async def has_no_lag() -> bool:
            return bool((await topic.status(made))["lag"] == 0)

        await eventually(has_no_lag)
        assert len(dead.received) == HUNG
