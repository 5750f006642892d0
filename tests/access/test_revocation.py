"""Revocation takes effect on all gateways at once: for new requests, open streams and long polls."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from postroad.access.keys import new_key
from postroad.kernel.identity import ALL_SCOPES, Caller, Credential, Scope
from tests.access.control import AT_ONCE, KEYS, STREAM, TENANTS, WHOAMI, becomes, ends, new_key_by, patch, stamp, status_of
from tests.gateway import Answer, Client, EventReader, Gateway, Tenant
from tests.waiting import eventually

Revoke = Callable[[Gateway, Tenant, str], Awaitable[Answer]]


async def disable(_gateway: Gateway, tenant: Tenant, key_id: str) -> Answer:
    return await patch(tenant.client, f"{KEYS}/{key_id}", enabled=False)


async def delete(_gateway: Gateway, tenant: Tenant, key_id: str) -> Answer:
    return await tenant.client.delete(f"{KEYS}/{key_id}")


async def lose_a_scope(_gateway: Gateway, tenant: Tenant, key_id: str) -> Answer:
    return await patch(tenant.client, f"{KEYS}/{key_id}", scopes=["publish"])


async def narrow(_gateway: Gateway, tenant: Tenant, key_id: str) -> Answer:
    return await patch(tenant.client, f"{KEYS}/{key_id}", allowedQueues=["other"])


async def expire_soon(gateway: Gateway, tenant: Tenant, key_id: str) -> Answer:
    return await patch(tenant.client, f"{KEYS}/{key_id}", expiresAt=stamp(gateway.clock() + 300))


async def disable_the_tenant(gateway: Gateway, tenant: Tenant, _key_id: str) -> Answer:
    return await patch(gateway.admin, f"{TENANTS}/{tenant.id}", enabled=False)


async def delete_the_tenant(gateway: Gateway, tenant: Tenant, _key_id: str) -> Answer:
    return await gateway.admin.delete(f"{TENANTS}/{tenant.id}")


EVERY_WAY = [disable, delete, lose_a_scope, narrow, expire_soon, disable_the_tenant, delete_the_tenant]
every_way = pytest.mark.parametrize("revoke", EVERY_WAY, ids=lambda one: one.__name__)


@asynccontextmanager
async def following(client: Client) -> AsyncIterator[EventReader]:
    """An open stream that has sent its first line."""
    async with client.events(STREAM) as reader:
        assert await reader.answer.content.readline() == b"retry: 1000\n"
        yield reader


@every_way
async def test_an_open_stream_ends_on_every_gateway(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, revoke: Revoke
) -> None:
    text, record = await new_key_by(tenant.client)
    here, there = gateway.with_key(text), second_gateway.with_key(text)
    async with following(here) as one, following(there) as other, following(tenant.client) as unconcerned:
        assert (await revoke(gateway, tenant, record["id"])).status < 300
        await asyncio.gather(ends(one), ends(other))
        if "tenant" not in revoke.__name__:
            with pytest.raises(TimeoutError):
                await unconcerned.next(0.1)


@every_way
async def test_a_waiting_poll_ends_on_every_gateway(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, revoke: Revoke
) -> None:
    queue = await tenant.queue()
    text, record = await new_key_by(tenant.client)
    polls = [
        asyncio.ensure_future(one.with_key(text).post(f"{queue}/pull", {"waitMs": 10_000})) for one in (gateway, second_gateway)
    ]
    await eventually(lambda: record["id"] in gateway.node.platform.identities._watched)
    await eventually(lambda: record["id"] in second_gateway.node.platform.identities._watched)
    assert (await revoke(gateway, tenant, record["id"])).status < 300
    async with asyncio.timeout(AT_ONCE):
        for answer in await asyncio.gather(*polls):
            if revoke is delete_the_tenant and answer.status == 404:  # its queues may be deleted first
                answer.problem(404, "queue-not-found")
            else:
                answer.problem(401, "unauthenticated")


async def test_a_deleted_key_is_refused_on_every_gateway(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(tenant.client)
    everywhere = [gateway.with_key(text), second_gateway.with_key(text)]
    assert [await status_of(one) for one in everywhere] == [200, 200]
    await second_gateway.seen_by(tenant).client.delete(f"{KEYS}/{record['id']}")
    await becomes(401, *everywhere)


async def test_a_changed_key_takes_effect_on_every_gateway(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(tenant.client)
    everywhere = [gateway.with_key(text), second_gateway.with_key(text)]
    assert [await status_of(one, "/v1/queues") for one in everywhere] == [200, 200]
    await patch(tenant.client, f"{KEYS}/{record['id']}", scopes=["publish"])
    await becomes(403, *everywhere, path="/v1/queues")
    await patch(tenant.client, f"{KEYS}/{record['id']}", enabled=False)
    await becomes(401, *everywhere, path="/v1/queues")
    await patch(tenant.client, f"{KEYS}/{record['id']}", scopes=["read"], enabled=True)
    await becomes(200, *everywhere, path="/v1/queues")


async def test_a_new_key_works_on_every_gateway_at_once(gateway: Gateway, second_gateway: Gateway) -> None:
    for _ in range(5):
        tenant = await gateway.tenant()
        assert await status_of(second_gateway.seen_by(tenant).client) == 200


async def test_a_change_of_the_name_and_a_rotation_with_grace_period_do_not_end_streams(tenant: Tenant, gateway: Gateway) -> None:
    text, record = await new_key_by(tenant.client)
    async with following(gateway.with_key(text)) as reader:
        await patch(tenant.client, f"{KEYS}/{record['id']}", name="another")
        await tenant.client.post(f"{KEYS}/{record['id']}/rotate", {"graceSeconds": 3600})
        queue = await tenant.queue()
        await tenant.publish(queue, 1)
        assert await reader.next() is not None


async def test_a_stream_ends_when_its_key_expires(gateway: Gateway, tenant: Tenant) -> None:
    text, _ = await new_key_by(tenant.client, expiresAt=stamp(gateway.clock() + 400))
    async with following(gateway.with_key(text)) as reader:
        await ends(reader)
    (await gateway.with_key(text).get(WHOAMI)).problem(401, "unauthenticated")


async def test_a_poll_ends_when_its_key_expires(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    text, _ = await new_key_by(tenant.client, expiresAt=stamp(gateway.clock() + 400))
    async with asyncio.timeout(AT_ONCE):
        (await gateway.with_key(text).post(f"{queue}/pull", {"waitMs": 10_000})).problem(401, "unauthenticated")


async def test_a_stream_ends_when_its_token_expires(gateway: Gateway, tenant: Tenant) -> None:
    token = (await tenant.client.post("/v1/tokens", {"resource": "telemetry", "expiresInSeconds": 1})).ok(201)["token"]
    async with following(gateway.with_key(token)) as reader:
        await ends(reader, 2)


async def test_a_stream_of_a_platform_key_ends_with_the_tenant_and_with_the_key(gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(gateway.admin, platform=True)
    operator = gateway.with_key(text).with_headers(**{"X-Postroad-Tenant": tenant.id})
    async with following(operator) as reader:
        await patch(gateway.admin, f"{TENANTS}/{tenant.id}", enabled=False)
        await ends(reader)
    await patch(gateway.admin, f"{TENANTS}/{tenant.id}", enabled=True)
    async with following(operator) as reader:
        await gateway.admin.delete(f"{KEYS}/{record['id']}")
        await ends(reader)


async def test_watches_of_disconnected_clients_are_removed(gateway: Gateway, tenant: Tenant) -> None:
    watched = gateway.node.platform.identities._watched
    async with following(tenant.client):
        await eventually(lambda: len(watched.get(tenant.record.id, ())) == 1)
    await eventually(lambda: tenant.record.id not in watched)


# The watch itself


async def test_a_watch_of_a_revoked_key_is_ended(gateway: Gateway, tenant: Tenant) -> None:
    identities = gateway.node.platform.identities
    caller = await identities.caller_by_key(tenant.key, None)
    assert caller is not None
    await gateway.node.access.keys.remove(tenant.record.id)
    watch = identities.watch(caller)
    assert watch.ended.done()
    watch.close()


async def test_a_watch_of_a_jwt_ends_when_its_secret_is_deleted(gateway: Gateway, tenant: Tenant) -> None:
    made = (await tenant.client.post("/api/control/jwt-secrets", {"name": "s"})).ok(201)
    caller = Caller(tenant.id, f"jwt:{made['record']['id']}", frozenset({Scope.READ}), credential=Credential.JWT)
    watch = gateway.node.platform.identities.watch(caller)
    assert not watch.ended.done()
    await tenant.client.delete(f"/api/control/jwt-secrets/{made['record']['id']}")
    await asyncio.wait_for(watch.ended, AT_ONCE)
    watch.close()


async def test_a_watch_of_a_very_late_expiry_works(gateway: Gateway) -> None:
    caller = Caller("t", "nobody", frozenset(ALL_SCOPES), credential=Credential.HOOK, expires_at_ms=2**60)
    watch = gateway.node.platform.identities.watch(caller)
    assert not watch.ended.done()
    watch.close()


async def test_a_key_that_is_revoked_during_its_lookup_is_not_cached(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    identities, keys = gateway.node.platform.identities, gateway.node.access.keys
    fetch = identities.tenants.fetch
    record = tenant.record

    async def fetch_slowly(name: str) -> object:
        disabled = msgspec.structs.replace(record, is_enabled=False)
        await keys._table.update(record.id, disabled, keys._table.revision(record.id))
        return await fetch(name)

    monkeypatch.setattr(identities.tenants, "fetch", fetch_slowly)
    await identities.caller_by_key(tenant.key, None)  # accepted or not: it began before the change
    monkeypatch.undo()
    assert await identities.caller_by_key(tenant.key, None) is None


async def test_unknown_keys_are_not_looked_up_repeatedly(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    identities = gateway.node.platform.identities
    asked: list[str] = []
    fetch = identities.keys.fetch

    async def count(key_id: str) -> object:
        asked.append(key_id)
        return await fetch(key_id)

    monkeypatch.setattr(identities.keys, "fetch", count)
    unknown = new_key()
    for _ in range(5):
        assert await identities.caller_by_key(unknown, None) is None
    assert len(asked) == 1
