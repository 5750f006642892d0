"""Web sessions: a cookie that acts as a key, and one-time links."""

import asyncio

import pytest

from postroad.access.web_sessions import COOKIE, LINK_PREFIX
from postroad.kernel.clock import rfc3339
from postroad.kernel.identity import Scope
from tests.access.control import INVITES, KEYS
from tests.gateway import Answer, Client, Gateway, ShiftedClock, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually

SESSION = "/v1/session"
LINKS = "/v1/session/links"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def cookie_in(answer: Answer) -> str:
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    assert name == COOKIE
    return value


async def sign_in(gateway: Gateway, key: str) -> Client:
    """A client with the session cookie of a key, as a page of this origin has it."""
    answer = await gateway.anonymous.post(SESSION, {"key": key}, headers=SAME_ORIGIN)
    answer.ok(201)
    return Client(gateway.url, gateway.session, {"Cookie": f"{COOKIE}={cookie_in(answer)}", **SAME_ORIGIN})


async def code_of(client: Client) -> str:
    url: str = (await client.post(LINKS)).ok(201)["url"]
    return url.partition("?access=")[2]


async def test_a_session_acts_as_its_key(gateway: Gateway, tenant: Tenant) -> None:
    reader = await tenant.another_key((Scope.READ,), allowed_queues=("orders*",))
    await tenant.queue("orders"), await tenant.queue("other")
    browser = await sign_in(gateway, reader.key)
    me = (await browser.get("/v1/whoami")).ok()
    assert (me["tenant"], me["keyId"], me["scopes"], me["allowedQueues"]) == (tenant.id, reader.record.id, ["read"], ["orders*"])
    assert [one["name"] for one in (await browser.get("/v1/queues")).ok()["queues"]] == ["orders"]
    (await browser.get("/v1/queues/other")).problem(403, "forbidden")
    (await browser.post("/v1/queues/orders/messages", {"payload": 1})).problem(403, "forbidden")


async def test_the_cookie_cannot_be_read_by_scripts_or_sent_by_other_sites(gateway: Gateway, tenant: Tenant) -> None:
    answer = await gateway.anonymous.post(SESSION, {"key": tenant.key})
    attributes = answer.headers["set-cookie"].split("; ")[1:]
    assert attributes == ["Path=/", "Max-Age=28800", "HttpOnly", "SameSite=Strict"]
    assert answer.headers["cache-control"] == "no-store"
    assert tenant.key not in answer.headers["set-cookie"] and tenant.key not in answer.body.decode()
    behind_tls = await gateway.anonymous.post(SESSION, {"key": tenant.key}, headers={"X-Forwarded-Proto": "https"})
    assert behind_tls.headers["set-cookie"].endswith("; Secure")


async def test_the_session_shows_identity_version_and_features(gateway: Gateway, tenant: Tenant) -> None:
    browser = await sign_in(gateway, tenant.key)
    shown = (await browser.get(SESSION)).ok()
    assert shown["signedIn"] and shown["sessionExpiresAt"] and shown["version"]
    assert {"queues", "topics", "access"} <= set(shown["features"])
    with_key = (await tenant.client.get(SESSION)).ok()
    assert not with_key["signedIn"] and with_key["sessionExpiresAt"] is None
    (await gateway.anonymous.get(SESSION)).problem(401, "unauthenticated")


async def test_an_authorization_header_precedes_the_cookie(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    browser = await sign_in(gateway, tenant.key)
    assert (await browser.get("/v1/whoami", headers={"Authorization": f"Bearer {other.key}"})).ok()["tenant"] == other.id
    (await browser.get("/v1/whoami", headers={"Authorization": "Bearer nonsense"})).problem(401, "unauthenticated")


@pytest.mark.parametrize(
    "body",
    [{}, {"key": "nonsense"}, {"key": "nonsense", "access": "x"}, {"access": "nonsense"}, {"access": LINK_PREFIX + "AAAA"}],
)
async def test_a_wrong_key_or_link_sets_no_cookie(gateway: Gateway, body: dict[str, str]) -> None:
    answer = await gateway.anonymous.post(SESSION, body)
    answer.problem(401, "unauthenticated")
    assert "set-cookie" not in answer.headers


async def test_wrong_keys_are_throttled(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url, auth_failures_burst=2)) as gateway:
        for wrong in ({"key": "a"}, {"access": "b"}):
            (await gateway.anonymous.post(SESSION, wrong)).problem(401, "unauthenticated")
        (await gateway.anonymous.post(SESSION, {"access": "c"})).problem(429, "rate-limited")


