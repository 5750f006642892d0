"""A gateway with a stale registry, and the first start of an installation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from postroad.access.capability import AccessCapability
from postroad.access.identity_cache import DEFAULT_TENANT
from postroad.access.key_service import KeyService
from postroad.access.keys import PLATFORM_PREFIX, new_key
from postroad.container import build, prepare_engine, running_platform
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.kernel.errors import EngineUnavailable, RegistryStale
from postroad.kernel.identity import ALL_SCOPES
from postroad.platform import Platform
from tests.access.control import KEYS, WHOAMI, becomes, new_key_by, status_of
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.servers import Server, TcpProxy
from tests.waiting import eventually

# Out of touch


async def test_a_cache_that_is_not_loaded_refuses_all_callers(engine_url: str) -> None:
    settings = gateway_settings(engine_url)
    async with running_platform(settings, "tests") as platform:
        with pytest.raises(RegistryStale):
            platform.identities.check_fresh()


async def test_without_the_engine_all_callers_are_refused_after_the_maximum_age_until_it_recovers(own_server: Server) -> None:
    settings = gateway_settings(own_server.url, registry_max_age_unready_seconds=0.8, registry_max_age_refuse_seconds=2.0)
    async with running_gateway(settings) as gateway:
        tenant = await gateway.tenant()
        assert await status_of(tenant.client) == 200
        own_server.kill()
        await eventually(lambda: not gateway.node.platform.connection.is_up)

        async def registry_is_old() -> bool:
            answer = await gateway.anonymous.get("/readyz")
            return answer.status == 503 and not answer.json["checks"]["registry"]["ok"]

        await eventually(registry_is_old, 4)
        assert await status_of(tenant.client) == 200, "it still trusts what it knows, but says that it is not ready"
        gateway.node.platform.identities.check_fresh()

        await becomes(503, tenant.client, seconds=4)
        problem = (await tenant.client.get(WHOAMI)).problem(503, "registry-stale")
        assert problem["retryable"] is True
        assert int((await tenant.client.get(WHOAMI)).headers["retry-after"]) > 0
        with pytest.raises(RegistryStale):
            gateway.node.platform.identities.check_fresh()
        (await gateway.with_key(new_key()).get(WHOAMI)).problem(503, "registry-stale")
        assert await status_of(gateway.anonymous, "/healthz") == 200

        own_server.start()
        await becomes(200, tenant.client, seconds=5)
        await becomes(200, gateway.anonymous, path="/readyz", seconds=5)


async def test_a_key_revoked_during_a_disconnection_is_refused_after_it(
    gateway: Gateway, engine_url: str, proxy: TcpProxy
) -> None:
    """The connection is open, but receives nothing."""
    tenant = await gateway.tenant()
    text, record = await new_key_by(tenant.client)
    async with running_gateway(gateway_settings(proxy.url, registry_max_age_refuse_seconds=1.0)) as far:
        assert await status_of(far.with_key(text)) == 200
        proxy.drops_replies = True
        assert (await tenant.client.delete(f"{KEYS}/{record['id']}")).status == 204
        await becomes(503, far.with_key(text), seconds=3)
        proxy.cut()
        await becomes(401, far.with_key(text), seconds=5)
        assert await status_of(far.seen_by(tenant).client) == 200


# The first start


@asynccontextmanager
async def fresh_engine(server: Server) -> AsyncIterator[Platform]:
    async with running_platform(gateway_settings(server.url), "tests") as platform:
        await prepare_engine(platform)
        build(platform)
        yield platform


async def check_first(platform: Platform, tenant_key: str, admin_key: str) -> None:
    caller = await platform.identities.caller_by_key(tenant_key, None)
    assert caller is not None
    assert (caller.tenant, caller.scopes, caller.is_platform) == (DEFAULT_TENANT, frozenset(ALL_SCOPES), False)
    admin = await platform.identities.caller_by_key(admin_key, None)
    assert admin is not None and admin.is_platform and admin.tenant == DEFAULT_TENANT


async def test_the_first_start_creates_the_default_tenant_and_a_platform_key(own_server: Server) -> None:
    keys = {"tenant_key": new_key(), "admin_key": new_key(PLATFORM_PREFIX)}
    async with fresh_engine(own_server) as platform:
        access = platform.use(AccessCapability)
        assert await access.tenants.create_default(**keys) is True
        await check_first(platform, **keys)
        assert platform.tenant_settings.of(DEFAULT_TENANT).auto_create_queues
        another = {"tenant_key": new_key(), "admin_key": new_key(PLATFORM_PREFIX)}
        assert await access.tenants.create_default(**another) is False
        assert await platform.identities.caller_by_key(another["admin_key"], None) is None


@pytest.mark.parametrize("after", range(4))
async def test_an_interrupted_first_start_can_be_repeated(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Interrupted after each of its writes: two keys, the settings, and the tenant."""
    keys = {"tenant_key": new_key(), "admin_key": new_key(PLATFORM_PREFIX)}
    writes = 0

    def counted(write: object) -> object:
        async def wrapped(*given: object, **named: object) -> None:
            nonlocal writes
            if writes == after:
                raise EngineUnavailable("pulled out")
            writes += 1
            await write(*given, **named)  # type: ignore[operator]

        return wrapped

    async with fresh_engine(own_server) as platform:
        access = platform.use(AccessCapability)
        with monkeypatch.context() as broken:
            broken.setattr(KeyService, "add", counted(KeyService.add))
            broken.setattr(TenantSettingsStore, "set_up", counted(TenantSettingsStore.set_up))
            broken.setattr(access.tenants._table, "create", counted(access.tenants._table.create))
            with pytest.raises(EngineUnavailable):
                await access.tenants.create_default(**keys)
    async with fresh_engine(own_server) as again:
        assert await again.identities.tenant(DEFAULT_TENANT) is None
        assert await again.use(AccessCapability).tenants.create_default(**keys) is True
        await check_first(again, **keys)
        assert again.tenant_settings.of(DEFAULT_TENANT).auto_create_queues


async def test_concurrent_first_starts_create_one_tenant(own_server: Server) -> None:
    keys = {"tenant_key": new_key(), "admin_key": new_key(PLATFORM_PREFIX)}
    async with AsyncExitStack() as stack:
        platforms = [await stack.enter_async_context(fresh_engine(own_server)) for _ in range(5)]
        await asyncio.gather(*[one.use(AccessCapability).tenants.create_default(**keys) for one in platforms])
        await check_first(platforms[0], **keys)
