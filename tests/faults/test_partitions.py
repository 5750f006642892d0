"""Two gateways and three servers in network namespaces, with real packet loss between them: what was acknowledged is there
afterwards, gateways that can reach a majority serve again without help, and the others report that they cannot."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.chaos.campaign import SETTINGS, Campaign
from tests.chaos.clients import Endpoints
from tests.chaos.model import Answers
from tests.cluster import Cluster, Node
from tests.installation import Installation
from tests.network import Host, Network, missing_for_networks
from tests.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("partitions"),
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(missing_for_networks()), reason=missing_for_networks()),
]

SERVED_SECONDS = 60  # about 10 s on a machine that is not busy
REFUSE_SECONDS = 4


class Partitioned:
    """The installation under test."""

    def __init__(self, home: Path) -> None:
        self.network = Network(5)
        self.servers, self.hosts = self.network.hosts[:3], self.network.hosts[3:]
        self.cluster = Cluster(home, self.servers)
        settings = {**SETTINGS, "POSTROAD_REGISTRY_MAX_AGE_REFUSE_SECONDS": str(REFUSE_SECONDS)}
        self.gateways = [self.cluster.gateway("up", **settings) for _ in self.hosts]
        for gateway, host in zip(self.gateways, self.hosts, strict=True):
            gateway.host = host

    async def start(self) -> None:
        await self.cluster.start()
        for gateway in self.gateways:  # the first one creates the keys
            await gateway.start().ready()

    async def server_of(self, gateway: Installation) -> Host:
        """The server that a gateway's worker is connected to."""
        names = [f"postroad-gateway-{pid}" for pid in gateway.worker_pids]

        async def found() -> Node | None:
            for node in self.cluster.nodes:
                if set(names) & set(await node.client_names()):
                    return node
            return None

        return (await eventually(found)).host  # type: ignore[union-attr]

    def others(self, server: Host) -> Sequence[Host]:
        return [one for one in self.servers if one != server]

    def end(self) -> None:
        self.network.heal()
        self.cluster.end()
        self.network.close()


@pytest.fixture(scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Partitioned]:
    made = Partitioned(tmp_path_factory.mktemp("partitions"))
    try:
        await made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
async def clients(deployment: Partitioned) -> AsyncIterator[Sequence[Campaign]]:
    """The clients of each gateway, which use no other one; at work through all tests."""
    endpoints = [
        Endpoints((gateway.url,), deployment.gateways[0].headers, Answers(frozenset({502, 503})))
        for gateway in deployment.gateways
    ]
    made = [Campaign(one, f"partitions-{number}", worker_count=1) for number, one in enumerate(endpoints, 1)]
    try:
        for one in made:
            await one.begin()
        yield made
    finally:
        for one in made:
            await one.abandon()


@asynccontextmanager
async def partitioned(deployment: Partitioned, clients: Sequence[Campaign]) -> AsyncIterator[Network]:
    """Clients are served before the block, and after it, when the network is whole again."""
    await all_served(clients)
    try:
        yield deployment.network
    finally:
        deployment.network.heal()
    await all_served(clients)


async def all_served(clients: Sequence[Campaign]) -> None:
    """Publishers, consumers, appenders and live readers of every gateway have made progress."""
    await asyncio.gather(*(one.makes_progress(1, SERVED_SECONDS) for one in clients))


async def in_effect() -> None:
    """Requests that were in flight have been answered."""
    await asyncio.sleep(0.5)


async def has_left(deployment: Partitioned, server: Host) -> bool:
    return await deployment.server_of(deployment.gateways[0]) != server


async def readiness(gateway: Installation) -> tuple[int, dict[str, dict[str, object]]]:
    async with aiohttp.ClientSession() as session, session.get(f"{gateway.url}/readyz") as answer:
        return answer.status, (await answer.json())["checks"]


async def test_gateways_leave_a_server_that_has_lost_its_majority(deployment: Partitioned, clients: Sequence[Campaign]) -> None:
    async with partitioned(deployment, clients) as network:
        server = await deployment.server_of(deployment.gateways[0])
        network.cut([server], deployment.others(server))
        await in_effect()
        await all_served(clients)
        await eventually(lambda: has_left(deployment, server))


async def test_a_leader_that_is_cut_off_from_everyone_is_replaced(deployment: Partitioned, clients: Sequence[Campaign]) -> None:
    async with partitioned(deployment, clients) as network:
        leader = (await deployment.cluster.leader("S_default")).host
        network.cut([leader], [*deployment.others(leader), *deployment.hosts])
        await in_effect()
        await all_served(clients)


async def test_a_gateway_leaves_a_server_whose_packets_are_lost(deployment: Partitioned, clients: Sequence[Campaign]) -> None:
    """In one direction: the connection stays open."""
    async with partitioned(deployment, clients) as network:
        server = await deployment.server_of(deployment.gateways[0])
        network.cut_one_way(server, deployment.hosts[0])
        await in_effect()
        await all_served(clients)
        await eventually(lambda: has_left(deployment, server))


async def test_gateways_serve_after_two_servers_saw_only_the_third(deployment: Partitioned, clients: Sequence[Campaign]) -> None:
    """Meanwhile the servers elect leaders again and again, so some requests fail on every gateway."""
    async with partitioned(deployment, clients) as network:
        network.cut(deployment.servers[:1], deployment.servers[2:])
        await asyncio.sleep(6)


async def test_a_gateway_on_the_minority_side_reports_it_and_refuses_callers(
    deployment: Partitioned, clients: Sequence[Campaign]
) -> None:
    async with partitioned(deployment, clients) as network:
        server = await deployment.server_of(deployment.gateways[0])
        network.cut([server, deployment.hosts[0]], [*deployment.others(server), deployment.hosts[1]])
        refused_before = clients[0].endpoints.answers.counted["503 registry-stale"]

        async def is_refusing() -> bool:
            status, checks = await readiness(deployment.gateways[0])
            has_refused = clients[0].endpoints.answers.counted["503 registry-stale"] > refused_before
            return status == 503 and "has not completed a request" in str(checks["engine"]["detail"]) and has_refused

        await asyncio.gather(eventually(is_refusing, SERVED_SECONDS), all_served(clients[1:]))


async def test_a_server_that_comes_and_goes_stops_no_gateway(deployment: Partitioned, clients: Sequence[Campaign]) -> None:
    async with partitioned(deployment, clients) as network:
        server = await deployment.server_of(deployment.gateways[0])
        for seconds in (1, 3, 2):
            network.cut([server], deployment.others(server))
            await asyncio.sleep(seconds)
            network.heal()
            await asyncio.sleep(1)


async def test_nothing_acknowledged_was_lost_or_doubled(clients: Sequence[Campaign]) -> None:
    """After all of the above."""
    violations = await asyncio.gather(*(one.end() for one in clients))
    assert violations == [[], []]