# Requests of other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {},
    ],
    ids=str,
)
async def test_a_change_of_another_site_with_the_cookie_is_refused(
    gateway: Gateway, tenant: Tenant, headers: dict[str, str]
) -> None:
    queue = await tenant.queue()
    browser = await sign_in(gateway, tenant.key)
    forged = Client(gateway.url, gateway.session, {"Cookie": browser.headers["Cookie"], **headers})
    for call in (
        forged.post(f"{queue}/messages", {"payload": 1}),
        forged.delete(queue),
        forged.delete(SESSION),
        forged.get("/v1/ws", headers={"Upgrade": "websocket", "Connection": "Upgrade"}),
    ):
        (await call).problem(403, "forbidden")
    assert (await tenant.stats(queue))["ready"] == 0
    assert (await browser.get("/v1/whoami")).status == 200, "the session was not ended"


async def test_another_site_cannot_sign_a_browser_in_or_read_with_its_cookie(gateway: Gateway, tenant: Tenant) -> None:
    browser = await sign_in(gateway, tenant.key)
    for site in ("cross-site", "same-site"):
        (await gateway.anonymous.post(SESSION, {"key": tenant.key}, headers={"Sec-Fetch-Site": site})).problem(403, "forbidden")
        (await browser.get("/v1/whoami", headers={"Sec-Fetch-Site": site})).problem(403, "forbidden")
    assert (await browser.get("/v1/whoami", headers={"Sec-Fetch-Site": "none"})).status == 200, "an address that the user typed"


