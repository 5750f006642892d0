"""An ordered queue on a cluster of three servers, while the leader of its stream and gateways are killed (-9): order, exclusivity
and dedupe hold, nothing is lost."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.chaos.deployment import Clustered
from tests.faults.ordered_load import OrderedLoad
from tests.faults.test_cluster_subscriptions import kill_leader

MESSAGES = int(os.environ.get("POSTROAD_TEST_CLUSTER_ORDERED", "1200"))

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900 + MESSAGES // 10)]


@pytest.fixture
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clustered]:
    made = Clustered(tmp_path_factory.mktemp("cluster"))
    try:
        await made.start()
        yield made
    finally:
        made.end()


async def kill_gateways(deployment: Clustered, number: int) -> None:
    """The processes of one installation that answer requests."""
    for pid in deployment.gateways[number].worker_pids:
        os.kill(pid, signal.SIGKILL)
    await asyncio.sleep(0)


async def test_order_and_exclusivity_hold_on_a_cluster(deployment: Clustered) -> None:
    load = OrderedLoad(deployment.urls(), deployment.headers(), messages=MESSAGES, groups=30, consumers=16, lease_ms=5000)
    kills: list[Callable[[], Awaitable[None]]] = [
        lambda: kill_leader(deployment, "Q_default__q"),
        lambda: kill_gateways(deployment, 0),
        lambda: kill_leader(deployment, "Q_default__q"),
        lambda: kill_gateways(deployment, 1),
    ]
    async with load.running() as publishing:
        for number, kill in enumerate(kills, 1):
            await load.reached(number / (len(kills) + 2), 300)
            await kill()
        await publishing
        await load.drained(300)
    load.check()
