"""Stream tokens: for live reads where the client cannot send a header."""

import base64

import pytest

from postroad.access.tokens import TOKEN_PREFIX, Tokens
from postroad.api.access import NewToken
from postroad.crypto.signing import Signer
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.jetstream.storage_budget import StoreMeasurement
from postroad.kernel.errors import BodyInvalid, EngineFull, Forbidden
from postroad.kernel.identity import Caller, Scope
from tests.access.control import KEYS, STREAM, TENANTS, WHOAMI, becomes, new_key_by, patch
from tests.gateway import PLATFORM_KEY, Client, Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway

TOKENS = "/v1/tokens"


# Names that no stream can have, so that nothing could be read with the token.
_IMPOSSIBLE = ["stream/a b", "stream/", "stream//a", "stream/a/../b", "stream/__ds/x", "stream/" + "x" * 257]


async def token_of(client: Client, **more: object) -> str:
    token: str = (await client.post(TOKENS, {"resource": "telemetry", **more})).ok(201)["token"]
    return token


async def opens(gateway: Gateway, token: str) -> bool:
    """True if a browser can follow the events with the token in the URL."""
    async with gateway.session.get(f"{gateway.url}{STREAM}?bearer={token}") as answer:
        assert answer.status in (200, 401), await answer.read()
        return answer.status == 200


async def test_a_token_is_accepted_in_the_url_and_in_the_header(gateway: Gateway, tenant: Tenant) -> None:
    made = (await tenant.client.post(TOKENS, {"resource": "telemetry"})).ok(201)
    assert made.keys() == {"token", "resource", "expiresAt"} and made["resource"] == "telemetry"
    assert await opens(gateway, made["token"])
    queue = await tenant.queue()
    for client, path in (
        (gateway.anonymous, f"{STREAM}?events=job.*&bearer={made['token']}"),
        (gateway.with_key(made["token"]), f"{STREAM}?events=job.*"),
    ):
        async with client.events(path) as reader:
            published = await tenant.publish(queue, 1)
            event = await reader.next()
            assert event is not None and event.json["job_id"] == published["jobId"]


async def test_a_token_works_on_every_gateway(second_gateway: Gateway, tenant: Tenant) -> None:
    assert await opens(second_gateway, await token_of(tenant.client))


