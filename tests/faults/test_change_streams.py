"""kill -9 of bridge, gateways and engine, and of the leaders of a cluster, while clients write to a mapped bucket: the topic has
every acknowledged revision once, in order."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp
import pytest

from tests.chaos.deployment import Clustered
from tests.faults.conftest import Install
from tests.faults.test_cluster_subscriptions import kill_processes
from tests.faults.test_topics import kill_all, kill_engine, kill_worker
from tests.installation import Installation
from tests.waiting import eventually

WRITERS = 32
BUCKET, TOPIC = "/v1/buckets/cart", "/v1/topics/cart-events"
CURRENT_SECONDS = 120  # of lag after the last fault; a few on a machine that is not busy


def kill_bridge(running: Installation) -> None:
    for pid in running.children("postroad.runtime.worker delivery"):
        os.kill(pid, signal.SIGKILL)


class Writers:
    """Clients that write to some keys; a write without an answer is not repeated, so it may be stored or not."""

    def __init__(self, urls: Callable[[], Sequence[str]], headers: dict[str, str], keys: int) -> None:
        self._urls, self._headers, self._keys = urls, headers, keys
        self.acknowledged: dict[int, str] = {}  # key by revision

    async def write(self, writer: int, stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=15)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session:
            number = writer
            while not stop.is_set():
                number += WRITERS
                key, urls = f"k.{number % self._keys}", self._urls()
                try:
                    async with session.put(f"{urls[number % len(urls)]}{BUCKET}/keys/{key}", data=str(number)) as answer:
                        if answer.status == 200:
                            self.acknowledged[(await answer.json())["revision"]] = key
                            continue
                except (aiohttp.ClientError, TimeoutError):
                    pass
                await asyncio.sleep(0.02)


async def call(url: str, headers: dict[str, str], method: str, path: str, body: Any = None) -> Any:
    async with aiohttp.ClientSession(headers=headers) as session, session.request(method, url + path, json=body) as answer:
        return (await answer.json()) if answer.status < 300 else None


async def is_current(url: str, headers: dict[str, str], revision: int) -> bool:
    try:
        found = await call(url, headers, "GET", BUCKET)
    except aiohttp.ClientError:
        return False
    return found is not None and found["changeStream"]["revision"] >= revision and found["changeStream"]["lagSeconds"] < 1


async def copies(url: str, headers: dict[str, str]) -> list[tuple[int, str]]:
    """Revision and key of each message of the topic."""
    found: list[tuple[int, str]] = []
    cursor = ""
    while True:
        page = await call(url, headers, "GET", f"{TOPIC}/messages?limit=1000{cursor}")
        assert page is not None
        found += [(int(one["headers"]["Postroad-Revision"]), one["subject"]) for one in page["messages"]]
        if page["nextCursor"] is None:
            return found
        cursor = f"&cursor={page['nextCursor']}"


async def time_to_current(url: str, headers: dict[str, str], writers: Writers) -> None:
    """Report how long the copies need for what was acknowledged up to a fault, while clients write on."""
    started, last = time.monotonic(), max(writers.acknowledged)
    await eventually(lambda: is_current(url, headers, last), CURRENT_SECONDS)
    print(f"lag under 1 s, {time.monotonic() - started:.1f} s after the last fault")


async def check_copies(url: str, headers: dict[str, str], writers: Writers) -> None:
    last = max(writers.acknowledged)
    await eventually(lambda: is_current(url, headers, last), CURRENT_SECONDS)
    found = await copies(url, headers)
    revisions = [revision for revision, _ in found]
    assert revisions == sorted(set(revisions)), "once and in order"
    keys = dict(found)
    assert {revision: keys.get(revision) for revision in writers.acknowledged} == writers.acknowledged


async def more_writes(writers: Writers) -> None:
    """Return once clients have written a hundred values more."""
    count = len(writers.acknowledged) + 100
    await eventually(lambda: len(writers.acknowledged) > count, 120)


@pytest.mark.parametrize("keys", [1, 1000])
async def test_every_acknowledged_revision_is_copied_once_through_kills(install: Install, keys: int) -> None:
    running = await install().start().ready()
    url, headers = running.url, running.headers
    assert await call(url, headers, "POST", "/v1/buckets", {"name": "cart", "change_stream_topic": "cart-events"})
    writers, stop = Writers(lambda: [running.url], headers, keys), asyncio.Event()
    writing = [asyncio.create_task(writers.write(number, stop)) for number in range(WRITERS)]
    await eventually(lambda: len(writers.acknowledged) > 100, 60)
    for kill in (kill_bridge, kill_worker, kill_engine, kill_all):
        kill(running)
        await more_writes(writers)
        await eventually(lambda: running.background_pids and running.worker_pids and running.children("nats-server"), 60)
    kill_bridge(running)
    await time_to_current(url, headers, writers)
    stop.set()
    await asyncio.gather(*writing)
    await check_copies(url, headers, writers)


@pytest.fixture
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Clustered]:
    made = Clustered(tmp_path_factory.mktemp("cluster"))
    try:
        await made.start()
        yield made
    finally:
        made.end()


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("keys", [1, 1000])
async def test_every_acknowledged_revision_is_copied_once_through_kills_on_a_cluster(deployment: Clustered, keys: int) -> None:
    """Of the leaders of bucket and topic, of the bridge, and of the gateways."""
    url, headers = deployment.urls()[0], deployment.headers()
    assert await call(url, headers, "POST", "/v1/buckets", {"name": "cart", "change_stream_topic": "cart-events"})
    writers, stop = Writers(deployment.urls, headers, keys), asyncio.Event()
    writing = [asyncio.create_task(writers.write(number, stop)) for number in range(WRITERS)]
    await eventually(lambda: len(writers.acknowledged) > 100, 60)
    for stream in ("KV_default__cart", "T_default__cart-events"):
        leader = await deployment.cluster.leader(stream)
        leader.kill()
        await more_writes(writers)
        await asyncio.to_thread(leader.start)
        await leader.healthy()
    for name in ("delivery", "gateway"):
        await kill_processes(deployment, name)
        await more_writes(writers)
    leader = await deployment.cluster.leader("T_default__cart-events")
    leader.kill()
    await kill_processes(deployment, "delivery")
    await time_to_current(url, headers, writers)
    await asyncio.to_thread(leader.start)
    await leader.healthy()
    stop.set()
    await asyncio.gather(*writing)
    await check_copies(url, headers, writers)
