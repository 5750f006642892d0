"""Requests without a credential: public streams can be read, other refusals do not reveal which streams exist. In open mode the
streams of the default tenant need no credential."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from postroad.access.identity_cache import DEFAULT_TENANT
from tests.gateway import Answer, Client, Gateway, Tenant, gateway_settings, running_gateway

TEXT = {"Content-Type": "text/plain"}
PUBLIC = {**TEXT, "Stream-Public": "true"}
READS = (
    ("GET", ""),
    ("GET", "?offset=-1"),
    ("GET", "?offset=now"),
    ("GET", "?offset=-1&live=long-poll"),
    ("GET", "?offset=-1&live=sse"),
    ("HEAD", ""),
)
WRITES = ("PUT", "POST", "DELETE")
each_read = pytest.mark.parametrize(("method", "query"), READS, ids=lambda text: text or "plain")


async def made(tenant: Tenant, name: str, headers: dict[str, str], data: bytes = b"abc") -> str:
    """The path of a new stream, with its project."""
    (await tenant.client.call("PUT", f"/v1/stream/{name}", headers=headers, data=data)).ok(201)
    return f"/v1/{tenant.id}/stream/{name}"


def refused(method: str, answer: Answer) -> None:
    assert answer.status == 401 and answer.headers["www-authenticate"] == 'Bearer realm="postroad"'
    if method == "HEAD":
        assert answer.body == b""
    else:
        answer.problem(401, "unauthenticated")


def refusal_of(answer: Answer) -> tuple[int, object]:
    """The parts of a refusal that could differ."""
    problem = {name: value for name, value in answer.json.items() if name != "requestId"} if answer.body else None
    return answer.status, problem


# What is public


async def test_a_public_stream_can_be_read_without_a_credential(gateway: Gateway, tenant: Tenant) -> None:
    path = await made(tenant, "news/today", PUBLIC)
    answer = await gateway.anonymous.get(path)
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"abc", "text/plain")
    assert answer.headers["cache-control"].startswith("public")
    again = await gateway.anonymous.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status, again.body) == (304, b"")


async def test_the_metadata_of_a_public_stream_can_be_read_without_a_credential(gateway: Gateway, tenant: Tenant) -> None:
    path = await made(tenant, "news", PUBLIC)
    head, own = await gateway.anonymous.call("HEAD", path), await tenant.client.call("HEAD", path)
    assert head.status == 200 and head.headers["stream-next-offset"] == own.headers["stream-next-offset"]


async def test_a_public_stream_can_be_long_polled_without_a_credential(gateway: Gateway, tenant: Tenant) -> None:
    path = await made(tenant, "news", PUBLIC)
    assert (await gateway.anonymous.get(f"{path}?offset=-1&live=long-poll")).body == b"abc"
    waiting = asyncio.create_task(gateway.anonymous.get(f"{path}?offset=now&live=long-poll"))
    await asyncio.sleep(0)
    while not waiting.done():  # what is appended before the poll has begun is before its `now`
        (await tenant.client.post(path, headers=TEXT, data=b"more")).ok(204)
        await asyncio.wait({waiting}, timeout=0.1)
    answer = await waiting
    assert answer.status == 200 and set(answer.body.split(b"more")) == {b""}


async def test_a_public_stream_can_be_followed_without_a_credential(gateway: Gateway, tenant: Tenant) -> None:
    path = await made(tenant, "news", PUBLIC)
    async with gateway.anonymous.events(f"{path}?offset=-1&live=sse") as reader:
        first = await reader.next()
        assert first is not None and (first.event, first.data) == ("data", "abc")
        (await tenant.client.post(path, headers=TEXT, data=b"more")).ok(204)
        while (event := await reader.next()) is not None and event.event != "data":
            pass
        assert event is not None and event.data == "more"


async def test_the_tenant_of_a_public_stream_can_be_named_in_a_header(gateway: Gateway, tenant: Tenant) -> None:
    await made(tenant, "news", PUBLIC)
    answer = await gateway.anonymous.get("/v1/stream/news", headers={"X-Postroad-Tenant": tenant.id})
    assert (answer.status, answer.body) == (200, b"abc")


@pytest.mark.parametrize("method", WRITES)
async def test_writing_to_a_public_stream_needs_a_credential(gateway: Gateway, tenant: Tenant, method: str) -> None:
    path = await made(tenant, "news", PUBLIC)
    for headers in (PUBLIC, {**PUBLIC, "Stream-Closed": "true"}, {**TEXT, "Stream-Forked-From": path}):
        refused(method, await gateway.anonymous.call(method, path, headers=headers, data=b"mine"))
        refused(method, await gateway.anonymous.call(method, f"{path}/new", headers=headers, data=b"mine"))
    assert (await tenant.client.get(path)).body == b"abc"
    assert "stream-closed" not in (await tenant.client.call("HEAD", path)).headers
    assert (await tenant.client.get(f"{path}/new")).status == 404


async def test_an_invalid_credential_is_refused_on_a_public_stream(gateway: Gateway, tenant: Tenant) -> None:
    """An invalid credential must not be treated like a missing one."""
    path = await made(tenant, "news", PUBLIC)
    for client in (gateway.with_key("pr_live_nonsense"), gateway.anonymous.with_headers(Authorization="Basic eDp5")):
        refused("GET", await client.get(path))
    refused("GET", await gateway.anonymous.get(f"{path}?bearer=nonsense"))


@each_read
async def test_a_public_stream_of_a_disabled_tenant_is_refused(gateway: Gateway, method: str, query: str) -> None:
    tenant = await gateway.tenant()
    path = await made(tenant, "news", PUBLIC)
    (await gateway.admin.call("PATCH", f"/api/control/tenants/{tenant.id}", {"enabled": False})).ok()
    refused(method, await gateway.anonymous.call(method, path + query))


async def test_readers_of_a_public_stream_are_disconnected_when_its_tenant_is_disabled(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    path = await made(tenant, "news", PUBLIC)
    async with gateway.anonymous.events(f"{path}?offset=-1&live=sse") as reader:
        assert await reader.next() is not None
        (await gateway.admin.call("PATCH", f"/api/control/tenants/{tenant.id}", {"enabled": False})).ok()
        async with asyncio.timeout(30):
            while await reader.next() is not None:
                pass


# What is not


@each_read
async def test_private_and_missing_streams_have_the_same_response(
    gateway: Gateway, tenant: Tenant, method: str, query: str
) -> None:
    private, gone = await made(tenant, "diary", TEXT), await made(tenant, "letters", PUBLIC)
    await made(tenant, "letters/copy", {**TEXT, "Stream-Forked-From": gone})  # so the one that is deleted is remembered
    assert (await tenant.client.delete(gone)).status == 204
    assert (await tenant.client.get(gone)).status == 410
    answers = [
        await gateway.anonymous.call(method, path + query)
        for path in (private, gone, f"/v1/{tenant.id}/stream/none", "/v1/no-such-tenant/stream/diary", "/v1/stream/diary")
    ]
    for answer in answers:
        refused(method, answer)
        assert refusal_of(answer) == refusal_of(answers[0])


@pytest.mark.parametrize("word", ["false", "FALSE"])
async def test_only_the_value_true_makes_a_stream_public(gateway: Gateway, tenant: Tenant, word: str) -> None:
    path = await made(tenant, "diary", {**TEXT, "Stream-Public": word})
    refused("GET", await gateway.anonymous.get(path))


async def test_a_stream_does_not_become_public_later(gateway: Gateway, tenant: Tenant) -> None:
    path = await made(tenant, "diary", TEXT)
    (await tenant.client.call("PUT", path, headers=PUBLIC)).problem(409, "stream-exists")
    assert (await tenant.client.post(path, headers=PUBLIC, data=b"d")).status == 204
    refused("GET", await gateway.anonymous.get(path))


async def test_a_fork_of_a_public_stream_is_private_by_default(gateway: Gateway, tenant: Tenant) -> None:
    path = await made(tenant, "news", PUBLIC)
    fork = {"Stream-Forked-From": path}
    refused("GET", await gateway.anonymous.get(await made(tenant, "quiet", {**TEXT, **fork}, b"")))
    assert (await gateway.anonymous.get(await made(tenant, "loud", {**PUBLIC, **fork}, b""))).body == b"abc"


@pytest.mark.parametrize("project", ["no-such-tenant", "queues", "stream"])
@pytest.mark.parametrize("method", ["GET", "HEAD", *WRITES])
async def test_existing_and_missing_projects_have_the_same_response(
    gateway: Gateway, tenant: Tenant, project: str, method: str
) -> None:
    known = await gateway.anonymous.call(method, f"/v1/{tenant.id}/stream/none", headers=TEXT)
    answer = await gateway.anonymous.call(method, f"/v1/{project}/stream/none", headers=TEXT)
    refused(method, known)
    if project != "stream":  # `/v1/stream/stream/none` is a stream of the first tenant
        assert refusal_of(answer) == refusal_of(known)
    else:
        refused(method, answer)


@pytest.mark.parametrize("project", ["UPPER", "a_b", "*", ">", "a.b", "é", "..%2f"])
@pytest.mark.parametrize("method", ["GET", "HEAD", *WRITES])
async def test_a_name_that_no_project_can_have_is_refused(gateway: Gateway, project: str, method: str) -> None:
    assert (await gateway.anonymous.call(method, f"/v1/{project}/stream/none", headers=TEXT)).status == 400


async def test_scanning_for_projects_is_throttled(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, auth_failures_burst=3, auth_failures_per_minute=1)) as gateway:
        tenant = await gateway.tenant()
        path = await made(tenant, "diary", TEXT)
        guesses = [(await gateway.anonymous.get(f"/v1/guess-{number}/stream/x")).status for number in range(5)]
        assert guesses == [401, 401, 401, 429, 429]
        assert (await gateway.anonymous.get(path)).status == 429, "a project that there is looks the same even then"
        assert (await tenant.client.get(path)).status == 200, "a good key from the same address goes on working"


# An open installation


@pytest.fixture(scope="module")
async def opened(engine_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(engine_url, open=True)) as running:
        yield running


async def use_stream(client: Client, path: str) -> list[int]:
    return [
        (await client.call("PUT", path, headers=TEXT, data=b"a")).status,
        (await client.post(path, headers=TEXT, data=b"b")).status,
        (await client.get(path)).status,
        (await client.call("HEAD", path)).status,
        (await client.get(f"{path}?offset=-1&live=long-poll")).status,
        (await client.delete(path)).status,
    ]


@pytest.mark.parametrize("root", ["/v1/stream", f"/v1/{DEFAULT_TENANT}/stream"])
async def test_in_open_mode_the_default_tenants_streams_need_no_credential(opened: Gateway, name: str, root: str) -> None:
    assert await use_stream(opened.anonymous, f"{root}/{name}") == [201, 204, 200, 200, 200, 204]


@pytest.mark.parametrize("root", ["/v1/stream", f"/v1/{DEFAULT_TENANT}/stream"])
async def test_without_open_mode_streams_need_a_credential(gateway: Gateway, name: str, root: str) -> None:
    assert await use_stream(gateway.anonymous, f"{root}/{name}") == [401] * 6


async def test_in_open_mode_streams_of_other_tenants_need_a_credential(opened: Gateway) -> None:
    tenant = await opened.tenant()
    path = await made(tenant, "diary", TEXT)
    assert await use_stream(opened.anonymous, path) == [401] * 6
    posing = opened.anonymous.with_headers(**{"X-Postroad-Tenant": tenant.id})
    assert await use_stream(posing, "/v1/stream/diary") == [401] * 6, "whom the header names is whom it is about"
    assert (await tenant.client.get(path)).body == b"abc"
    assert (await opened.anonymous.get(await made(tenant, "news", PUBLIC))).body == b"abc"


async def test_in_open_mode_other_routes_need_a_credential(opened: Gateway) -> None:
    for path in ("/v1/queues", "/v1/whoami", "/api/control/keys", "/v1/admin/settings", "/v1/telemetry/stream"):
        (await opened.anonymous.get(path)).problem(401, "unauthenticated")
    (await opened.anonymous.post("/v1/tokens", {"resource": "stream/x"})).problem(401, "unauthenticated")


async def test_in_open_mode_an_invalid_key_is_refused(opened: Gateway, name: str) -> None:
    assert await use_stream(opened.with_key("pr_live_nonsense"), f"/v1/stream/{name}") == [401] * 6


async def test_in_open_mode_the_scopes_of_a_key_apply(opened: Gateway, name: str) -> None:
    """A key that may only read cannot write, although anonymous callers can."""
    tenant = await opened.tenant()
    reader = await tenant.another_key(())
    assert set(await use_stream(reader.client, f"/v1/stream/{name}")) == {403}
    assert await use_stream(tenant.client, f"/v1/{DEFAULT_TENANT}/stream/{name}") == [403] * 6