async def test_a_token_reads_one_resource_and_nothing_else(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    token = await token_of(tenant.client)
    client = gateway.with_key(token)
    for call in (
        client.get("/v1/queues"),
        client.get(queue),
        client.get(WHOAMI),
        client.get(KEYS),
        client.post(f"{queue}/messages", {"payload": 1}),
        client.post(f"{queue}/pull", {}),
        client.post(TOKENS, {"resource": "telemetry"}),
        gateway.anonymous.get(f"/v1/queues?bearer={token}"),
        gateway.anonymous.get(f"{WHOAMI}?bearer={token}"),
    ):
        (await call).problem(401, "unauthenticated")


async def test_a_token_sees_the_events_of_its_tenant_only(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    token = await token_of(tenant.client)
    theirs, mine = await other.queue(), await tenant.queue()
    async with gateway.anonymous.events(f"{STREAM}?events=job.*&bearer={token}") as reader:
        await other.publish(theirs, 1)
        published = await tenant.publish(mine, 1)
        event = await reader.next()
        assert event is not None and event.json["job_id"] == published["jobId"]


@pytest.mark.parametrize("resource", ["", "everything", "queue:x", "telemetry ", "telemetry\n", "x" * 513, *_IMPOSSIBLE])
async def test_a_token_needs_a_resource_that_can_be_followed(tenant: Tenant, resource: str) -> None:
    problem = (await tenant.client.post(TOKENS, {"resource": resource})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.resource"


@pytest.mark.parametrize("seconds", [0, -1, 86_401, "60"])
async def test_the_lifetime_of_a_token_is_a_second_to_a_day(tenant: Tenant, seconds: object) -> None:
    (await tenant.client.post(TOKENS, {"resource": "telemetry", "expiresInSeconds": seconds})).problem(422, "invalid-body")


async def test_a_token_needs_the_scope_to_read(tenant: Tenant) -> None:
    publisher = await tenant.another_key((Scope.PUBLISH, Scope.ADMIN))
    (await publisher.client.post(TOKENS, {"resource": "telemetry"})).problem(403, "forbidden")


async def test_a_token_expires(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    token = await token_of(tenant.client, expiresInSeconds=60)
    assert await opens(gateway, token)
    clock.ahead_ms = 60_001
    assert not await opens(gateway, token)


async def test_a_token_for_one_use_opens_one_connection_on_all_gateways(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    token = await token_of(tenant.client, once=True)
    assert [await opens(one, token) for one in (gateway, second_gateway, gateway)] == [True, False, False]
    assert await opens(gateway, await token_of(tenant.client, once=True))


async def test_a_token_is_invalid_after_its_key_is_revoked(gateway: Gateway, tenant: Tenant) -> None:
    text, record = await new_key_by(tenant.client)
    token = await token_of(gateway.with_key(text))
    await patch(tenant.client, f"{KEYS}/{record['id']}", enabled=False)
    assert not await opens(gateway, token)
    await patch(tenant.client, f"{KEYS}/{record['id']}", enabled=True)
    assert await opens(gateway, token)
    await tenant.client.delete(f"{KEYS}/{record['id']}")
    assert not await opens(gateway, token)


async def test_a_token_is_invalid_after_its_key_lost_the_scope_to_read(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    text, record = await new_key_by(tenant.client)
    token = await token_of(gateway.with_key(text))
    assert await opens(second_gateway, token)
    await patch(tenant.client, f"{KEYS}/{record['id']}", scopes=["publish"])
    assert not await opens(gateway, token)
    await becomes(401, second_gateway.with_key(token), path=STREAM)


async def test_a_token_is_invalid_after_its_tenant_is_disabled(gateway: Gateway, tenant: Tenant) -> None:
    token = await token_of(tenant.client)
    await patch(gateway.admin, f"{TENANTS}/{tenant.id}", enabled=False)
    assert not await opens(gateway, token)
    await patch(gateway.admin, f"{TENANTS}/{tenant.id}", enabled=True)
    assert await opens(gateway, token)


async def test_a_token_expires_with_its_key(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    key = await tenant.another_key(expires_at_ms=clock() + 60_000)
    token = await token_of(key.client, expiresInSeconds=3600)
    clock.ahead_ms = 60_001
    assert not await opens(gateway, token)


async def test_a_token_has_the_restrictions_of_its_key(gateway: Gateway, tenant: Tenant) -> None:
    mine, other = await tenant.queue("mine"), await tenant.queue("other")
    narrow = await tenant.another_key(allowed_queues=("mine",))
    token = await token_of(narrow.client)
    async with gateway.anonymous.events(f"{STREAM}?events=job.*&bearer={token}") as reader:
        await tenant.publish(other, 1)
        await tenant.publish(mine, 1)
        event = await reader.next()
        assert event is not None and event.json["queue"] == "mine"


async def test_a_token_of_a_platform_key_is_for_the_named_tenant(gateway: Gateway, tenant: Tenant) -> None:
    admin = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    token = await token_of(admin)
    queue = await tenant.queue()
    async with gateway.anonymous.events(f"{STREAM}?events=job.*&bearer={token}") as reader:
        await tenant.publish(queue, 1)
        event = await reader.next()
        assert event is not None and event.json["tenant"] == tenant.id


async def test_a_forged_or_altered_token_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    token = await token_of(tenant.client)
    signed = token.removeprefix(TOKEN_PREFIX)
    raw = bytearray(base64.urlsafe_b64decode(signed + "=" * (-len(signed) % 4)))
    raw[-20] ^= 1
    altered = base64.urlsafe_b64encode(bytes(raw)).rstrip(b"=").decode()
    by_another_installation = Signer(("another platform key, also long enough",), "stream token").sign(b"stream", bytes(raw[17:]))
    of_another_kind = Signer((PLATFORM_KEY,), "receipt").sign(b"stream", bytes(raw[17:]))
    nonsense = Signer((PLATFORM_KEY,), "stream token").sign(b"stream", b"\x93\x01")
    for text in (altered, by_another_installation, of_another_kind, nonsense, signed[:-4], "", "x", "%00"):
        assert not await opens(gateway, TOKEN_PREFIX + text)
    assert await opens(gateway, token)


async def test_a_key_in_a_url_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    problem = (await gateway.anonymous.get(f"{STREAM}?bearer={tenant.key}")).problem(401, "unauthenticated")
    assert "/v1/tokens" in problem["detail"] and tenant.key not in str(problem)


async def test_a_key_in_a_url_is_accepted_on_streams_if_configured(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, keys_in_urls=True)) as gateway:
        tenant = await gateway.tenant()
        assert await opens(gateway, tenant.key)
        (await gateway.anonymous.get(f"/v1/queues?bearer={tenant.key}")).problem(401, "unauthenticated")
        (await gateway.anonymous.get(f"{WHOAMI}?bearer={tenant.key}")).problem(401, "unauthenticated")


async def test_the_header_takes_precedence_over_the_url(gateway: Gateway, tenant: Tenant) -> None:
    token = await token_of(tenant.client)
    (await gateway.with_key("pr_live_x").get(f"{STREAM}?bearer={token}")).problem(401, "unauthenticated")


@pytest.mark.parametrize("query", ["bearer=", "bearer=a&bearer=b", "bearer=%ff", "x&bearer=", "bearer=" + "&" * 100])
async def test_a_malformed_query_is_refused(gateway: Gateway, query: str) -> None:
    (await gateway.anonymous.get(f"{STREAM}?{query}")).problem(401, "unauthenticated")


# Resources that have a name in them


@pytest.fixture
def tokens(gateway: Gateway) -> Tokens:
    """Tokens for streams, which are not followed over HTTP yet."""

    async def handler(_request: Request) -> Response:
        raise NotImplementedError

    access = gateway.node.access
    made = Tokens(gateway.node.platform.identities, Signer((PLATFORM_KEY,), "stream token"), access.tokens._used, gateway.clock)
    made.set_resources(
        [Route("GET", "/v1/streams/{stream}", handler, Scope.READ, "", "", resource="stream:{stream}")],
        gateway.node.assembly.resources,
    )
    return made


def caller_of(tenant: Tenant) -> Caller:
    return Caller(tenant.id, tenant.record.id, frozenset(tenant.record.scopes), allowed=tenant.record.allowed)


async def test_a_token_is_valid_for_its_resource_only(tokens: Tokens, tenant: Tenant) -> None:
    token, _ = tokens.issue(caller_of(tenant), NewToken(resource="stream:a"))
    assert await tokens.authenticate(token, ("stream:a",)) is not None
    for resource in ("stream:b", "stream:a2", "stream:", "telemetry", ""):
        assert await tokens.authenticate(token, (resource,)) is None


async def test_the_use_of_a_one_time_token_is_not_recorded_in_the_reserve_of_the_store(tokens: Tokens, tenant: Tenant) -> None:
    once, _ = tokens.issue(caller_of(tenant), NewToken(resource="stream:a", once=True))
    token, _ = tokens.issue(caller_of(tenant), NewToken(resource="stream:a"))
    tokens._store.measure(StoreMeasurement(limit=1), reserve=1)
    with pytest.raises(EngineFull):
        await tokens.authenticate(once, ("stream:a",))
    assert await tokens.authenticate(token, ("stream:a",)) is not None
    tokens._store.measure(StoreMeasurement(), reserve=0)
    assert await tokens.authenticate(once, ("stream:a",)) is not None


@pytest.mark.parametrize("resource", ["stream:", "stream", "telemetry", "x stream:a"])
def test_a_token_for_an_unknown_resource_is_refused(tokens: Tokens, tenant: Tenant, resource: str) -> None:
    with pytest.raises(BodyInvalid):
        tokens.issue(caller_of(tenant), NewToken(resource=resource))


async def test_a_restricted_key_gets_tokens_for_its_streams_only(tokens: Tokens, tenant: Tenant) -> None:
    narrow = caller_of(await tenant.another_key(allowed_streams=("chat.*",)))
    assert tokens.issue(narrow, NewToken(resource="stream:chat.1"))
    with pytest.raises(Forbidden):
        tokens.issue(narrow, NewToken(resource="stream:other"))
