"""Placement on a single server: accepted as asked for, kept once."""

from typing import Any

import pytest

from postroad.runtime.embedded_server import EmbeddedServerSettings
from postroad.settings import SettingsInvalid, load_settings
from tests.buckets.conftest import gateway, tenant
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.gateway_fixtures import clock
from tests.scratch import scratch_folder
from tests.servers import Server
from tests.waiting import eventually

__all__ = ["clock", "gateway", "tenant"]

MAKE = {
    "queue": ("PUT", "/v1/queues/it", {}),
    "topic": ("PUT", "/v1/topics/it", {}),
    "bucket": ("POST", "/v1/buckets", {"name": "it"}),
}


@pytest.mark.parametrize("kind", MAKE)
async def test_three_replicas_and_auto_are_stored_and_one_copy_is_kept(tenant: Tenant, kind: str) -> None:
    method, path, body = MAKE[kind]
    made = (await tenant.client.call(method, path, {**body, "replicas": 3, "geo": "auto"})).ok(201)
    assert (made["settings"]["replicas"], made["settings"]["geo"]) == (3, "auto")
    assert made.get("replicas", made.get("effective", {}).get("replicas")) == 1
    shown = (await tenant.client.get(f"/v1/{kind}s/it")).ok()
    assert (shown["settings"]["replicas"], shown["placement"]["leader"]) == (3, "postroad")
    assert [(one["node"], one["isLeader"], one["region"]) for one in shown["placement"]["replicas"]] == [("postroad", True, None)]


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize(("geo", "word"), [("eu", "no tag of a region"), ("eu-west", "no server"), ("eu-wst", "'eu-west'")])
async def test_a_place_that_the_server_is_not_in_is_refused(tenant: Tenant, kind: str, geo: str, word: str) -> None:
    method, path, body = MAKE[kind]
    problem = (await tenant.client.call(method, path, {**body, "geo": geo})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.geo" and word in problem["detail"]
    assert (await tenant.client.get(f"/v1/{kind}s/it")).status == 404


@pytest.mark.engine
async def test_a_server_with_a_region_serves_its_geo() -> None:
    server = Server(EmbeddedServerSettings(scratch_folder(), region="eu-west")).start()
    try:
        async with running_gateway(gateway_settings(server.url, region="eu-west")) as gateway:
            tenant = await gateway.tenant()
            for geo in ("auto", "eu", "eu-west", "region:eu-west"):
                (await tenant.client.put(f"/v1/queues/{geo.replace(':', '-')}", {"geo": geo, "replicas": 3})).ok(201)
            assert (
                "na has no server"
                in (await tenant.client.put("/v1/queues/q", {"geo": "na"})).problem(422, "invalid-body")["detail"]
            )
            placed = (await tenant.client.get("/v1/queues/eu")).ok()["placement"]
            assert (placed["leader"], placed["region"]) == ("postroad", "eu-west")
            shown = (await tenant.client.get("/v1/regions?empty=false")).ok()
            assert (shown["region"], shown["geo"], shown["streams"]) == ("eu-west", "eu", 4)
            assert [(one["name"], one["leaders"]) for one in shown["regions"]] == [("eu-west", 4)]
    finally:
        server.kill()


async def test_regions_show_only_the_callers_own_resources(gateway: Gateway, tenant: Tenant) -> None:
    await tenant.queue("mine")
    await tenant.queue("secret")
    other = await gateway.tenant()
    await other.queue("theirs")

    async def are_counted() -> dict[str, Any] | None:
        found = (await tenant.client.get("/v1/regions")).ok()
        return found if found["streams"] == 2 else None

    shown = await eventually(are_counted)  # it is some seconds old
    assert shown["region"] is None
    assert len(shown["regions"]) == 28, "27 regions, and the server without one"
    assert shown["regions"][-1]["nodes"][0]["name"] == "postroad" and shown["regions"][-1]["leaders"] == 2
    narrow = await tenant.another_key(allowed_queues=("mine",))
    assert (await narrow.client.get("/v1/regions")).ok()["streams"] == 1


@pytest.mark.parametrize(
    ("given", "word"),
    [({"POSTROAD_REGION": "atlantis"}, "is not a region"), ({"POSTROAD_REGIONS": "fra"}, "POSTROAD_REGIONS")],
)
def test_an_unknown_region_ends_the_start(given: dict[str, str], word: str) -> None:
    with pytest.raises(SettingsInvalid, match=word):
        load_settings(given)


def test_a_region_of_the_own_table_is_accepted() -> None:
    load_settings({"POSTROAD_REGION": "fra", "POSTROAD_REGIONS": "fra=eu"})
