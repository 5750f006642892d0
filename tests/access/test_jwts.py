"""JWTs that a tenant signs for its own users."""

import base64
import hashlib
import hmac
import warnings
from typing import Any

import jwt
import msgspec
import pytest

from postroad.access.records import SECRETS_BUCKET
from tests.access.control import SECRETS, TENANTS, WHOAMI, becomes, patch, raw_bucket, stamp
from tests.gateway import Answer, Gateway, ShiftedClock, Tenant

SECRET = "a secret that is shared with the tenant"
OTHER = "a secret that nobody has shared with us"


async def add_secret(tenant: Tenant, secret: str = SECRET, **more: object) -> str:
    """Create a secret; return its id."""
    made = (await tenant.client.post(SECRETS, {"name": "s", "secret": secret, **more})).ok(201)
    assert made["secret"] == secret
    secret_id: str = made["record"]["id"]
    return secret_id


def claims(gateway: Gateway, **more: object) -> dict[str, Any]:
    given = {"sub": "ada", "scope": "read", "exp": gateway.clock() // 1000 + 600, **more}
    return {name: value for name, value in given.items() if value is not None}


def part(value: object) -> bytes:
    raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def signed(payload: object, secret: str = SECRET, *, head: object = None, digest: Any = hashlib.sha256) -> str:
    """Sign a JWT without a library, so that any part of it can be invalid."""
    text = part({"alg": "HS256", "typ": "JWT"} if head is None else head) + b"." + part(payload)
    return (text + b"." + part(hmac.digest(secret.encode(), text, digest))).decode()


async def as_user(gateway: Gateway, tenant: Tenant, text: str, path: str = WHOAMI) -> Answer:
    return await gateway.with_key(text).get(path, headers={"X-Postroad-Tenant": tenant.id})


# Good ones


async def test_a_jwt_authenticates_a_user_of_the_tenant(gateway: Gateway, tenant: Tenant) -> None:
    secret_id = await add_secret(tenant)
    given = claims(gateway, scope="read write", stream_id="chat-1")
    me = (await as_user(gateway, tenant, jwt.encode(given, SECRET, "HS256"))).ok()
    assert me == {
        "tenant": tenant.id,
        "platform": False,
        "credential": "jwt",
        "keyId": f"jwt:{secret_id}",
        "keyName": "ada",
        "subject": "ada",
        "scopes": ["read", "write"],
        "allowedQueues": [],
        "allowedTopics": [],
        "allowedBuckets": [],
        "allowedStreams": ["chat-1"],
        "allowedServices": [],
        "accountId": (await tenant.client.get("/v1/whoami")).ok()["accountId"],
        "expiresAt": stamp(given["exp"] * 1000).replace("+00:00", ".000Z"),
    }


async def test_a_jwt_without_a_stream_allows_all_streams(gateway: Gateway, tenant: Tenant) -> None:
    await add_secret(tenant)
    me = (await as_user(gateway, tenant, signed(claims(gateway, scope="write")))).ok()
    assert (me["allowedStreams"], me["scopes"]) == (["*"], ["write"])


async def test_a_jwt_with_a_kid_is_verified_with_that_secret(gateway: Gateway, tenant: Tenant) -> None:
    first, second = await add_secret(tenant, SECRET), await add_secret(tenant, OTHER)
    given = claims(gateway)
    for kid, secret, status in (
        (first, SECRET, 200),
        (second, OTHER, 200),
        (first, OTHER, 401),
        (second, SECRET, 401),
        ("x", SECRET, 401),
    ):
        text = jwt.encode(given, secret, "HS256", headers={"kid": kid})
        assert (await as_user(gateway, tenant, text)).status == status, (kid, secret)


async def test_a_jwt_without_a_kid_is_verified_with_all_secrets(gateway: Gateway, tenant: Tenant) -> None:
    await add_secret(tenant, SECRET)
    second = await add_secret(tenant, OTHER)
    for secret in (SECRET, OTHER):
        assert (await as_user(gateway, tenant, signed(claims(gateway), secret))).status == 200
    assert (await as_user(gateway, tenant, signed(claims(gateway), OTHER))).ok()["keyId"] == f"jwt:{second}"


async def test_creation_and_deletion_of_a_secret_take_effect_on_every_gateway(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    secret_id = await add_secret(tenant)
    headers = {"X-Postroad-Tenant": tenant.id}
    everywhere = [one.with_key(signed(claims(gateway))).with_headers(**headers) for one in (gateway, second_gateway)]
    await becomes(200, *everywhere)
    assert (await tenant.client.delete(f"{SECRETS}/{secret_id}")).status == 204
    await becomes(401, *everywhere)


async def test_a_jwt_of_the_default_tenant_needs_no_tenant_name(gateway: Gateway) -> None:
    made = (await gateway.admin.post(SECRETS, {"name": "s"})).ok(201)
    assert len(made["secret"]) >= 43
    try:
        me = (await gateway.with_key(signed(claims(gateway), made["secret"])).get(WHOAMI)).ok()
        assert me["tenant"] == "default"
    finally:
        await gateway.admin.delete(f"{SECRETS}/{made['record']['id']}")


# Bad ones


@pytest.mark.parametrize(
    "more",
    [
        {"exp": None},
        {"sub": None},
        {"scope": None},
        {"scope": ""},
        {"scope": "admin publish"},
        {"scope": 5},
        {"scope": ["x"]},
        {"sub": 5},
        {"sub": {"a": 1}},
        {"stream_id": 5},
        {"exp": 1},
        {"exp": -1},
        {"exp": True},
        {"exp": "9999999999"},
        {"exp": [1]},
        {"exp": 10**30},
        {"exp": 2**63},
        {"exp": 1e308},
        {"nbf": 10**10},
        {"nbf": "soon"},
        {"nbf": [1]},
    ],
    ids=str,
)
async def test_a_jwt_with_invalid_claims_is_refused(gateway: Gateway, tenant: Tenant, more: dict[str, object]) -> None:
    await add_secret(tenant)
    assert (await as_user(gateway, tenant, signed(claims(gateway)))).status == 200
    (await as_user(gateway, tenant, signed(claims(gateway, **more)))).problem(401, "unauthenticated")


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 2000, b"null", b"{}"])
@pytest.mark.parametrize("claim", [b"exp", b"nbf"])
async def test_expiries_that_are_not_finite_numbers_are_refused(
    gateway: Gateway, tenant: Tenant, claim: bytes, value: bytes
) -> None:
    await add_secret(tenant)
    until = str(gateway.clock() // 1000 + 600).encode()
    payload = (
        b'{"sub":"ada","scope":"read",' + (b'"exp":' + until + b"," if claim != b"exp" else b"") + b'"%b":%b}' % (claim, value)
    )
    (await as_user(gateway, tenant, signed(payload))).problem(401, "unauthenticated")


async def test_a_jwt_with_a_very_late_expiry_is_accepted(gateway: Gateway, tenant: Tenant) -> None:
    await add_secret(tenant)
    me = (await as_user(gateway, tenant, signed(claims(gateway, exp=10**12)))).ok()
    assert me["expiresAt"] == "9999-12-31T23:59:59.999Z"


async def test_a_jwt_expires(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    await add_secret(tenant)
    text = signed(claims(gateway))
    clock.ahead_ms = 599_000 - 1000
    assert (await as_user(gateway, tenant, text)).status == 200
    clock.ahead_ms = 600_001
    (await as_user(gateway, tenant, text)).problem(401, "unauthenticated")


async def test_a_signature_with_another_secret_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    await add_secret(tenant)
    (await as_user(gateway, tenant, signed(claims(gateway), OTHER))).problem(401, "unauthenticated")
    head, payload, signature = signed(claims(gateway)).split(".")
    for text in (
        f"{head}.{payload}.",
        f"{head}.{payload}.{signature[:-2]}",
        f"{head}.{part(claims(gateway, sub='eve')).decode()}.{signature}",
    ):
        (await as_user(gateway, tenant, text)).problem(401, "unauthenticated")


async def test_another_tenants_secret_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    await add_secret(tenant, SECRET)
    await add_secret(other, OTHER)
    (await as_user(gateway, other, signed(claims(gateway), SECRET))).problem(401, "unauthenticated")
    (await gateway.with_key(signed(claims(gateway))).get(WHOAMI, headers={"X-Postroad-Tenant": "no-such"})).problem(
        401, "unauthenticated"
    )


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "", "HS384", "HS512", "RS256", "ES256", "hs256", None, 5, ["HS256"]])
async def test_other_algorithms_are_refused(gateway: Gateway, tenant: Tenant, alg: object) -> None:
    await add_secret(tenant)
    head = {"alg": alg, "typ": "JWT"}
    text = signed(claims(gateway), head=head)
    (await as_user(gateway, tenant, text)).problem(401, "unauthenticated")
    (await as_user(gateway, tenant, text.rpartition(".")[0] + ".")).problem(401, "unauthenticated")


