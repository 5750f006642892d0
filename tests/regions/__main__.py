"""`make regions`: 27 servers, one per region, and three gateways with one namespace: publish in eu, read in ap, redrive in na.

As root, each region is a network namespace with the latency of its distance, and the links of a geo are cut; otherwise all
servers are on loopback. With `--keep` everything stays up until Ctrl-C. Exit code 1 if a check fails.
"""

import argparse
import asyncio
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from postroad.kernel.regions import GEOS, SHIPPED
from tests.cluster import Cluster
from tests.installation import Installation
from tests.network import LOOPBACK
from tests.regions.world import World, missing_for_world
from tests.tiers import use_memory_for_files
from tests.waiting import eventually

GATEWAYS = ("eu-central", "ap-northeast", "us-east")
_NAMES = [entry.name for entry in SHIPPED]
# One connection per pair of servers: 351. A machine that others keep busy must not end them: a cut shows as missing answers.
_ROUTE_OPTIONS = 'pool_size: -1, ping_interval: "20s", ping_max: 6, write_deadline: "60s"'
_STARTED = time.monotonic()
_PATIENCE_SECONDS = 300.0  # 30 servers and gateways on a machine that others keep busy


def report(text: str) -> None:
    print(f"{time.monotonic() - _STARTED:6.1f} s  {text}", flush=True)


