"""Placement on five tagged servers: as asked for, refused, moved while in use, after the death of a server."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from postroad.container import Role
from postroad.runtime.embedded_server import find_server
from tests.cluster import Cluster
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.network import LOOPBACK
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("regions"), pytest.mark.timeout(240)]

TAGS = (
    ("region:eu-west", "ssd"),
    ("region:eu-central",),
    ("region:fr-par", "ssd"),
    ("region:us-east",),
    ("region:us-west", "ssd"),
)
EUROPE, AMERICA = {"n1", "n2", "n3"}, {"n4", "n5"}
MAKE = {
    "queue": ("PUT", "/v1/queues/{}"),
    "topic": ("PUT", "/v1/topics/{}"),
    "bucket": ("POST", "/v1/buckets"),
}


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    find_server()
    made = Cluster(tmp_path_factory.mktemp("regions"), (LOOPBACK,) * 5, TAGS)
    try:
        await made.start()
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
async def gateway(cluster: Cluster) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(cluster.url, region="nl-ams"), Role.ALL) as made:
        yield made


@pytest.fixture
async def tenant(gateway: Gateway) -> Tenant:
    return await gateway.tenant()


async def make(tenant: Tenant, kind: str, name: str = "it", **settings: Any) -> Any:
    method, path = MAKE[kind]
    body = {"name": name, **settings} if kind == "bucket" else settings
    return await tenant.client.call(method, path.format(name), body)


async def placement(tenant: Tenant, kind: str, name: str = "it") -> dict[str, Any]:
    shown: dict[str, Any] = (await tenant.client.get(f"/v1/{kind}s/{name}")).ok()["placement"]
    return shown


async def nodes_of(tenant: Tenant, kind: str, name: str = "it") -> set[str]:
    return {one["node"] for one in (await placement(tenant, kind, name))["replicas"]}


@pytest.mark.parametrize("kind", MAKE)
async def test_a_resource_is_kept_where_it_was_asked_for(tenant: Tenant, kind: str) -> None:
    wanted: dict[str, tuple[dict[str, Any], set[str], int]] = {
        "auto": ({"geo": "auto"}, EUROPE, 3),  # the gateway is in eu
        "default": ({}, EUROPE, 3),
        "one": ({"replicas": 1, "geo": "us-east"}, {"n4"}, 1),
        "geo": ({"geo": "eu"}, EUROPE, 3),
        "tag": ({"geo": "ssd"}, {"n1", "n3", "n5"}, 3),
        "more": ({"replicas": 5}, EUROPE | AMERICA, 5),  # eu has too few for auto: anywhere
    }
    for name, (settings, nodes, replicas) in wanted.items():
        (await make(tenant, kind, name, **settings)).ok(201)
        placed = await placement(tenant, kind, name)
        assert {one["node"] for one in placed["replicas"]} == nodes and len(placed["replicas"]) == replicas, name
        assert placed["leader"] in nodes and placed["region"] is not None and placed["movingTo"] == []


@pytest.mark.parametrize("kind", MAKE)
async def test_too_few_servers_and_unknown_places_are_refused(tenant: Tenant, kind: str) -> None:
    for settings, path, words in (
        ({"geo": "na"}, "$.geo", "na has 2 servers (n4 in us-east, n5 in us-west), and 3 replicas need as many"),
        ({"geo": "us-east"}, "$.geo", "us-east has 1 server (n4 in us-east)"),
        ({"geo": "eu", "replicas": 5}, "$.geo", "eu has 3 servers"),
        ({"geo": "us-eas", "replicas": 1}, "$.geo", "did you mean 'us-east'?"),
        ({"geo": "jp-osa", "replicas": 1}, "$.geo", "jp-osa has no server"),
    ):
        problem = (await make(tenant, kind, **settings)).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == path and words in problem["detail"], problem
    assert (await tenant.client.get(f"/v1/{kind}s/it")).status == 404


async def task_of(tenant: Tenant) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = (await tenant.client.get("/v1/tasks")).ok()["tasks"]
    return tasks[0]


async def move_is_done(tenant: Tenant) -> dict[str, Any] | None:
    task = await task_of(tenant)
    assert task["state"] in ("queued", "running", "done"), task
    return task if task["state"] == "done" else None


@pytest.mark.parametrize("kind", ["topic", "bucket"])
async def test_another_geo_moves_a_resource_while_it_is_written(tenant: Tenant, kind: str) -> None:
    (await make(tenant, kind, replicas=1, geo="eu-west")).ok(201)
    base, written, is_moving = f"/v1/{kind}s/it", 0, True

    async def write() -> int:
        count = 0
        while is_moving:
            if kind == "topic":
                answer = await tenant.client.post(f"{base}/messages", {"subject": "a", "payload": count})
            else:
                answer = await tenant.client.call("PUT", f"{base}/keys/k{count}", data=b"x")
            if answer.status in (200, 201):
                count += 1
        return count

    writing = asyncio.create_task(write())
    moved = (await tenant.client.patch(base, {"geo": "us-west"})).ok()
    assert moved["settings"]["geo"] == "us-west"
    task = await eventually(lambda: move_is_done(tenant), 60)
    assert (task["kind"], task["target"], task["wanted"]["geo"]) == ("move-placement", "it", "us-west")
    assert task["progress"]["moved"] == task["progress"]["total"] == 1
    assert await nodes_of(tenant, kind) == {"n5"}
    is_moving = False
    written = await writing
    assert written > 0
    stats = (await tenant.client.get(base)).ok()["stats"]
    assert stats.get("messages", stats.get("keys")) >= written


async def test_a_queue_moves_with_its_messages_and_leases(tenant: Tenant) -> None:
    queue = await tenant.queue("it", geo="eu")
    for number in range(20):
        await tenant.publish(queue, number)
    leased = await tenant.pull(queue, 5)
    (await tenant.client.patch(queue, {"geo": "ssd"})).ok()
    await eventually(lambda: move_is_done(tenant), 60)
    assert await nodes_of(tenant, "queue") == {"n1", "n3", "n5"}
    for one in leased:
        assert (await tenant.ack(queue, one["receiptId"])).status == 200

    async def rest() -> bool:
        pulled = await tenant.pull(queue, 20)
        for one in pulled:
            payloads.add(one["payload"])
        return len(payloads) == 15

    payloads: set[int] = set()
    await eventually(rest, 30)


async def test_copies_and_place_are_changed_together(tenant: Tenant) -> None:
    (await make(tenant, "topic", replicas=1, geo="us-east")).ok(201)
    (await tenant.client.patch("/v1/topics/it", {"geo": "eu", "replicas": 3})).ok()
    await eventually(lambda: move_is_done(tenant), 60)
    assert await nodes_of(tenant, "topic") == EUROPE
    (await tenant.client.patch("/v1/topics/it", {"geo": "us-west", "replicas": 1})).ok()
    await eventually(lambda: move_is_done(tenant), 60)
    assert await nodes_of(tenant, "topic") == {"n5"}


async def test_other_changes_leave_a_resource_where_it_is(tenant: Tenant) -> None:
    (await make(tenant, "queue", geo="auto")).ok(201)
    (await tenant.client.patch("/v1/queues/it", {"maxAttempts": 3})).ok()
    assert await nodes_of(tenant, "queue") == EUROPE
    assert (await tenant.client.get("/v1/tasks")).ok()["tasks"] == []


async def test_regions_show_servers_and_leaders(tenant: Tenant) -> None:
    (await make(tenant, "queue", replicas=1, geo="us-east")).ok(201)
    (await make(tenant, "topic", geo="eu")).ok(201)
    shown = (await tenant.client.get("/v1/regions?empty=false")).ok()
    assert (shown["region"], shown["geo"]) == ("nl-ams", "eu")
    assert {one["name"]: one["replicas"] for one in shown["regions"]} == {
        "eu-west": 1, "eu-central": 1, "fr-par": 1, "us-east": 1, "us-west": 0,
    }  # fmt: skip
    assert sum(one["leaders"] for one in shown["regions"]) == shown["streams"] == 2
    assert len((await tenant.client.get("/v1/regions")).ok()["regions"]) == 27


async def test_after_the_death_of_a_server(cluster: Cluster, tenant: Tenant, gateway: Gateway) -> None:
    """What was kept there is served by the others; a place that lacks it only for now is a 503, not a refusal."""
    queue = await tenant.queue("kept", geo="eu")
    await tenant.publish(queue, "before")
    assert (await tenant.client.get("/v1/regions")).status == 200
    cluster.node("n3").kill()
    try:
        names = (f"new-{number}" for number in itertools.count())

        async def is_noticed() -> bool:
            made = await make(tenant, "queue", next(names), geo="eu")
            assert made.status in (201, 503), made.body  # for some seconds the others do not know
            return made.status == 503 and "n3 does not answer" in made.json["detail"]

        await eventually(is_noticed, 60)

        async def is_served() -> bool:
            pulled = await tenant.client.post(f"{queue}/pull", {"maxMessages": 1})
            return pulled.status == 200 and [one["payload"] for one in pulled.json["messages"]] == ["before"]

        await eventually(is_served, 60)
        (await make(tenant, "queue", "elsewhere", replicas=1, geo="na")).ok(201)
        placed = await placement(tenant, "queue", "kept")
        assert placed["leader"] in {"n1", "n2"}
        shown = (await tenant.client.get("/v1/regions?empty=false")).ok()
        assert next(one for one in shown["regions"] if one["name"] == "fr-par")["nodes"][0]["isUp"] is False
    finally:
        cluster.node("n3").start()
        await cluster.node("n3").healthy()

    async def is_placed() -> bool:
        return (await make(tenant, "queue", "again", geo="eu")).status in (200, 201)

    await eventually(is_placed, 60)