async def test_a_stronger_algorithm_is_refused_too(gateway: Gateway, tenant: Tenant) -> None:
    await add_secret(tenant)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = jwt.encode(claims(gateway), SECRET, "HS512")
    (await as_user(gateway, tenant, text)).problem(401, "unauthenticated")


@pytest.mark.parametrize(
    "text",
    [
        "..",
        "a.b.c",
        "a.b",
        "a.b.c.d",
        "e30.e30.e30",
        signed({}, head=b"[]"),
        signed({}, head=b"{{"),
        signed({}, head=b'{"alg":' + b"[" * 2900),
        "\xe9.\xe9.\xe9",
        signed(b"not json"),
        signed(b"[1]"),
        signed(b'"text"'),
        signed({}, head=b"not json"),
        signed({}, head={"alg": "HS256", "kid": 5}),
        signed({}, head={"alg": "HS256", "crit": ["x"]}),
        signed({}, head={"alg": "HS256", "b64": False}),
    ],
    ids=range(16),
)
async def test_a_text_that_is_not_a_jwt_is_refused(gateway: Gateway, tenant: Tenant, text: str) -> None:
    await add_secret(tenant)
    (await as_user(gateway, tenant, text)).problem(401, "unauthenticated")


async def test_a_jwt_has_at_most_4096_characters(gateway: Gateway, tenant: Tenant) -> None:
    await add_secret(tenant)
    sizes = {}
    for filler in (2700, 2800, 3000, 4000):
        text = signed(claims(gateway, filler="x" * filler))
        sizes[len(text)] = (await as_user(gateway, tenant, text)).status
    assert {200, 401} == set(sizes.values())
    assert all((status == 200) == (size <= 4096) for size, status in sizes.items())