async def test_without_fetch_metadata_the_origin_must_name_the_host(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    browser = await sign_in(gateway, tenant.key)
    plain = Client(gateway.url, gateway.session, {"Cookie": browser.headers["Cookie"]})
    (await plain.post(f"{queue}/messages", {"payload": 1}, headers={"Origin": gateway.url})).ok(201)
    assert (await plain.get("/v1/whoami")).status == 200


# The end of a session


async def test_signing_out_ends_the_session_on_every_gateway(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    browser, other_browser = await sign_in(gateway, tenant.key), await sign_in(gateway, tenant.key)
    elsewhere = Client(second_gateway.url, second_gateway.session, browser.headers)
    assert (await elsewhere.get("/v1/whoami")).status == 200
    async with elsewhere.events("/v1/telemetry/stream") as events:
        answer = await browser.delete(SESSION)
        assert (
            answer.status == 204 and f"{COOKIE}=;" in answer.headers["set-cookie"] and "Max-Age=0" in answer.headers["set-cookie"]
        )
        while await events.next() is not None:
            pass
    (await browser.get("/v1/whoami")).problem(401, "unauthenticated")
    (await elsewhere.get("/v1/whoami")).problem(401, "unauthenticated")
    assert (await other_browser.get("/v1/whoami")).status == 200
    assert (await browser.delete(SESSION)).status == 204, "once more, as another tab does"


@pytest.mark.parametrize("how", ["disable", "delete", "rotate"])
async def test_a_revoked_key_ends_its_sessions_and_live_streams_in_under_a_second(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, how: str
) -> None:
    key = await tenant.another_key()
    browser = await sign_in(gateway, key.key)
    elsewhere = Client(second_gateway.url, second_gateway.session, browser.headers)
    assert (await elsewhere.get("/v1/whoami")).status == 200
    path = f"{KEYS}/{key.record.id}"
    async with elsewhere.events("/v1/telemetry/stream") as events:
        if how == "disable":
            (await tenant.client.patch(path, {"enabled": False})).ok()
        elif how == "delete":
            (await tenant.client.delete(path)).ok(204)
        else:
            (await tenant.client.post(f"{path}/rotate", {"graceSeconds": 0})).ok()
        async with asyncio.timeout(1):
            while await events.next() is not None:
                pass
    await eventually(lambda: _is_refused(elsewhere))
    assert await _is_refused(browser)


async def _is_refused(client: Client) -> bool:
    return (await client.get("/v1/whoami")).status == 401


async def test_a_session_ends_after_its_time_and_with_its_key(gateway: Gateway, clock: ShiftedClock, tenant: Tenant) -> None:
    browser = await sign_in(gateway, tenant.key)
    clock.ahead_ms = 28_799_000
    assert (await browser.get("/v1/whoami")).status == 200
    clock.ahead_ms = 28_801_000
    (await browser.get("/v1/whoami")).problem(401, "unauthenticated")
    clock.ahead_ms = 0
    short = await tenant.another_key(expires_at_ms=gateway.clock() + 60_000)
    answer = await gateway.anonymous.post(SESSION, {"key": short.key})
    assert "Max-Age=59" in answer.headers["set-cookie"] or "Max-Age=60" in answer.headers["set-cookie"]


async def test_sessions_of_a_disabled_tenant_are_refused(gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    browser = await sign_in(gateway, tenant.key)
    (await gateway.admin.patch(f"/api/control/tenants/{tenant.id}", {"enabled": False})).ok()
    (await browser.get("/v1/whoami")).problem(403, "tenant-disabled")
    assert (await browser.delete(SESSION)).status == 204


async def test_an_altered_cookie_or_two_of_them_are_refused(gateway: Gateway, tenant: Tenant) -> None:
    browser = await sign_in(gateway, tenant.key)
    cookie = browser.headers["Cookie"]
    for wrong in (
        cookie[:-2] + ("AA" if cookie[-2:] != "AA" else "BB"),
        f"{cookie}; {cookie}",
        f"{COOKIE}=é",
        f"{COOKIE}={'x' * 9000}",
    ):
        (await browser.get("/v1/whoami", headers={"Cookie": wrong})).problem(401, "unauthenticated")
    assert (await browser.get("/v1/whoami", headers={"Cookie": f"theme=dark; {cookie}; a=b"})).status == 200


async def test_a_platform_keys_session_names_tenants_as_the_key_does(gateway: Gateway, tenant: Tenant) -> None:
    browser = await sign_in(gateway, gateway.admin_key)
    assert (await browser.get("/api/control/tenants")).status == 200
    assert (await browser.get("/v1/whoami", headers={"X-Postroad-Tenant": tenant.id})).ok()["tenant"] == tenant.id
    own = await sign_in(gateway, tenant.key)
    other = await gateway.tenant()
    (await own.get("/v1/whoami", headers={"X-Postroad-Tenant": other.id})).problem(403, "forbidden")


async def test_sign_ins_are_audited(gateway: Gateway, tenant: Tenant) -> None:
    browser = await sign_in(gateway, tenant.key)
    await code_of(tenant.client)
    (await browser.delete(SESSION)).ok(204)
    entries = (await tenant.client.get("/api/control/audit?action=console.*")).ok()["entries"]
    assert [one["action"] for one in entries] == ["console.sign_out", "console.create_link", "console.sign_in"]
    assert {one["target"] for one in entries} == {tenant.record.id}


# Links


async def test_a_link_signs_in_once(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    code = await code_of(tenant.client)
    answer = await second_gateway.anonymous.post(SESSION, {"access": code}, headers=SAME_ORIGIN)
    assert answer.ok(201)["keyId"] == tenant.record.id
    assert "Max-Age=28800" in answer.headers["set-cookie"]
    for one in (gateway, second_gateway):
        (await one.anonymous.post(SESSION, {"access": code}, headers=SAME_ORIGIN)).problem(401, "unauthenticated")


async def test_a_link_expires_and_ends_with_its_key(gateway: Gateway, clock: ShiftedClock, tenant: Tenant) -> None:
    code, key = await code_of(tenant.client), await tenant.another_key()
    clock.ahead_ms = 601_000
    (await gateway.anonymous.post(SESSION, {"access": code})).problem(401, "unauthenticated")
    clock.ahead_ms = 0
    code = await code_of(key.client)
    (await tenant.client.delete(f"{KEYS}/{key.record.id}")).ok(204)
    (await gateway.anonymous.post(SESSION, {"access": code})).problem(401, "unauthenticated")


async def test_a_session_cannot_prolong_itself(gateway: Gateway, tenant: Tenant) -> None:
    browser = await sign_in(gateway, tenant.key)
    (await browser.post(LINKS, {})).problem(403, "forbidden")
    token = (await tenant.client.post("/v1/tokens", {"resource": "telemetry"})).ok(201)["token"]
    (await gateway.with_key(token).post(LINKS, {})).problem(401, "unauthenticated")


async def test_a_session_cannot_grant_what_outlives_it(gateway: Gateway, tenant: Tenant) -> None:
    """Who takes over a browser gets no credential for the time after the session."""
    browser, other = await sign_in(gateway, tenant.key), await tenant.another_key()
    path, later = f"{KEYS}/{other.record.id}", rfc3339(gateway.clock() + 9 * 3_600_000)
    wanted = {"name": "k", "scopes": ["read"]}
    for method, target, body in (
        ("POST", KEYS, wanted),
        ("POST", KEYS, {**wanted, "expiresAt": later}),
        ("PATCH", path, {"scopes": ["read"]}),
        ("PATCH", path, {"expiresAt": later}),
        ("POST", f"{path}/rotate", {}),
        ("POST", f"{KEYS}/{tenant.record.id}/rotate", {}),
        ("POST", f"{path}/aws", {}),
        ("POST", "/api/control/jwt-secrets", {"name": "s"}),
    ):
        problem = (await browser.call(method, target, body)).problem(403, "key-required")
        assert "Authorization" in problem["detail"]
    assert {one["id"] for one in (await tenant.client.get(KEYS)).ok()["keys"]} == {tenant.record.id, other.record.id}
    (await other.client.get("/v1/whoami")).ok()

    soon = rfc3339(gateway.clock() + 3_600_000)
    (await browser.post(KEYS, {**wanted, "expiresAt": soon})).ok(201)
    (await browser.patch(path, {"name": "renamed"})).ok()
    (await browser.patch(path, {"enabled": False})).ok()
    (await browser.delete(path)).ok(204)


async def test_the_key_itself_beside_the_cookie_grants_what_outlives_the_session(gateway: Gateway, tenant: Tenant) -> None:
    browser = await sign_in(gateway, tenant.key)
    made = (await browser.post(KEYS, {"name": "k", "scopes": ["read"]}, headers={"Authorization": f"Bearer {tenant.key}"})).ok(
        201
    )
    assert made["record"]["expiresAt"] is None and made["record"]["createdBy"] == tenant.record.id
    admin = await sign_in(gateway, gateway.admin_key)
    platform = {"name": "p", "scopes": [str(one) for one in Scope], "platform": True}
    (await admin.post(KEYS, platform)).problem(403, "key-required")
    (await admin.post(INVITES, {})).problem(403, "key-required")
    (await admin.post(INVITES, {"expiresInSeconds": 3600})).ok(201)


async def test_a_cookie_is_no_link_and_a_link_no_cookie(gateway: Gateway, tenant: Tenant) -> None:
    browser = await sign_in(gateway, tenant.key)
    value = browser.headers["Cookie"].partition("=")[2]
    (await gateway.anonymous.post(SESSION, {"access": LINK_PREFIX + value})).problem(401, "unauthenticated")
    code = await code_of(tenant.client)
    forged = {"Cookie": f"{COOKIE}={code.removeprefix(LINK_PREFIX)}"}
    (await browser.get("/v1/whoami", headers=forged)).problem(401, "unauthenticated")
