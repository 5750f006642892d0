"""The AsyncAPI document of a tenant, read by the parser of the AsyncAPI project."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from postroad.kernel.identity import Scope
from tests.gateway import Gateway, Tenant
from tests.node import NODE

PARSE = Path(__file__).parent.parent / "conformance" / "asyncapi_parse.mjs"
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"total": {"type": "number"}, "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}}},
    "required": ["total"],
    "$defs": {"part": {"type": "object", "properties": {"inner": {"$ref": "#/$defs/part"}, "order": {"$ref": "#"}}}},
    "unevaluatedProperties": False,
    "discriminator": {"propertyName": "total"},
}

pytestmark = pytest.mark.engine


async def parsed(body: bytes) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        NODE, str(PARSE), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await process.communicate(body)
    assert process.returncode == 0, errors.decode()
    found: dict[str, Any] = json.loads(output)
    return found


async def filled(tenant: Tenant) -> None:
    await tenant.queue("orders:eu", schema=SCHEMA, tags={"team": "shop"})
    await tenant.queue("plain")
    (await tenant.client.put("/v1/topics/events_1", {"schema": {"type": ["string", "null"]}})).ok(201)
    for name, media in (("notes/json", "application/json"), ("photos~1", "image/png")):
        (await tenant.client.call("PUT", f"/v1/stream/{name}", headers={"Content-Type": media})).ok(201)


@pytest.mark.timeout(180)
async def test_the_parser_of_asyncapi_reads_the_document(tenant: Tenant) -> None:
    await filled(tenant)
    answer = await tenant.client.get("/asyncapi.json")
    answer.ok()
    found = await parsed(answer.body)
    assert (found["faults"], found["version"], found["servers"]) == ([], "3.0.0", [f"{tenant.gateway.url}/"])
    assert {one["id"]: one["address"] for one in found["channels"]} == {
        "queues.orders_3aeu": "/v1/queues/orders%3Aeu/messages",
        "queues.plain": "/v1/queues/plain/messages",
        "topics.events_5f1": "/v1/topics/events_1/messages",
        "streams.notes_2fjson": "/v1/stream/notes/json",
        "streams.photos_7e1": "/v1/stream/photos~1",
        "telemetry": "/v1/telemetry/stream",
    }
    [message] = found["channels"][0]["messages"]
    assert message["payload"]["schema"]["properties"]["total"]["type"] == "number"
    assert message["payload"]["schema"]["properties"]["parts"]["items"]["type"] == "object", "the reference is resolved"
    actions = {one["id"]: one["action"] for one in found["operations"]}
    assert actions["publish.queues.plain"] == "send" and actions["follow.telemetry"] == "receive"
    assert len(found["channels"][-1]["messages"]) > 50


@pytest.mark.timeout(180)
async def test_the_document_of_a_new_tenant_is_valid(tenant: Tenant) -> None:
    found = await parsed((await tenant.client.get("/asyncapi.json")).body)
    assert (found["faults"], [one["id"] for one in found["channels"]]) == ([], ["telemetry"])


async def test_the_document_is_the_same_each_time_and_sorted(tenant: Tenant) -> None:
    for name in ("c", "a", "b"):
        await tenant.queue(name)
    one, two = [(await tenant.client.get("/asyncapi.json")).body for _ in range(2)]
    assert one == two
    assert list(json.loads(one)["channels"]) == ["queues.a", "queues.b", "queues.c", "telemetry"]


async def test_a_long_list_is_cut_and_said_so(tenant: Tenant) -> None:
    for name in ("a", "b", "c"):
        await tenant.queue(name)
        (await tenant.client.call("PUT", f"/v1/stream/{name}", headers={"Content-Type": "text/plain"})).ok(201)
    found = (await tenant.client.get("/asyncapi.json?limit=2")).ok()
    assert list(found["channels"]) == ["queues.a", "queues.b", "streams.a", "streams.b", "telemetry"]
    assert found["info"]["x-postroad-left-out"] == ["queues", "streams"]
    (await tenant.client.get("/asyncapi.json?limit=0")).problem(400, "invalid-parameter")


async def test_a_key_sees_what_it_may_use_and_no_other_tenants(gateway: Gateway, tenant: Tenant) -> None:
    await filled(tenant)
    other = await gateway.tenant()
    await other.queue("of-another-tenant")
    limited = await tenant.another_key((Scope.READ,), allowed_queues=("plain",), allowed_topics=(), allowed_streams=())
    assert list((await limited.client.get("/asyncapi.json")).ok()["channels"]) == ["queues.plain", "telemetry"]
    assert "of-another-tenant" not in (await tenant.client.get("/asyncapi.json")).body.decode()
    (await gateway.anonymous.get("/asyncapi.json")).problem(401, "unauthenticated")
    publisher = await tenant.another_key((Scope.PUBLISH,))
    (await publisher.client.get("/asyncapi.json")).problem(403, "forbidden")