async def test_a_jwt_is_refused_by_other_routes(gateway: Gateway, tenant: Tenant) -> None:
    await add_secret(tenant)
    queue = await tenant.queue()
    text = signed(claims(gateway, scope="read write admin publish consume"))
    assert (await as_user(gateway, tenant, text)).status == 200
    client = gateway.with_key(text).with_headers(**{"X-Postroad-Tenant": tenant.id})
    for call in (
        client.get("/v1/queues"),
        client.get(queue),
        client.post(f"{queue}/messages", {"payload": 1}),
        client.get("/v1/telemetry/stream"),
        client.post("/v1/tokens", {"resource": "telemetry"}),
        client.get(SECRETS),
        client.get(TENANTS),
        gateway.anonymous.get(f"{WHOAMI}?bearer={text}"),
    ):
        (await call).problem(401, "unauthenticated")


async def test_a_disabled_tenants_jwts_are_refused(gateway: Gateway, tenant: Tenant) -> None:
    await add_secret(tenant)
    text = signed(claims(gateway))
    await patch(gateway.admin, f"{TENANTS}/{tenant.id}", enabled=False)
    (await as_user(gateway, tenant, text)).problem(403, "tenant-disabled")
    (await as_user(gateway, tenant, signed(claims(gateway), OTHER))).problem(401, "unauthenticated")


# Secrets as things


async def test_secrets_are_listed_without_their_text(tenant: Tenant) -> None:
    first = await add_secret(tenant, SECRET)
    second = await add_secret(tenant, OTHER)
    answer = await tenant.client.get(SECRETS)
    assert [one["id"] for one in answer.ok()["secrets"]] == [first, second]
    assert all(
        one.keys() == {"id", "name", "scopes", "allowedStreams", "createdBy", "createdAt", "expiresAt"}
        for one in answer.ok()["secrets"]
    )


async def test_a_secret_has_32_to_512_characters(tenant: Tenant) -> None:
    for secret in ("x" * 31, "x" * 513, ""):
        problem = (await tenant.client.post(SECRETS, {"name": "s", "secret": secret})).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == "$.secret"


@pytest.mark.parametrize("when", ["2020-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00"])
async def test_the_expiry_of_a_secret_is_in_the_future_and_before_the_year_10000(tenant: Tenant, when: str) -> None:
    problem = (await tenant.client.post(SECRETS, {"name": "s", "expiresAt": when})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.expiresAt"


async def test_an_expired_secret_does_not_verify_jwts(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    await add_secret(tenant, expiresAt=stamp(clock() + 60_000))
    text = signed(claims(gateway))
    assert (await as_user(gateway, tenant, text)).status == 200
    clock.ahead_ms = 60_001
    assert (await as_user(gateway, tenant, text)).status == 401


async def test_a_jwt_expires_with_its_secret(gateway: Gateway, tenant: Tenant, clock: ShiftedClock) -> None:
    made = (await tenant.client.post(SECRETS, {"name": "s", "expiresAt": stamp(clock() + 60_000)})).ok(201)
    me = (await as_user(gateway, tenant, signed(claims(gateway), made["secret"]))).ok()
    assert me["expiresAt"] == made["record"]["expiresAt"]


async def test_a_tenant_has_at_most_five_secrets(tenant: Tenant) -> None:
    ids = [await add_secret(tenant, f"{number} {SECRET}") for number in range(5)]
    (await tenant.client.post(SECRETS, {"name": "sixth"})).problem(409, "precondition-failed")
    await tenant.client.delete(f"{SECRETS}/{ids[0]}")
    await add_secret(tenant)


async def test_another_tenants_secret_is_not_found(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    secret_id = await add_secret(other)
    (await tenant.client.delete(f"{SECRETS}/{secret_id}")).problem(404, "secret-not-found")
    assert len((await other.client.get(SECRETS)).ok()["secrets"]) == 1


async def test_a_secret_is_stored_encrypted(gateway: Gateway, tenant: Tenant) -> None:
    secret_id = await add_secret(tenant, SECRET)
    stored = await raw_bucket(gateway, SECRETS_BUCKET)
    assert secret_id.encode() in stored, "this reads what is stored"
    for form in (SECRET.encode(), base64.b64encode(SECRET.encode())[:30], base64.urlsafe_b64encode(SECRET.encode())[:30]):
        assert form not in stored
    assert SECRET.encode().hex().encode() not in stored
