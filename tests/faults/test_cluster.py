"""Two gateways on a cluster of three servers, through what clusters go through: what was acknowledged is there afterwards, once
and in its place, and who cannot be served is told so."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from postroad.kernel.errors import PostroadError
from tests.chaos.campaign import Campaign
from tests.chaos.clients import Endpoints, Publisher, Worker
from tests.chaos.deployment import Clustered
from tests.chaos.model import Answers
from tests.chaos.sdk import SdkCampaign
from tests.jetstream.streams import committer_of, make_stream, new_message
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(240)]

WRITES_AGAIN_SECONDS = 40  # about 10 s on a machine that is not busy
PAUSE_SECONDS = 6


@pytest.fixture(scope="module")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clustered]:
    made = Clustered(tmp_path_factory.mktemp("cluster"))
    try:
        await made.start()
        yield made
    finally:
        made.end()


@asynccontextmanager
async def campaign(deployment: Clustered, name: str, *also_expected: int, **more: Any) -> AsyncIterator[Campaign]:
    """Everyone is at work in the block; after it all is compared with what was answered."""
    await deployment.heal()
    answers = Answers(frozenset({502, 503, *also_expected}))
    made = Campaign(Endpoints(deployment.urls(), deployment.headers(), answers), name, **more)
    await made.begin()
    try:
        await made.makes_progress(3, 30)
        yield made
        await deployment.heal()
    except BaseException:
        await made.abandon()
        raise
    violations = await made.end()
    print(made.summary())
    assert violations == []


@pytest.mark.parametrize("allow_rollup_hdrs", [True, False])
async def test_to_ask_whether_something_is_stored_harms_no_stream(deployment: Clustered, allow_rollup_hdrs: bool) -> None:
    """What belongs together and is sent again is refused as a batch; then each id is asked for, known or not."""
    connection = await deployment.cluster.connection()
    try:
        name = f"asked-{allow_rollup_hdrs}"
        await make_stream(connection, name, num_replicas=3, allow_rollup_hdrs=allow_rollup_hdrs)
        committer = committer_of(connection, name)
        known, unknown = [new_message(f"{name}.{number}") for number in range(2)], new_message(f"{name}.new")
        first = await committer.append_together(known)
        again = await committer.append_together(known)
        assert [one.sequence for one in again] == [one.sequence for one in first] and all(one.is_duplicate for one in again)
        with pytest.raises(PostroadError):
            await committer.append_together([known[0], unknown])
        assert (await committer.append(unknown)).sequence == 3, "and it takes what comes"
    finally:
        await connection.close()


async def test_a_leader_that_is_killed_costs_nothing_that_was_acknowledged(deployment: Clustered) -> None:
    async with campaign(deployment, "killed") as at_work:
        leader = await deployment.cluster.leader("Q_default__killed")
        leader.kill()
        await at_work.makes_progress(3, WRITES_AGAIN_SECONDS)
        leader.start()
        await leader.healthy()


async def test_a_leader_that_stands_still_costs_nothing_that_was_acknowledged(deployment: Clustered) -> None:
    async with campaign(deployment, "paused") as at_work:
        leader = await deployment.cluster.leader("S_default")
        leader.pause()
        try:
            await asyncio.sleep(PAUSE_SECONDS)
        finally:
            leader.resume()
        await at_work.makes_progress(3, WRITES_AGAIN_SECONDS)


async def test_without_a_majority_everyone_is_told_so_until_it_is_back(deployment: Clustered) -> None:
    async with campaign(deployment, "minority") as at_work:
        lost = deployment.cluster.nodes[1:]
        for node in lost:
            node.kill()
        refused = at_work.endpoints.answers.counted
        await eventually(lambda: refused["503 engine-unavailable"] + refused["502 engine-no-responders"] >= 10, 40)
        for url in deployment.urls():
            await eventually(lambda url=url: _is_refused(f"{url}/readyz"))  # type: ignore[misc]
            reading = f"{url}{at_work.log_path}?offset=-1"  # a leader that was left alone takes some seconds to see that
            await eventually(lambda reading=reading: _is_refused(reading, deployment.headers()))  # type: ignore[misc]
        for node in lost:
            node.start()
        await at_work.makes_progress(3, 40)


async def _is_refused(url: str, headers: dict[str, str] | None = None) -> bool:
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as answer:
        return answer.status in (502, 503)


async def test_a_full_queue_says_so_and_keeps_what_it_took(deployment: Clustered) -> None:
    async with campaign(deployment, "full", 507, settings={"maxMessages": 100}, worker_count=0) as at_work:
        refused = at_work.endpoints.answers.counted
        await eventually(lambda: refused["507 storage-full"] >= 20)
        late = Worker(at_work.line(), "late", queue="full", model=at_work.queue)
        working = asyncio.create_task(late.run())
        await at_work.makes_progress(1, WRITES_AGAIN_SECONDS, of=lambda client: isinstance(client, Publisher))
        late.is_stopping = True
        await working


async def test_servers_and_gateways_restart_one_by_one_under_the_sdk(deployment: Clustered) -> None:
    await deployment.heal()
    key = deployment.headers()["Authorization"].removeprefix("Bearer ")
    async with SdkCampaign(deployment.urls(), key, "rolling").running() as at_work:
        for node in deployment.cluster.nodes:
            await asyncio.to_thread(node.stop)
            node.start()
            await node.healthy()
            await at_work.makes_progress()
        for gateway in deployment.gateways:
            await gateway.stop(signal.SIGTERM, 20)
            await gateway.start().ready(60)
            await at_work.makes_progress()


async def test_stats_are_true_on_every_gateway(deployment: Clustered) -> None:
    """After leases, an expired one, a retry and an ack through different gateways, and after a kill of the queue's leader."""
    await deployment.heal()
    first, second = deployment.urls()[:2]
    async with aiohttp.ClientSession(headers=deployment.headers()) as session:

        async def post(url: str, path: str, body: dict[str, Any]) -> Any:
            async def succeeds() -> Any:
                async with session.post(f"{url}/v1/queues/counted{path}", json=body) as answer:
                    return await answer.json() if answer.status in (200, 201) else None

            return await eventually(succeeds, 40)

        for number in range(5):
            await post(first, "/messages", {"payload": number})
        leased: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while len(leased) < 4:  # a stored message reaches the consumer of a cluster a moment later
                wanted = {"maxMessages": 4 - len(leased), "visibilityTimeoutMs": 600_000, "waitMs": 5000}
                leased += (await post(first, "/pull", wanted))["messages"]
        await post(second, "/ack", {"receiptId": leased[0]["receiptId"]})
        await post(second, "/nack", {"receiptId": leased[1]["receiptId"], "action": "retry", "delayMs": 600_000})
        await post(second, "/extend", {"receiptId": leased[2]["receiptId"], "visibilityTimeoutMs": 0})
        expected = {"ready": 2, "overdue": 1, "leased": 1, "retrying": 1, "delayed": 0, "dead": 0}

        async def are_true(url: str) -> bool:
            async with session.get(f"{url}/v1/queues/counted") as answer:
                stats = (await answer.json()).get("stats", {})
                return {name: stats.get(name) for name in expected} == expected

        for url in (first, second):
            await eventually(lambda url=url: are_true(url), 20)  # type: ignore[misc]
        leader = await deployment.cluster.leader("Q_default__counted")
        leader.kill()
        for url in (first, second):
            await eventually(lambda url=url: are_true(url), 60)  # type: ignore[misc]
        leader.start()