class Client:
    """Calls the gateway of a region."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self.url = session, url

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        async with self._session.request(method, self.url + path, json=body) as answer:
            return answer.status, (await answer.json() if answer.content_length != 0 else None)

    async def ok(self, method: str, path: str, body: object = None, seconds: float = _PATIENCE_SECONDS) -> Any:
        """The response once it is a success: leaders may be elected meanwhile."""

        async def succeeds() -> tuple[int, Any] | None:
            status, found = await self.call(method, path, body)
            assert status < 400 or status in (404, 409, 502, 503), (method, path, status, found)
            return (status, found) if status < 400 else None

        return (await eventually(succeeds, seconds))[1]


@contextlib.asynccontextmanager
async def running(home: Path, *, is_local: bool) -> AsyncIterator[tuple[World | None, list[Client]]]:
    reason = "as requested" if is_local else missing_for_world()
    world = None if reason else World(SHIPPED)
    report(f"on loopback, without latency: {reason}" if world is None else "27 network namespaces with latency")
    hosts = [LOOPBACK] * len(SHIPPED) if world is None else world.hosts
    cluster = Cluster(home, hosts, [(entry.tag,) for entry in SHIPPED], _ROUTE_OPTIONS)
    try:
        await cluster.start()
        report(f"{len(cluster.nodes)} servers have formed a cluster")
        first: Installation | None = None
        for region in GATEWAYS:
            geo = SHIPPED[_NAMES.index(region)].geo
            near = ",".join(node.url for node, entry in zip(cluster.nodes, SHIPPED, strict=True) if entry.geo == geo)
            command = ("up",) if first is None else ("serve", "--role", "gateway")
            gateway = cluster.gateway(*command, "--workers", "1", POSTROAD_REGION=region, POSTROAD_NATS_URL=near)
            gateway.host = hosts[_NAMES.index(region)]
            try:
                await gateway.start().ready(2 * _PATIENCE_SECONDS)
            except AssertionError:
                print(gateway.output()[-2000:], gateway.log()[-8000:])
                raise
            first = first or gateway
            report(f"gateway in {region}: {gateway.url}")
        assert first is not None
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(headers=first.headers, timeout=timeout) as session:
            yield world, [Client(session, gateway.url) for gateway in cluster.gateways]
    finally:
        cluster.end()
        if world is not None:
            world.close()


async def check_placement(client: Client) -> None:
    regions = (await client.ok("GET", "/v1/regions?empty=false"))["regions"]
    assert len(regions) == 27 and all(len(one["nodes"]) == 1 for one in regions), regions
    geo_of = {entry.name: entry.geo for entry in SHIPPED}
    for geo in GEOS:
        await client.ok("PUT", f"/v1/queues/in-{geo}", {"geo": geo})
        replicas = (await client.ok("GET", f"/v1/queues/in-{geo}"))["placement"]["replicas"]
        assert len(replicas) == 3 and {geo_of[one["region"]] for one in replicas} == {geo}, replicas
    report("a queue with three replicas in each of six geos")


async def check_one_namespace(eu: Client, ap: Client, na: Client) -> None:
    """Publish in eu, read in ap, redrive in na."""
    await eu.ok("PUT", "/v1/topics/orders", {"geo": "auto"})
    placed = (await eu.ok("GET", "/v1/topics/orders"))["placement"]
    assert {one["region"] for one in placed["replicas"]} <= {one.name for one in SHIPPED if one.geo == "eu"}, placed
    await eu.ok("PUT", "/v1/queues/work", {"geo": "auto", "maxAttempts": 1})
    await ap.ok("POST", "/v1/topics/orders/subscriptions", {"delivery_type": "queue", "queue": "work"})
    started = time.monotonic()
    await eu.ok("POST", "/v1/topics/orders/messages", {"subject": "orders.new", "payload": {"id": 7}})
    stored = time.monotonic()
    pulled = (await ap.ok("POST", "/v1/queues/work/pull", {"maxMessages": 1, "waitMs": 20_000}))["messages"]
    assert [one["payload"] for one in pulled] == [{"id": 7}], pulled
    report(
        f"published in eu in {(stored - started) * 1000:.0f} ms, pulled in ap {(time.monotonic() - stored) * 1000:.0f} ms later"
    )
    await ap.ok("POST", "/v1/queues/work/nack", {"receiptId": pulled[0]["receiptId"], "action": "dlq"})
    task = (await na.ok("POST", "/v1/queues/work/dlq/redrive", {}))["task"]["id"]

    async def is_done() -> bool:
        return bool((await na.ok("GET", f"/v1/tasks/{task}"))["state"] == "done")

    await eventually(is_done, _PATIENCE_SECONDS)
    again = (await eu.ok("POST", "/v1/queues/work/pull", {"maxMessages": 1, "waitMs": 20_000}))["messages"]
    assert [one["payload"] for one in again] == [{"id": 7}], again
    report("dead-lettered in ap, redriven in na, pulled again in eu")


async def check_move(eu: Client) -> None:
    started = time.monotonic()
    await eu.ok("PATCH", "/v1/topics/orders", {"geo": "ap"})

    async def has_moved() -> bool:
        tasks = (await eu.ok("GET", "/v1/tasks"))["tasks"]
        return any(one["kind"] == "move-placement" and one["state"] == "done" for one in tasks)

    await eventually(has_moved, _PATIENCE_SECONDS)
    geos = {one.name: one.geo for one in SHIPPED}
    replicas = (await eu.ok("GET", "/v1/topics/orders"))["placement"]["replicas"]
    assert {geos[one["region"]] for one in replicas} == {"ap"}, replicas
    report(f"moved a topic from eu to ap in {time.monotonic() - started:.1f} s")


async def check_cut(world: World, eu: Client) -> None:
    """A geo that is cut off is unavailable, the others are not; afterwards it is complete."""
    message = {"payload": "before"}
    await eu.ok("POST", "/v1/queues/in-af/messages", message)
    with world.cut("af", [geo for geo in GEOS if geo != "af"]):

        async def is_refused() -> bool:
            return (await eu.call("POST", "/v1/queues/in-af/messages", message))[0] in (502, 503)

        await eventually(is_refused, _PATIENCE_SECONDS)
        for geo in ("eu", "na", "ap"):
            await eu.ok("POST", f"/v1/queues/in-{geo}/messages", {"payload": "during"})
        report("with af cut off: its queue is 503, those of eu, na and ap are served")
    await eu.ok("POST", "/v1/queues/in-af/messages", {"payload": "after"})
    pulled: list[str] = []

    async def are_there() -> bool:
        found = await eu.ok("POST", "/v1/queues/in-af/pull", {"maxMessages": 50, "waitMs": 1000})
        pulled.extend(one["payload"] for one in found["messages"])
        return {"before", "after"} <= set(pulled)

    await eventually(are_there, _PATIENCE_SECONDS)
    report("af is back with its messages")


async def main(*, keep: bool, is_local: bool) -> None:
    use_memory_for_files()
    home = Path(tempfile.mkdtemp(prefix="regions-"))
    try:
        async with running(home, is_local=is_local) as (world, (eu, ap, na)):
            await check_placement(eu)
            await check_one_namespace(eu, ap, na)
            await check_move(eu)
            if world is not None:
                await check_cut(world, eu)
            report("all checks hold")
            if keep:
                print("Ctrl-C ends it", flush=True)
                await asyncio.Event().wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="stay up until Ctrl-C")
    parser.add_argument("--loopback", action="store_true", help="without latency, also as root")
    chosen = parser.parse_args()
    try:
        asyncio.run(main(keep=chosen.keep, is_local=chosen.loopback))
    except KeyboardInterrupt:
        sys.exit(130)
