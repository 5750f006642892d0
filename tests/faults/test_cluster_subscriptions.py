"""Push on a cluster of three servers, with live publishing, while leaders, delivery processes and gateways are killed (-9): each
acknowledged message is delivered at least once, in order per key."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.chaos.deployment import Clustered
from tests.cluster import Node
from tests.faults.test_subscriptions import KEYS, MESSAGES, Publisher, _call
from tests.subscriptions.receiver import Receiver, receiving
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]


@pytest.fixture
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clustered]:
    made = Clustered(tmp_path_factory.mktemp("cluster"), POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8")
    try:
        await made.start()
        yield made
    finally:
        made.end()


async def kill_leader(deployment: Clustered, stream: str) -> None:
    leader: Node = await deployment.cluster.leader(stream)
    leader.kill()
    await asyncio.sleep(2)  # another one is elected meanwhile
    await asyncio.to_thread(leader.start)
    await leader.healthy()


async def kill_processes(deployment: Clustered, name: str) -> None:
    """Of both installations: one of them is the owner of the subscription."""
    for gateway in deployment.gateways:
        for pid in gateway.children(f"postroad.runtime.worker {name}"):
            os.kill(pid, signal.SIGKILL)


async def _kill_at_times(kills: list[Callable[[], Awaitable[None]]], receiver: Receiver) -> None:
    for step, kill in enumerate(kills, 1):
        due = MESSAGES * step // (len(kills) + 2)
        await eventually(lambda due=due: len(set(receiver.sequences)) >= due, 180)  # type: ignore[misc]
        await kill()


async def test_each_message_is_delivered_through_kills_of_leaders_and_processes(deployment: Clustered) -> None:
    gateway = deployment.gateways[0]
    async with receiving() as receiver:
        await _call(gateway, "PUT", "/v1/topics/orders", {})
        subscription = {"delivery_type": "http_push", "url": receiver.url, "ordering": "key", "retryDelaysMs": [100]}
        await _call(gateway, "POST", "/v1/topics/orders/subscriptions", subscription)
        publisher = Publisher(gateway)
        kills: list[Callable[[], Awaitable[None]]] = [
            lambda: kill_leader(deployment, "T_default__orders"),
            lambda: kill_leader(deployment, "PROGRESS"),
            lambda: kill_processes(deployment, "delivery"),
            lambda: kill_processes(deployment, "gateway"),
        ]
        await asyncio.gather(publisher.run(), _kill_at_times(kills, receiver))
        assert len(publisher.acknowledged) == MESSAGES
        await eventually(lambda: set(receiver.sequences) >= set(publisher.acknowledged.values()), 180)

    first_deliveries: dict[str, list[int]] = {}
    for one in receiver.received:
        of_key = first_deliveries.setdefault(one.headers["x-mq-published-subject"], [])
        if one.sequence not in of_key:
            of_key.append(one.sequence)
    assert len(first_deliveries) == KEYS
    assert all(sequences == sorted(sequences) for sequences in first_deliveries.values())
