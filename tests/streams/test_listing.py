"""Lists of streams and stream subscriptions over HTTP."""

from datetime import datetime

import pytest

from postroad.kernel.clock import now_ms
from postroad.kernel.identity import Scope
from postroad.streams import listing
from tests.gateway import Gateway, Tenant

TEXT = {"Content-Type": "text/plain"}


async def create(tenant: Tenant, *streams: str, data: bytes = b"", **headers: str) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    for stream in streams:
        answer = await tenant.client.call("PUT", f"/v1/stream/{stream}", data=data, headers={**TEXT, **named})
        assert answer.status == 201, answer


async def ids(tenant: Tenant, query: str = "") -> list[str]:
    """All pages."""
    found: list[str] = []
    cursor = ""
    while True:
        page = (await tenant.client.get(f"/v1/streams?{query}{cursor}")).ok()
        found += [one["id"] for one in page["streams"]]
        if page["nextCursor"] is None:
            return found
        cursor = f"&cursor={page['nextCursor']}"


async def test_a_tenant_without_streams_has_an_empty_list(tenant: Tenant) -> None:
    assert (await tenant.client.get("/v1/streams")).ok() == {"streams": [], "nextCursor": None}
    assert (await tenant.client.get(f"/v1/{tenant.id}/sessions")).ok() == {"sessions": [], "nextCursor": None}


async def test_the_fields_of_a_listed_stream(tenant: Tenant) -> None:
    before = now_ms()
    await create(tenant, "a", data=b"one", Stream_TTL="60", Stream_Public="true")
    appended = await tenant.client.post("/v1/stream/a", data=b"two", headers={**TEXT, "Stream-Closed": "true"})
    await create(tenant, "b", Stream_Forked_From="/v1/stream/a")
    listed, fork = (await tenant.client.get(f"/v1/{tenant.id}/streams")).ok()["streams"]
    for field in ("createdAt", "lastActivityAt"):
        assert before - 1000 <= datetime.fromisoformat(listed.pop(field)).timestamp() * 1000 <= now_ms() + 1000
    assert listed == {
        "id": "a",
        "contentType": "text/plain",
        "nextOffset": appended.headers["stream-next-offset"],
        "appends": 2,
        "isClosed": True,
        "isPublic": True,
        "ttlSeconds": 60,
    }
    assert (fork["id"], fork["forkedFrom"], fork["appends"]) == ("b", "a", 0)


async def test_activity_moves_with_appends(tenant: Tenant) -> None:
    await create(tenant, "a", "b")
    before = {one["id"]: one["lastActivityAt"] for one in (await tenant.client.get("/v1/streams")).ok()["streams"]}
    await tenant.client.post("/v1/stream/a", data=b"x", headers=TEXT)
    after = {one["id"]: one["lastActivityAt"] for one in (await tenant.client.get("/v1/streams")).ok()["streams"]}
    assert after["a"] > before["a"] and after["b"] == before["b"]


async def test_pages_and_prefixes(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a/1", "a/2", "b", "session", "session-x", "session;x".replace(";", "~"), "t", "z"]
    await create(tenant, *reversed(names))
    for number in range(5):
        body = {"sessionId": f"s{number}", "streamId": "b"}
        (await tenant.client.post(f"/v1/{tenant.id}/subscribe", body)).ok()
    for chunk in (1, 2, 100):
        monkeypatch.setattr(listing, "_CHUNK", chunk)
        for limit in (1, 2, 3, 100):
            assert await ids(tenant, f"limit={limit}") == sorted(names)
        assert await ids(tenant, "prefix=a/&limit=1") == ["a/1", "a/2"]
        assert await ids(tenant, "prefix=session&limit=2") == ["session", "session-x", "session~x"]
        assert await ids(tenant, "prefix=session:&limit=2") == [f"session:s{number}" for number in range(5)]
        assert await ids(tenant, "prefix=nothing") == []


async def test_deleted_and_expired_streams_are_not_listed(gateway: Gateway, tenant: Tenant) -> None:
    await create(tenant, "a", "b")
    await create(tenant, "c", Stream_TTL="60")
    await tenant.client.delete("/v1/stream/a")
    try:
        gateway.clock.ahead_ms = 3_600_000
        assert await ids(tenant) == ["b"]
    finally:
        gateway.clock.ahead_ms = 0


async def test_another_gateway_lists_a_new_stream_at_once(tenant: Tenant, second_gateway: Gateway) -> None:
    there = second_gateway.seen_by(tenant)
    for number in range(3):
        await create(tenant, f"s{number}")
        assert await ids(there) == [f"s{one}" for one in range(number + 1)]


async def test_a_restricted_key_sees_its_streams(tenant: Tenant, gateway: Gateway) -> None:
    await create(tenant, "chat/1", "chat/2", "diary")
    narrow = await tenant.another_key((Scope.READ,), allowed_streams=("chat/*",))
    assert await ids(narrow, "limit=1") == ["chat/1", "chat/2"]
    stranger = await gateway.tenant()
    assert await ids(stranger) == []
    (await (await tenant.another_key((Scope.PUBLISH,))).client.get("/v1/streams")).problem(403, "forbidden")
    (await gateway.anonymous.get("/v1/streams")).problem(401, "unauthenticated")
    assert await ids(await tenant.another_key((Scope.ADMIN,))) == ["chat/1", "chat/2", "diary"]


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "cursor=", f"prefix={'a' * 257}", "sort=size"])
async def test_an_invalid_query_is_refused(tenant: Tenant, query: str) -> None:
    (await tenant.client.get(f"/v1/streams?{query}")).problem(400, "invalid-parameter")


async def test_stream_subscriptions_are_listed(tenant: Tenant, gateway: Gateway) -> None:
    await create(tenant, "wake", "orders/1", "orders/2")
    root = "/v1/stream/__ds/subscriptions"
    for name in ("b", "a.1", "a.2"):
        body = {"type": "pull-wake", "wake_stream": "wake", "streams": ["orders/1", "orders/2"], "description": name}
        (await tenant.client.put(f"{root}/{name}", body)).ok(201)
    (await tenant.client.put(f"{root}/c", {"type": "pull-wake", "wake_stream": "wake", "pattern": "orders/*"})).ok(201)
    first = (await tenant.client.get(f"{root}?limit=2")).ok()
    assert [one["id"] for one in first["subscriptions"]] == ["a.1", "a.2"]
    assert first["subscriptions"][0].pop("created_at").endswith("Z")
    assert first["subscriptions"][0] == {
        "id": "a.1",
        "type": "pull-wake",
        "streams": 2,
        "status": "active",
        "generation": 0,
        "pending": False,
        "wake_stream": "wake",
        "description": "a.1",
    }
    rest = (await tenant.client.get(f"{root}?limit=2&cursor={first['nextCursor']}")).ok()
    assert ([one["id"] for one in rest["subscriptions"]], rest["nextCursor"]) == (["b", "c"], None)
    assert [one["id"] for one in (await tenant.client.get(f"{root}?prefix=a.")).ok()["subscriptions"]] == ["a.1", "a.2"]
    narrow = await tenant.another_key((Scope.READ,), allowed_streams=("orders/*", "wake"))
    seen = (await narrow.client.get(f"/v1/{tenant.id}/stream/__ds/subscriptions")).ok()["subscriptions"]
    assert [one["id"] for one in seen] == ["a.1", "a.2", "b"], "a pattern may match other streams later"
    (await gateway.anonymous.get(root)).problem(401, "unauthenticated")
