"""What a stranger or another tenant can learn about a tenant: neither that it exists nor how much it does."""

import base64
import re
from collections.abc import AsyncIterator

import pytest

from postroad.jetstream.management import stream_info
from postroad.kernel.names import streams_store
from postroad.stream_subscriptions.rules import root_at
from tests.access.control import AUDIT, STREAM, TENANTS, WHOAMI, fresh, patch
from tests.access.test_jwts import OTHER, add_secret, claims, signed
from tests.gateway import Answer, Client, Gateway, Tenant, gateway_settings, running_gateway

# Existence


def seen(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """The response without what differs between two equal requests."""
    changing = {"x-request-id", "date", "retry-after"}
    headers = {name: value for name, value in answer.headers.items() if name not in changing}
    return answer.status, headers, re.sub(rb'"requestId":"[^"]*"', b"", answer.body)


PROBES = [
    ("GET", "/v1/{}/stream/s"),
    ("HEAD", "/v1/{}/stream/s"),
    ("GET", "/v1/{}/stream/s?offset=-1&live=sse"),
    ("GET", "/v1/{}/stream/s?offset=-1&live=long-poll"),
    ("PUT", "/v1/{}/stream/s"),
    ("POST", "/v1/{}/stream/s"),
    ("DELETE", "/v1/{}/stream/s"),
    ("GET", "/v1/{}/stream/__ds/subscriptions/x"),
    ("POST", "/v1/{}/stream/__ds/subscriptions/x/claim"),
    ("GET", "/v1/{}/stream/__ds/jwks.json"),
]


@pytest.fixture(scope="module")
async def throttling(engine_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(engine_url, auth_failures_burst=5, auth_failures_per_minute=0.001)) as running:
        yield running


@pytest.mark.parametrize(("method", "path"), PROBES)
async def test_a_stranger_cannot_tell_which_tenants_exist(throttling: Gateway, method: str, path: str) -> None:
    """More requests than the throttle allows: it must not count those for one kind of tenant only."""
    with_streams, disabled = await throttling.tenant(), await throttling.tenant()
    assert (await with_streams.client.call("PUT", "/v1/stream/s", headers={"Content-Type": "text/plain"})).status == 201
    assert (await disabled.client.call("PUT", "/v1/stream/s", headers={"Stream-Public": "true"})).status == 201
    await patch(throttling.admin, f"{TENANTS}/{disabled.id}", enabled=False)
    names = [fresh(), with_streams.id, (await throttling.tenant()).id, disabled.id]
    responses = []
    for name in names:
        throttling.node.access._throttle._levels.clear()
        responses.append([seen(await throttling.anonymous.call(method, path.format(name))) for _ in range(8)])
    assert all(one == responses[0] for one in responses), responses
    statuses = [status for status, *_ in responses[0]]
    assert statuses == ([200] * 8 if "jwks" in path else [401] * 5 + [429] * 3)


@pytest.mark.parametrize("credential", ["pr_live_x", "a.b.c", "pr_token_x"])
async def test_a_wrong_credential_is_refused_alike_for_every_tenant(gateway: Gateway, tenant: Tenant, credential: str) -> None:
    await add_secret(tenant)
    for name in (tenant.id, fresh()):
        text = signed(claims(gateway), OTHER) if credential == "a.b.c" else credential
        for path in (WHOAMI, "/v1/stream/s"):
            (await gateway.with_key(text).get(path, headers={"X-Postroad-Tenant": name})).problem(401, "unauthenticated")


async def test_a_read_without_credentials_creates_nothing_in_the_engine(gateway: Gateway, tenant: Tenant) -> None:
    await gateway.anonymous.get(f"/v1/{tenant.id}/stream/s")
    assert await stream_info(gateway.node.platform.connection, streams_store(tenant.id)) is None


# Volume


def numbers_in(text: str) -> set[int]:
    """Numbers of which the text consists, or that it contains as bytes of base64."""
    if re.fullmatch(r"[\d.-]+", text):
        return {int(one) for one in re.findall(r"\d+", text)}
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return {int.from_bytes(raw[start : start + size], "big") for size in (4, 6, 8) for start in range(len(raw) - size + 1)}


async def test_ids_of_events_do_not_reveal_the_sequences_of_shared_streams(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    noise = await other.queue()
    queue = await tenant.queue()
    for _ in range(5):
        await other.publish(noise, 1)
    async with tenant.client.events(f"{STREAM}?events=job.*") as reader:
        await tenant.publish(queue, 1)
        event = await reader.next()
    assert event is not None and event.id
    infos = [await last_sequence(gateway, stream) for stream in ("JOBS", "TELEMETRY")]
    assert not numbers_in(event.id) & {info - back for info in infos for back in range(5)}
    (await other.client.get(STREAM, headers={"Last-Event-ID": event.id})).problem(400, "invalid-parameter")


async def last_sequence(gateway: Gateway, stream: str) -> int:
    info = await stream_info(gateway.node.platform.connection, stream)
    assert info is not None
    return info.state.last_seq


@pytest.mark.parametrize("position", ["1-1", "0-0", "5"])
async def test_a_position_that_the_client_chose_is_refused(tenant: Tenant, position: str) -> None:
    """Else a tenant could find the sequence of its events by halving."""
    (await tenant.client.get(STREAM, headers={"Last-Event-ID": position})).problem(400, "invalid-parameter")
    (await tenant.client.get(f"{STREAM}?lastEventId={position}")).problem(400, "invalid-parameter")
    (await tenant.client.get(f"{AUDIT}?cursor={position}")).problem(400, "invalid-parameter")


async def test_cursors_of_the_audit_log_do_not_reveal_its_sequences(gateway: Gateway, tenant: Tenant) -> None:
    await tenant.queue("a")
    await tenant.queue("b")
    page = (await tenant.client.get(f"{AUDIT}?limit=1")).ok()
    cursor = page["nextCursor"]
    last = await last_sequence(gateway, "AUDIT")
    assert not numbers_in(cursor) & {last - back for back in range(5)}
    assert (await tenant.client.get(f"{AUDIT}?limit=1&cursor={cursor}")).ok()["entries"][0]["target"] == "a"
    other = await gateway.tenant()
    (await other.client.get(f"{AUDIT}?cursor={cursor}")).problem(400, "invalid-parameter")


async def test_request_ids_do_not_count_requests(gateway: Gateway) -> None:
    ids = [(await gateway.anonymous.get("/healthz")).headers["x-request-id"] for _ in range(3)]
    assert len({one[:6] for one in ids}) == 3, "not a counter with a prefix"


# The Host header

SUBSCRIPTION = "/v1/stream/__ds/subscriptions/{}"
WEBHOOK = {"type": "webhook", "pattern": "x/*", "webhook": {"url": "https://93.184.215.14/hook"}}


async def jwks_url(client: Client, host: str | None) -> str:
    headers = {} if host is None else {"Host": host}
    name = fresh()
    made = (await client.call("PUT", SUBSCRIPTION.format(name), WEBHOOK, headers=headers)).ok(201)
    again = (await client.get(SUBSCRIPTION.format(name))).ok()
    url: str = made["webhook"]["signing"]["jwks_url"]
    assert again["webhook"]["signing"]["jwks_url"] == url
    return url


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "localhost:80@evil.example", "x/"])
async def test_urls_for_others_do_not_come_from_the_host_header(gateway: Gateway, tenant: Tenant, host: str) -> None:
    assert await jwks_url(tenant.client, host) == f"{gateway.url}/v1/stream/__ds/jwks.json"


async def test_the_host_header_may_name_this_machine(gateway: Gateway, tenant: Tenant) -> None:
    port = gateway.url.rpartition(":")[2]
    assert await jwks_url(tenant.client, f"localhost:{port}") == f"http://localhost:{port}/v1/stream/__ds/jwks.json"


async def test_the_configured_url_is_used(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, public_url="https://mq.example.com/base/")) as gateway:
        tenant = await gateway.tenant()
        assert await jwks_url(tenant.client, "evil.example") == "https://mq.example.com/base/v1/stream/__ds/jwks.json"


def test_a_url_that_is_configured_later_replaces_the_stored_one() -> None:
    assert root_at("https://a.example", "http://evil.example/v1/stream") == "https://a.example/v1/stream"
    assert root_at("https://a.example/x/", "http://b/v1/v1/stream") == "https://a.example/x/v1/v1/stream"
    assert root_at(None, "http://b/v1/t/stream") == "http://b/v1/t/stream"
