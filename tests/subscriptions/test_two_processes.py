"""Two delivery processes on one engine: subscriptions are spread over them, and move when one stops or is cut off."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from postroad.container import Role
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.servers import Server, TcpProxy
from tests.subscriptions.conftest import LOOPBACK
from tests.subscriptions.receiver import Receiver
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SUBSCRIPTIONS = 16
KEYS = 3


@dataclass(frozen=True, slots=True)
class Spread:
    """A topic with subscriptions, as seen by the process that stays, and what was published."""

    topic: TopicClient
    subscriptions: list[dict[str, Any]]
    published: list[int]

    async def owners(self) -> set[str | None]:
        statuses = [await self.topic.status(one) for one in self.subscriptions]
        return {status["owner"] for status in statuses}

    async def has_owners(self, count: int) -> bool:
        owners = await self.owners()
        return len(owners) == count and None not in owners

    async def publish(self, count: int) -> None:
        for _ in range(count):
            self.published.append(await self.topic.publish(f"key.{len(self.published) % KEYS}"))

    def is_delivered(self, receiver: Receiver) -> bool:
        wanted = {(f"/{number}", sequence) for number in range(SUBSCRIPTIONS) for sequence in self.published}
        return wanted <= {(one.path, one.sequence) for one in receiver.received}


async def _spread(staying: Gateway, receiver: Receiver) -> Spread:
    topic = TopicClient(await staying.tenant())
    await topic.create()
    made = [
        await topic.subscribe(f"{receiver.url}/{number}", ordering="key", retryDelaysMs=[100]) for number in range(SUBSCRIPTIONS)
    ]
    return Spread(topic, made, [])


@asynccontextmanager
async def _delivering(engine_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(engine_url, outbound_allow=LOOPBACK), Role.ALL) as running:
        yield running


def _repetitions(receiver: Receiver) -> dict[tuple[str, int], int]:
    counted = Counter((one.path, one.sequence) for one in receiver.received)
    return {key: count for key, count in counted.items() if count > 1}


async def test_a_process_that_stops_hands_over_without_a_repetition(own_server: Server, receiver: Receiver) -> None:
    async with _delivering(own_server.url) as staying, AsyncExitStack() as leaving:
        await leaving.enter_async_context(_delivering(own_server.url))
        spread = await _spread(staying, receiver)
        await eventually(lambda: spread.has_owners(2))
        await spread.publish(10)
        publishing = asyncio.create_task(spread.publish(60))
        await leaving.aclose()
        await publishing
        await spread.publish(5)
        await eventually(lambda: spread.is_delivered(receiver), 60)
        await eventually(lambda: spread.has_owners(1))
        assert _repetitions(receiver) == {}
        for number in range(SUBSCRIPTIONS):
            for key in range(KEYS):
                of_key = [
                    one.sequence
                    for one in receiver.received
                    if one.path == f"/{number}" and one.headers["x-mq-published-subject"] == f"key.{key}"
                ]
                assert of_key == sorted(of_key)


async def test_a_process_that_joins_takes_its_share_without_a_repetition(own_server: Server, receiver: Receiver) -> None:
    async with _delivering(own_server.url) as staying:
        spread = await _spread(staying, receiver)
        await eventually(lambda: spread.has_owners(1))
        publishing = asyncio.create_task(spread.publish(60))
        async with _delivering(own_server.url):
            await eventually(lambda: spread.has_owners(2))
            await publishing
            await spread.publish(5)
            await eventually(lambda: spread.is_delivered(receiver), 60)
        assert _repetitions(receiver) == {}


async def test_a_process_that_is_cut_off_is_replaced_and_returns(own_server: Server, receiver: Receiver) -> None:
    proxy = await TcpProxy(own_server.url).start()
    try:
        async with _delivering(own_server.url) as staying, _delivering(proxy.url):
            spread = await _spread(staying, receiver)
            await eventually(lambda: spread.has_owners(2))
            await spread.publish(10)
            proxy.drops_replies = True
            await spread.publish(20)
            await eventually(lambda: spread.is_delivered(receiver), 60)
            await eventually(lambda: spread.has_owners(1), 60)
            proxy.cut()
            await eventually(lambda: spread.has_owners(2), 60)
            await spread.publish(10)
            await eventually(lambda: spread.is_delivered(receiver), 60)
    finally:
        proxy.stop()
