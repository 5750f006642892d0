"""Kills (-9) of the leader of a topic with three replicas, and of the workers, while 200 clients read it live, over server-sent
events and WebSockets, each changing gateways with every connection: each receives each message once, in order."""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest

from tests.chaos.deployment import Clustered
from tests.faults.test_cluster_subscriptions import kill_leader
from tests.faults.test_live_topics import READERS, Reader, SocketReader
from tests.faults.test_topics import TOPIC, Publishers
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(400)]


class Alternating(Installation):
    """The gateways in turn: each use of `url` is the next one."""

    def __init__(self, deployment: Clustered, first: int) -> None:
        urls = deployment.urls()
        self._urls = itertools.cycle([*urls[first:], *urls[:first]])
        self._headers = deployment.headers()

    @property
    def url(self) -> str:
        return next(self._urls)

    @property
    def headers(self) -> dict[str, str]:
        return self._headers


@pytest.fixture
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clustered]:
    made = Clustered(tmp_path_factory.mktemp("cluster"))
    try:
        await made.start()
        yield made
    finally:
        made.end()


async def kill_worker(gateway: Installation) -> None:
    """Like kill -9; its installation starts another one."""
    [before] = gateway.worker_pids
    os.kill(before, signal.SIGKILL)
    await eventually(lambda: gateway.worker_pids not in ([], [before]), 60)
    await gateway.ready(120)


async def test_live_readers_receive_each_message_once_across_kills_of_the_leader(deployment: Clustered) -> None:
    async with (
        aiohttp.ClientSession(deployment.urls()[0], headers=deployment.headers()) as session,
        session.put(TOPIC, json={"replicas": 3}) as made,
    ):
        assert made.status == 201
    readers = [kind(Alternating(deployment, number % 2)) for kind in (Reader, SocketReader) for number in range(READERS)]
    reading = [asyncio.create_task(reader.run()) for reader in readers]
    publishers, stop = Publishers(Alternating(deployment, 0)), asyncio.Event()
    publishing = [asyncio.create_task(publishers.publish(stop)) for _ in range(4)]
    try:
        await eventually(lambda: min(len(reader.messages) for reader in readers) > 5, 120)
        for number in range(2):
            await kill_leader(deployment, "T_default__orders")
            await kill_worker(deployment.gateways[number])
            more = len(publishers.acknowledged) + 20
            await eventually(lambda count=more: len(publishers.acknowledged) > count, 120)  # type: ignore[misc]
        stop.set()
        await asyncio.gather(*publishing)
        last = max(publishers.acknowledged.values())
        await eventually(lambda: all(reader.messages[-1][0] >= last for reader in readers), 120)
    finally:
        stop.set()
        for task in (*reading, *publishing):
            task.cancel()
        await asyncio.gather(*reading, *publishing, return_exceptions=True)
    for reader in readers:
        assert [sequence for sequence, _ in reader.messages] == list(range(1, len(reader.messages) + 1)), "once and in order"
        assert reader.others == []
        numbers = {number: sequence for sequence, number in reader.messages}
        assert {number: numbers.get(number) for number in publishers.acknowledged} == publishers.acknowledged
    assert min(reader.connections for reader in readers) > 1, "each has changed gateways"
