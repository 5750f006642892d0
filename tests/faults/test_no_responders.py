"""An engine whose JetStream is off answers "no responders" at once: every route says 502 then, which may be repeated, and none
takes it for a timeout or a bug."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from postroad.jetstream.connection import ConnectionLost
from tests.described import ROUTES
from tests.gateway import Answer, Client, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

_NAMES = {"queue": "orders", "topic": "orders", "bucket": "cart", "bucket_key": "k", "stream": "log", "project": "p"}
_ID = "0198c2f0-0000-7000-8000-000000000000"
_MESSAGE = {"subject": "a", "payload": 1}
_URL = "https://example.com/"
_BODIES: dict[str, Any] = {
    "PUT /v1/queues/{queue}": {"maxDeliver": 7},
    "PATCH /v1/queues/{queue}": {"maxDeliver": 8},
    "POST /v1/queues/{queue}/messages": {"payload": 1},
    "POST /v1/queues/{queue}/messages/batch": {"messages": [{"payload": 1}]},
    "PUT /v1/topics/{topic}": {"maxMessages": 7},
    "PATCH /v1/topics/{topic}": {"maxMessages": 8},
    "POST /v1/topics/{topic}/messages": _MESSAGE,
    "POST /v1/topics/{topic}/messages/batch": {"messages": [_MESSAGE]},
    "POST /v1/topics/{topic}/subscriptions": {"delivery_type": "http_push", "url": _URL, "name": "other"},
    "PATCH /v1/subscriptions/{subscription}": {"maxDeliver": 5},
    "POST /v1/subscriptions/{subscription}/replay": {"fromSequence": 1},
    "POST /v1/subscriptions/{subscription}/rewind": {"fromSequence": 1},
    "POST /v1/buckets": {"name": "other"},
    "PATCH /v1/buckets/{bucket}": {"history": 3},
    "POST /v1/buckets/{bucket}/batch": {"writes": [{"key": "k", "value": 1}]},
    "PUT /v1/schedules/{schedule}": {"cron": "* * * * *", "queue": "orders", "payload": 1},
    "POST /api/control/keys": {"scopes": ["read"]},
    "POST /v1/tokens": {"resource": "live"},
}
_ROUTES = [
    route
    for route in ROUTES
    if route.path != "/readyz"  # 503 while it is not ready
    and not route.path.startswith("/v1/jobs")  # served by a process that waits for the engine: 503
    and not (route.is_websocket or route.is_page or route.media == "text/event-stream" or "{project}" in route.path)
]
REFUSED_AT_LEAST = 60
_AT_ONCE = 64  # each takes the deadline of an engine call
_SECONDS = 240
_UNKNOWN = b"may or may not be stored"  # each attempt timed out on a machine that is very busy: 503


async def _answer(client: Client, route: Any, names: dict[str, str], slots: asyncio.Semaphore) -> Answer:
    path = re.sub(r"{(\w+)}", lambda found: names.get(found[1], _ID), route.path)
    body = _BODIES.get(f"{route.method} {route.path}", {} if route.body is not None else None)
    data = b"text" if route.raw_body else None
    async with slots:
        return await client.call(route.method, path, None if data else body, data=data)


def _without_jetstream(server: Server) -> None:
    configuration = server.settings.data_dir / "nats" / "nats.conf"
    text = configuration.read_text()
    without = re.sub(r"jetstream \{\n.*?\n\}\n", "", text, flags=re.DOTALL)
    assert without != text
    configuration.write_text(without)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_every_route_answers_no_responders_with_502(own_server: Server) -> None:
    settings = gateway_settings(own_server.url, registry_max_age_refuse_seconds=3600.0)
    async with running_gateway(settings) as gateway:
        tenant = await gateway.tenant()
        (await tenant.client.put("/v1/queues/orders", {})).ok(201)
        (await tenant.client.post("/v1/queues/orders/messages", {"payload": 1})).ok(201)
        (await tenant.client.put("/v1/topics/orders", {})).ok(201)
        (await tenant.client.post("/v1/topics/orders/messages", _MESSAGE)).ok(201)
        (await tenant.client.post("/v1/buckets", {"name": "cart"})).ok(201)
        (await tenant.client.call("PUT", "/v1/buckets/cart/keys/k", data=b"1")).ok()
        made = await tenant.client.post(
            "/v1/topics/orders/subscriptions", {"delivery_type": "http_push", "url": _URL, "name": "s"}
        )
        names = {**_NAMES, "subscription": made.ok(201)["id"], "schedule": "hourly"}
        _without_jetstream(own_server)
        own_server.kill()
        own_server.start()
        connection = gateway.node.platform.connection

        async def is_refused() -> bool:
            try:
                return (await connection.request("$JS.API.INFO")).status == "503"
            except (ConnectionLost, TimeoutError):
                return False

        await eventually(is_refused, 60)
        slots = asyncio.Semaphore(_AT_ONCE)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_SECONDS)) as session:
            client = replace(tenant.client, session=session)
            answers = await asyncio.gather(*(_answer(client, route, names, slots) for route in _ROUTES))
    found = {f"{route.method} {route.path}": answer for route, answer in zip(_ROUTES, answers, strict=True)}
    others = {
        name: (one.status, one.body[:200])
        for name, one in found.items()
        if one.status >= 500 and one.status != 502 and _UNKNOWN not in one.body
    }
    assert others == {}
    refused = {name: one for name, one in found.items() if one.status == 502}
    for name, one in refused.items():
        assert int(one.headers["retry-after"]) >= 1
        if not name.startswith("HEAD "):
            assert one.json["code"] == "engine-no-responders" and one.json["retryable"], name
    print(f"{len(refused)} of {len(_ROUTES)} routes needed the engine")
    assert len(refused) >= REFUSED_AT_LEAST
