"""Every route with every kind of credential, and access to resources of another tenant.

The routes come from the route table, so new ones are covered. The expected result follows from the declaration of the route by
the rule in `expected`.
"""

import asyncio
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import jwt
import msgspec
import pytest

from postroad.access.keys import new_key
from postroad.access.records import TenantRecord
from postroad.access.tokens import Tokens
from postroad.api.access import NewToken, TenantState
from postroad.container import platform_keys
from postroad.crypto.signing import Signer
from postroad.http.routing import Route
from postroad.kernel.clock import now_ms
from postroad.kernel.identity import ALL_SCOPES, Caller, RouteRequirement, Scope
from tests.access.test_admin_scope import NOT_ADMINISTRATIVE
from tests.described import ROUTES
from tests.gateway import Answer, Client, Gateway, Tenant
from tests.waiting import eventually

NOBODY_IS = "no-such-tenant"
TENANT_HEADER = "X-Postroad-Tenant"
ABOUT_THE_WHOLE_TENANT = {  # so not for who is kept to a part of it
    *("report_usage", "report_sessions", "report_telemetry"),
    *("create_replay", "list_replays", "get_replay", "cancel_replay", "pause_replay", "resume_replay"),
    *("put_alert_rule", "delete_alert_rule", "list_alert_channels", "put_alert_channel", "get_alert_channel"),
    *("delete_alert_channel", "confirm_alert_channel", "rotate_alert_channel", "test_alert_channel"),
}
ABOUT_ONE = {"get_telemetry_status": ("queue", "_telemetry")}  # which the path does not name
BY_WAKE_TOKEN = {"call_back", "acknowledge_wake", "release_wake"}  # which none of the visitors has
REFUSALS = {"unauthenticated": 401, "forbidden": 403, "tenant-disabled": 403, "tenant-not-found": 404}


# Who comes


RESTRICTED = ("queue", "topic", "bucket", "stream", "service")


@dataclass(frozen=True, slots=True)
class PresentedCredential:
    """A credential and its properties. `is_known`: it is valid at this moment."""

    text: str | None = None
    is_in_url: bool = False
    headers: dict[str, str] = field(default_factory=dict)
    kind: str = "key"
    is_known: bool = True
    scopes: frozenset[Scope] = frozenset(ALL_SCOPES)
    is_platform: bool = False
    only: str | None = None  # the one name that it may use
    only_kinds: tuple[str, ...] = ("queue", "topic", "bucket", "stream", "service")
    resource: str | None = None
    fault: str | None = None  # what keeps it out everywhere, by its code
    project: str = ""  # the tenant that it names where a path does so


def expected(route: Route, credential: PresentedCredential) -> str:
    """`in`, or the code of the error."""
    if route.scope is None:
        return "unauthenticated" if route.handler.__name__ in BY_WAKE_TOKEN else "in"
    if not _is_taken(route, credential):
        return "unauthenticated"
    if credential.fault is not None:
        return credential.fault
    if route.scope is RouteRequirement.PLATFORM:
        return "in" if credential.is_platform else "forbidden"
    if route.scope is not RouteRequirement.IDENTITY and credential.scopes.isdisjoint(scopes_of(route)):
        return "forbidden"
    if credential.only is not None and route.handler.__name__ in ABOUT_THE_WHOLE_TENANT:
        return "forbidden"
    if credential.kind == "jwt" and "{topic}" in route.path:  # a JWT reads the topics that its claim names
        return "forbidden"
    named = [(kind, name_for(kind)) for kind in RESTRICTED if f"{{{kind}}}" in route.path]
    named += [ABOUT_ONE[route.handler.__name__]] if route.handler.__name__ in ABOUT_ONE else []
    if "{session}" in route.path:  # which is a stream
        named.append(("stream", f"session:{name_for('session')}"))
    if credential.only is not None and any(kind not in credential.only_kinds or name != credential.only for kind, name in named):
        return "forbidden"
    return "in"


def scopes_of(route: Route) -> set[object]:
    """The scopes of which one is enough, from the table of `test_admin_scope.py` as for `admin`."""
    is_managed = isinstance(route.scope, Scope) and (route.method, route.path) not in NOT_ADMINISTRATIVE
    return {route.scope, route.alternative_scope, Scope.ADMIN if is_managed else None}


def _is_taken(route: Route, credential: PresentedCredential) -> bool:
    """True if the route accepts credentials of this kind, sent in this way."""
    if credential.text is None or not credential.is_known:
        return False
    if credential.kind == "token":
        return credential.resource in [filled(one) for one in (route.resource, route.alternative_resource) if one is not None]
    if credential.kind == "emit":
        return route.accepts_emit_token and not credential.is_in_url
    if credential.kind == "jwt":
        return route.accepts_jwt and not credential.is_in_url
    return not credential.is_in_url


def name_for(parameter: str) -> str:
    """The path with parameters of resources that do not exist."""
    return f"no-such-{parameter}"


def filled(template: str, project: str = "") -> str:
    template = template.replace("{project}", project or name_for("project"))
    for route in ROUTES:
        for parameter in route.parameters:
            template = template.replace(f"{{{parameter}}}", name_for(parameter))
    return template


RESOURCES = sorted({filled(route.resource) for route in ROUTES if route.resource is not None})
VISITORS = (
    *("nobody", "garbage", "empty", "of another scheme", "unknown key", "altered key", "all scopes", "no scopes"),
    *(f"{scope} only" for scope in Scope),
    *(f"all but {scope}" for scope in Scope),
    *("disabled", "expired", "rotated, in its grace", "rotated, after its grace", "rotated, the new text"),
    *(
        "other names only",
        "this queue only",
        "of a disabled tenant",
        "naming another tenant",
        "naming its own tenant",
        "in the URL",
    ),
    *("platform", "platform for a tenant", "platform for nobody", "platform in the URL"),
    *(
        "JWT read",
        "JWT write",
        "JWT without a tenant",
        "JWT of another tenant",
        "JWT expired",
        "JWT unsigned",
        "JWT for a stream",
        "JWT nested too deeply",
    ),
    *(f"token, {how}, {resource}" for resource in RESOURCES for how in ("header", "URL", "used", "of a deleted key")),
    *("token, header, other", "token, URL, other"),
    *("emit token", "emit token in the URL", "emit token, altered", "emit token of a deleted key", "emit token, no more trusted"),
)


def bearer(text: str | None, **headers: str) -> dict[str, str]:
    return headers if text is None else {"Authorization": f"Bearer {text}", **headers}


@pytest.fixture(scope="module")
async def credentials(gateway: Gateway, control: Gateway) -> dict[str, PresentedCredential]:
    tenant, other = await gateway.tenant(), await gateway.tenant()
    found = {
        "nobody": PresentedCredential(),
        "garbage": PresentedCredential("garbage", is_known=False),
        "empty": PresentedCredential("", is_known=False),
        "of another scheme": PresentedCredential(None, headers={"Authorization": f"Basic {tenant.key}"}),
        "unknown key": PresentedCredential(new_key(), is_known=False),
        "altered key": PresentedCredential(tenant.key[:-1] + ("x" if tenant.key[-1] != "x" else "y"), is_known=False),
        "all scopes": PresentedCredential(tenant.key),
        "naming another tenant": PresentedCredential(tenant.key, headers={TENANT_HEADER: other.id}, fault="forbidden"),
        "naming its own tenant": PresentedCredential(tenant.key, headers={TENANT_HEADER: tenant.id}),
        "in the URL": PresentedCredential(tenant.key, is_in_url=True),
        "platform": PresentedCredential(gateway.admin_key, is_platform=True),
        "platform for a tenant": PresentedCredential(gateway.admin_key, headers={TENANT_HEADER: tenant.id}, is_platform=True),
        "platform for nobody": PresentedCredential(
            gateway.admin_key, headers={TENANT_HEADER: NOBODY_IS}, fault="tenant-not-found"
        ),
        "platform in the URL": PresentedCredential(gateway.admin_key, is_in_url=True, is_platform=True),
    }
    found |= await _by_scope(tenant) | await _past_and_narrow(gateway, tenant)
    found |= await _jwts(tenant, other) | await _tokens(gateway, tenant) | await _emit_tokens(tenant)
    assert set(found) == set(VISITORS)
    # In a path each names whom its header does, or its own tenant: so the same is due from both shapes of a route.
    return {name: replace(one, project=one.project or one.headers.get(TENANT_HEADER, tenant.id)) for name, one in found.items()}


async def _by_scope(tenant: Tenant) -> dict[str, PresentedCredential]:
    sets = {"no scopes": frozenset[Scope]()}
    sets |= {f"{scope} only": frozenset({scope}) for scope in Scope}
    sets |= {f"all but {scope}": frozenset(ALL_SCOPES) - {scope} for scope in Scope}
    return {
        name: PresentedCredential((await tenant.another_key(tuple(scopes))).key, scopes=scopes) for name, scopes in sets.items()
    }


async def _past_and_narrow(gateway: Gateway, tenant: Tenant) -> dict[str, PresentedCredential]:
    disabled, in_grace, after_grace = [await tenant.another_key() for _ in range(3)]
    off = await tenant.client.call("PATCH", f"/api/control/keys/{disabled.record.id}", {"enabled": False})
    off.ok()
    rotated = await tenant.client.post(f"/api/control/keys/{in_grace.record.id}/rotate", {"graceSeconds": 600})
    (await tenant.client.post(f"/api/control/keys/{after_grace.record.id}/rotate", {"graceSeconds": 0})).ok()
    narrow = {
        name: await tenant.another_key(
            allowed_queues=(glob,),
            allowed_topics=(glob,),
            allowed_buckets=(glob,),
            allowed_streams=(glob,),
            allowed_services=(glob,),
        )
        for name, glob in (("other names only", "others-*"), ("this queue only", name_for("queue")))
    }
    dormant = await gateway.tenant()
    (await gateway.admin.call("PATCH", f"/api/control/tenants/{dormant.id}", {"enabled": False})).ok()
    return {
        "disabled": PresentedCredential(disabled.key, is_known=False),
        "expired": PresentedCredential((await tenant.another_key(expires_at_ms=now_ms() - 1)).key, is_known=False),
        "rotated, in its grace": PresentedCredential(in_grace.key),
        "rotated, the new text": PresentedCredential(rotated.ok()["key"]),
        "rotated, after its grace": PresentedCredential(after_grace.key, is_known=False),
        "other names only": PresentedCredential(narrow["other names only"].key, only="others-1"),
        "this queue only": PresentedCredential(narrow["this queue only"].key, only=name_for("queue")),
        "of a disabled tenant": PresentedCredential(dormant.key, fault="tenant-disabled", project=dormant.id),
    }


async def _jwts(tenant: Tenant, other: Tenant) -> dict[str, PresentedCredential]:
    secret = (await tenant.client.post("/api/control/jwt-secrets", {"name": "ours"})).ok(201)["secret"]
    foreign = (await other.client.post("/api/control/jwt-secrets", {"name": "theirs"})).ok(201)["secret"]
    headers = {TENANT_HEADER: tenant.id}
    read, write = frozenset({Scope.READ}), frozenset({Scope.WRITE})

    def signed(by: str, **claims: object) -> str:
        return jwt.encode({"sub": "user", "scope": "read", "exp": int(time.time()) + 600, **claims}, by, algorithm="HS256")

    unsigned = jwt.encode({"sub": "user", "scope": "read", "exp": int(time.time()) + 600}, "", algorithm="none")
    nested = urlsafe_b64encode(b'{"kid":' + b"[" * 1400 + b"]" * 1400 + b"}").decode().rstrip("=")
    stream = name_for("stream")
    return {
        "JWT read": PresentedCredential(signed(secret), headers=headers, kind="jwt", scopes=read),
        "JWT write": PresentedCredential(signed(secret, scope="write"), headers=headers, kind="jwt", scopes=write),
        "JWT without a tenant": PresentedCredential(signed(secret), kind="jwt", is_known=False, project=other.id),
        "JWT of another tenant": PresentedCredential(signed(foreign), headers=headers, kind="jwt", is_known=False),
        "JWT expired": PresentedCredential(
            signed(secret, exp=int(time.time()) - 60), headers=headers, kind="jwt", is_known=False
        ),
        "JWT nested too deeply": PresentedCredential(f"{nested}.e30.AAAA", headers=headers, kind="jwt", is_known=False),
        "JWT unsigned": PresentedCredential(unsigned, headers=headers, kind="jwt", is_known=False),
        "JWT for a stream": PresentedCredential(
            signed(secret, stream_id=stream), headers=headers, kind="jwt", scopes=read, only=stream, only_kinds=("stream",)
        ),
    }


async def _tokens(gateway: Gateway, tenant: Tenant) -> dict[str, PresentedCredential]:
    async def made(resource: str, by: Tenant = tenant, **more: object) -> str:
        text: str = (await by.client.post("/v1/tokens", {"resource": resource, **more})).ok(201)["token"]
        return text

    found: dict[str, PresentedCredential] = {}
    for resource in RESOURCES:
        route = next(one for one in ROUTES if one.resource is not None and filled(one.resource) == resource)
        used, gone = await made(resource, once=True), await tenant.another_key()
        spent = PresentedCredential(used, kind="token", resource=resource, project=tenant.id)
        assert (await ask(gateway, route, spent)).status in (200, 404, 426), (
            "it is let in: there is no such stream, or it is a WebSocket"
        )
        orphan = await made(resource, gone)
        (await tenant.client.delete(f"/api/control/keys/{gone.record.id}")).ok(204)
        for how, text, is_known in (("used", used, False), ("of a deleted key", orphan, False)):
            found[f"token, {how}, {resource}"] = PresentedCredential(text, kind="token", resource=resource, is_known=is_known)
        for how, is_in_url in (("header", False), ("URL", True)):
            found[f"token, {how}, {resource}"] = PresentedCredential(
                await made(resource),
                is_in_url,
                kind="token",
                scopes=frozenset({Scope.READ}),
                resource=resource,
            )
    elsewhere = _token_for_elsewhere(gateway, tenant)
    for how, is_in_url in (("header", False), ("URL", True)):
        found[f"token, {how}, other"] = PresentedCredential(elsewhere, is_in_url, kind="token", resource="elsewhere")
    return found


async def _emit_tokens(tenant: Tenant) -> dict[str, PresentedCredential]:
    gone, untrusted = await tenant.another_key(), await tenant.another_key()
    trusted = [tenant.record.id, gone.record.id]
    (await tenant.client.put("/v1/services/sender", {"trustedKeys": [*trusted, untrusted.record.id]})).ok(201)
    text, orphan, refused = [
        (await one.client.post("/v1/services/sender/token")).ok(201)["token"] for one in (tenant, gone, untrusted)
    ]
    (await tenant.client.delete(f"/api/control/keys/{gone.record.id}")).ok(204)
    (await tenant.client.put("/v1/services/sender", {"trustedKeys": trusted})).ok()
    publish = frozenset({Scope.PUBLISH})
    return {
        "emit token": PresentedCredential(text, kind="emit", scopes=publish),
        "emit token in the URL": PresentedCredential(text, is_in_url=True, kind="emit", scopes=publish),
        "emit token, altered": PresentedCredential(text[:-4] + "AAAA", kind="emit", is_known=False),
        "emit token of a deleted key": PresentedCredential(orphan, kind="emit", is_known=False),
        "emit token, no more trusted": PresentedCredential(refused, kind="emit", is_known=False),
    }


def _token_for_elsewhere(gateway: Gateway, tenant: Tenant) -> str:
    """A token for a resource that no route has."""
    access = gateway.node.access
    tokens = Tokens(
        gateway.node.platform.identities, Signer(platform_keys(gateway.settings), "stream token"), access.tokens._used, now_ms
    )
    whoami = next(route.handler for route in gateway.node.routes if route.path == "/v1/whoami")
    tokens.set_resources([Route("GET", "/elsewhere", whoami, Scope.READ, "", "", resource="elsewhere")], ())
    caller = Caller(tenant.id, tenant.record.id, frozenset(ALL_SCOPES))
    return tokens.issue(caller, NewToken(resource="elsewhere"))[0]


# Responses


_FEW_AT_A_TIME = asyncio.Semaphore(16)  # leaders keep their leases meanwhile
MISFITS = {"Stream-TTL": "soon", "Producer-Id": ""}


async def ask(gateway: Gateway, route: Route, credential: PresentedCredential, body: object = None) -> Answer:
    """Send a request with an invalid body or header, so that an accepted request changes nothing. Endless responses are not
    read to their end."""
    headers = {**credential.headers} if credential.is_in_url else bearer(credential.text, **credential.headers)
    headers |= {"Content-Type": "application/json", **(MISFITS if route.raw_body else {})}
    query = f"?bearer={credential.text}" if credential.is_in_url else ""
    data = None if route.body is None else msgspec.json.encode({"nothing": "of this name"} if body is None else body)
    url = gateway.url + filled(route.path, credential.project) + query
    async with _FEW_AT_A_TIME, gateway.session.request(route.method, url, headers=headers, data=data) as it:
        is_endless = it.content_type == "text/event-stream"
        seen = b"" if is_endless else await it.read()
        if is_endless:
            it.close()
        return Answer(it.status, {name.lower(): value for name, value in it.headers.items()}, seen)


def is_accepted(route: Route, answer: Answer) -> bool:
    if answer.status in (401, 403):
        return False
    return answer.status != 404 or code_of(route, answer) != "tenant-not-found" or "{tenant}" in route.path


def code_of(route: Route, answer: Answer) -> str | None:
    """The code of the problem; None without a body."""
    if route.method == "HEAD":
        assert answer.body == b""
        return None
    code: str = answer.json["code"]
    return code


def fault(route: Route, credential: PresentedCredential, answer: Answer) -> str | None:
    """The difference between the response and the expectation."""
    wanted = expected(route, credential)
    if wanted == "in":
        is_right = is_accepted(route, answer) and answer.status < 500
    else:
        is_right = answer.status == REFUSALS[wanted] and code_of(route, answer) in (wanted, None)
        if wanted == "tenant-not-found" and route.method != "HEAD":
            is_right = is_right and NOBODY_IS in answer.json["detail"]
    return None if is_right else f"{route.method} {route.path}: {answer.status} where {wanted!r} was due: {answer.body[:200]!r}"


@pytest.mark.parametrize("name", VISITORS)
async def test_a_route_accepts_the_credentials_that_it_declares(
    gateway: Gateway, credentials: dict[str, PresentedCredential], name: str
) -> None:
    answers = await asyncio.gather(*(ask(gateway, route, credentials[name]) for route in ROUTES))
    found = [fault(route, credentials[name], answer) for route, answer in zip(ROUTES, answers, strict=True)]
    assert [one for one in found if one is not None] == []


def test_every_route_accepts_a_credential_and_every_scope_refuses_one() -> None:
    good = PresentedCredential("x", is_platform=True)
    assert all(expected(route, good) == "in" for route in ROUTES if route.scope is not None)
    assert all(expected(route, PresentedCredential()) == "unauthenticated" for route in ROUTES if route.scope is not None)


async def test_openapi_describes_the_credentials_of_each_route(gateway: Gateway) -> None:
    paths = (await gateway.anonymous.get("/openapi.json")).ok()["paths"]
    assert sum(len(operations) for operations in paths.values()) == len(ROUTES)
    for route in ROUTES:
        operation = paths[route.path][route.method.lower()]
        assert operation.get("x-postroad-scope") == (None if route.scope is None else str(route.scope))
        kinds = {kind for choice in operation["security"] for kind in choice}
        ours = {"bearer", "apiKey"} | ({"jwt"} if route.accepts_jwt else set()) | ({"streamToken"} if route.resource else set())
        assert kinds == (set() if route.scope is None else ours)


# One tenant at another's things


def _is_live(route: Route) -> bool:
    """True for server-sent events and WebSockets, whose responses do not end."""
    return route.media == "text/event-stream" or route.status == 101


@dataclass(frozen=True, slots=True)
class Owner:
    """A tenant with one resource of each kind. `marker` is in all its content, and in no name that other tenants use."""

    tenant: Tenant
    marker: str
    names: dict[str, str]
    receipt: str

    def path(self, template: str) -> str:
        for parameter, name in self.names.items():
            template = template.replace(f"{{{parameter}}}", name)
        return filled(template)

    def body(self, route: Route) -> object:
        """A body that is as valid as possible; the fields of new routes are unknown here."""
        if route.raw_body:
            return ["mine"]
        some: dict[str, dict[str, Any]] = {
            "publish": {"payload": "mine"},
            "publish_batch": {"messages": [{"payload": "mine"}]},
            "publish_to_topic": {"subject": "a", "payload": "mine"},
            "publish_batch_to_topic": {"messages": [{"subject": "a", "payload": "mine"}]},
            "write_bucket_batch": {"writes": [{"key": "profile", "value": "mine"}]},
            "create_bucket": {"name": "orders"},
            "update_bucket": {"history": 2},
            "ack": {"receiptId": self.receipt},
            "nack": {"receiptId": self.receipt, "action": "dlq"},
            "extend": {"receiptId": self.receipt, "visibilityTimeoutMs": 1},
            "pull": {"maxMessages": 100},
            "create_token": {"resource": "telemetry"},
            "change_key": {"name": "taken over", "enabled": False},
            "rotate_key": {"graceSeconds": 0},
            "change_settings": {"visibilityTimeoutMs": 1},
            "put_route": {"queue": "ship"},
            "create_ban": {"source": "orders", "kind": "hard", "target": "orders", "command": "ship", "reason": "mine"},
            "put_quota": {"max": 1},
            "create_replay": {"from": "dead-letters", "queue": "orders", "reason": "mine", "dryRun": True},
            "put_alert_rule": {"events": "queue.*", "enabled": False},
            "move_messages": {"to": "ship"},
        }
        return None if route.body is None else some.get(route.handler.__name__, {})

    async def everything(self, *, is_measured: bool = False) -> list[Any]:
        """All resources of the tenant, as the tenant sees them; or what is measured about them, which changes by itself."""
        client, found = self.tenant.client, list[Any]()
        for route in ROUTES:
            is_own = isinstance(route.scope, Scope) and route.method in ("GET", "HEAD") and not _is_live(route)
            is_chosen = (route.handler.__name__ in _MEASUREMENTS) is is_measured
            if is_own and is_chosen and set(route.parameters) <= set(self.names):
                answer = await client.call(route.method, self.path(route.path))
                about = {name: value for name, value in answer.headers.items() if name.startswith("stream-")}
                found.append([route.method, route.path, about, _at_rest(answer.ok())])
        return found


_MEASUREMENTS = {"get_regions", "list_consumers", "list_publishers", "show_traffic", "get_telemetry_status"}
_MOVING = ("lastUsedAt", "oldestAgeMs", "inPerSecond", "outPerSecond", "from", "to")


def _at_rest(value: Any) -> Any:
    """Without fields that change over time."""
    if isinstance(value, dict):
        return {name: _at_rest(one) for name, one in value.items() if name not in _MOVING}
    return [_at_rest(one) for one in value] if isinstance(value, list) else value


@pytest.fixture
async def owner(gateway: Gateway, control: Gateway) -> Owner:
    tenant, marker = await gateway.tenant(), f"marker{uuid.uuid4().hex[:12]}"
    client = tenant.client
    queue = await tenant.queue("orders", visibilityTimeoutMs=3_600_000, retentionMs=987_654_321)
    for number in range(3):
        await tenant.publish(queue, f"{marker} {number}", headers={"x": marker}, correlationId=marker)
    [leased] = await tenant.pull(queue)
    wanted = {"name": marker, "scopes": ["read"], "allowedQueues": [marker]}
    key = (await client.post("/api/control/keys", wanted)).ok(201)["record"]
    secret = (await client.post("/api/control/jwt-secrets", {"name": marker})).ok(201)["record"]
    (await client.post("/v1/admin/settings", {"visibilityTimeoutMs": 41_234_567})).ok()
    invite = (await gateway.admin.post("/api/control/invites", {"note": marker})).ok(201)["invite"]
    stream = "orders/log"
    (await client.put(f"/v1/stream/{stream}", [marker, {"at": marker}])).ok(201)
    names = {"queue": "orders", "key": key["id"], "secret": secret["id"], "tenant": tenant.id, "invite": invite["id"]}
    names |= {"stream": stream, "project": tenant.id, "topic": "orders", "bucket": "orders", "bucket_key": "profile"}
    names |= {
        "service": "orders",
        "command": "ship",
        "source": f"{tenant.id}/orders",
        "ban": f"{tenant.id}.orders.warm.{tenant.id}.orders.ship",
    }
    (await client.put("/v1/services/orders", {"description": marker})).ok(201)
    (await client.put("/v1/queues/ship", {"maxAttempts": 1})).ok(201)
    (await client.put("/v1/routes/orders/ship", {"queue": "ship"})).ok(201)
    (await client.put("/v1/grants/orders/ship/orders")).ok(201)
    ban = {"source": "orders", "kind": "warm", "target": "orders", "command": "ship", "reason": marker}
    (await client.post("/v1/bans", ban)).ok(201)
    (await client.put("/v1/quotas/orders/ship/orders", {"max": 9_876_543})).ok(201)
    (await client.put("/v1/topics/orders", {"retentionMs": 987_654_321})).ok(201)
    new = {"subject": marker, "payload": marker, "headers": {"x": marker}}
    (await client.post("/v1/topics/orders/messages", new)).ok(201)
    (await client.post("/v1/buckets", {"name": "orders", "maxValueBytes": 98_765})).ok(201)
    (await client.put("/v1/buckets/orders/keys/profile", {"at": marker})).ok()
    (await client.put("/v1/alert-rules/orders", {"events": "queue.*", "reason": marker})).ok(201)
    replay = {"from": "dead-letters", "queue": "orders", "reason": marker, "dryRun": True}
    names |= {"rule": "orders", "replay": (await client.post("/v1/replays", replay)).ok(202)["id"]}

    async def alerts() -> list[Any]:  # of the ban
        return list((await client.get("/v1/alerts")).ok()["alerts"])

    names["alert"] = (await eventually(alerts))[0]["id"]
    return Owner(tenant, marker, names, leased["receiptId"])


@pytest.fixture
async def other_tenant(gateway: Gateway) -> AsyncIterator[Tenant]:
    yield await gateway.tenant(auto_create_queues=True)


def traces(owner: Owner, answer: Answer) -> list[str]:
    """Data of the owner in a response to another tenant."""
    seen = answer.body.decode() + repr(answer.headers)
    ours = (owner.marker, owner.tenant.id, owner.tenant.record.id, "987654321", "41234567")
    return [one for one in ours if one in seen]


async def test_a_tenant_cannot_access_resources_of_another(owner: Owner, other_tenant: Tenant) -> None:
    before = await owner.everything()
    assert owner.marker in repr(before) and len(before) >= 7
    assert [one[:2] for one in before if owner.marker in repr(one) and "{stream}" in one[1]] == [
        ["GET", "/v1/stream/{stream}"],
        ["GET", "/v1/{project}/stream/{stream}"],
    ]
    for _ in range(2):  # the second time it has a queue of the same name itself
        for route in ROUTES:
            if route.media == "text/event-stream" or route.scope is None:
                continue
            answer = await other_tenant.client.call(route.method, owner.path(route.path), owner.body(route))
            assert answer.status < 500 and traces(owner, answer) == [], (route.method, route.path, answer)
    assert await owner.everything() == before

    async def measured() -> str:  # once it has the owner's own requests
        found = repr(await owner.everything(is_measured=True))
        return found if owner.tenant.record.id in found else ""

    assert other_tenant.record.id not in await eventually(measured)


async def test_a_tenants_key_cannot_name_another_tenant(owner: Owner, other_tenant: Tenant) -> None:
    before = await owner.everything()
    posing = other_tenant.client.with_headers(**{TENANT_HEADER: owner.tenant.id})
    for route in ROUTES:
        if route.scope is not None:
            answer = await posing.call(route.method, owner.path(route.path), owner.body(route))
            assert answer.status == 403 and code_of(route, answer) in ("forbidden", None)
            assert traces(owner, answer) == []
    assert await owner.everything() == before


# One tenant at another's streams, which a path can name


STREAM_ROUTES = [route for route in ROUTES if "{stream}" in route.path]
LIVE = ("", "?offset=-1", "?offset=now", "?offset=-1&live=long-poll", "?offset=-1&live=sse")


async def other_clients(owner: Owner, other_tenant: Tenant) -> dict[str, Client]:
    """Credentials of others, each with as many permissions as possible."""
    gateway, client, name = other_tenant.gateway, other_tenant.client, owner.names["stream"]
    secret = (await client.post("/api/control/jwt-secrets", {"name": "mine"})).ok(201)["secret"]
    claims = {"sub": "user", "scope": "read write", "exp": int(time.time()) + 600}
    signed = gateway.with_key(jwt.encode(claims, secret, algorithm="HS256"))
    token = (await client.post("/v1/tokens", {"resource": f"stream/{name}"})).ok(201)["token"]
    found = {
        "key": client,
        "JWT": signed,
        "JWT for its own": signed.with_headers(**{TENANT_HEADER: other_tenant.id}),
        "token": gateway.with_key(token),
        "nobody": gateway.anonymous,
        "platform key for the stranger": gateway.admin.with_headers(**{TENANT_HEADER: other_tenant.id}),
        "platform key for nobody": gateway.admin.with_headers(**{TENANT_HEADER: NOBODY_IS}),
    }
    return found | {f"{who}, posing": one.with_headers(**{TENANT_HEADER: owner.tenant.id}) for who, one in found.items()}


def is_the_platforms(who: str, path: str) -> bool:
    """A platform key may name any tenant."""
    return who.startswith("platform") and (who.endswith("posing") or "{project}" in path)


@pytest.mark.parametrize("has_its_own", [False, True], ids=["without one of its own", "with one of the same name"])
async def test_other_credentials_cannot_access_a_stream(owner: Owner, other_tenant: Tenant, has_its_own: bool) -> None:
    before, path = await owner.everything(), f"/v1/stream/{owner.names['stream']}"
    for who, client in (await other_clients(owner, other_tenant)).items():
        for route in STREAM_ROUTES:
            if is_the_platforms(who, route.path):
                continue
            if has_its_own:
                (await other_tenant.client.call("PUT", path, ["mine"], headers={"Stream-Closed": "true"})).ok(201)
            for query in LIVE if route.method == "GET" else ("",):
                answer = await client.call(route.method, owner.path(route.path) + query, owner.body(route))
                assert answer.status < 500 and traces(owner, answer) == [], (who, route.method, route.path, answer)
                if "{project}" in route.path:
                    assert answer.status in (401, 403), (who, route.method, route.path, query, answer)
            await other_tenant.client.delete(path)
    assert await owner.everything() == before


async def test_a_stream_cannot_be_forked_by_another_tenant(owner: Owner, other_tenant: Tenant) -> None:
    name, before = owner.names["stream"], await owner.everything()
    sources = (
        f"/v1/{owner.tenant.id}/stream/{name}",
        f"{other_tenant.gateway.url}/v1/{owner.tenant.id}/stream/{name}",
        f"/v1/stream/{name}",
        f"/v1/stream/../{owner.tenant.id}/stream/{name}",
        f"/v1/{other_tenant.id}/stream/{name}",
        f"/v1/{other_tenant.id}/stream/..%2F..%2F{owner.tenant.id}%2Fstream/{name}",
    )
    for source in sources:
        for shape in ("/v1/stream/copy", f"/v1/{other_tenant.id}/stream/copy"):
            answer = await other_tenant.client.call("PUT", shape, headers={"Stream-Forked-From": source})
            assert answer.status in (400, 404) and owner.marker not in repr(answer)
    assert await owner.everything() == before


async def test_both_forms_of_a_path_reach_the_same_stream(owner: Owner) -> None:
    client, name = owner.tenant.client, owner.names["stream"]
    for path in (f"/v1/stream/{name}", f"/v1/{owner.tenant.id}/stream/{name}"):
        assert (await client.get(path)).ok()[0] == owner.marker
        assert (await client.post(path, [path])).status == 204
    assert len((await client.get(f"/v1/stream/{name}")).ok()) == 4


async def test_a_platform_key_acts_for_the_tenant_in_the_path(owner: Owner, other_tenant: Tenant) -> None:
    admin, name = other_tenant.gateway.admin, owner.names["stream"]
    for client in (admin, admin.with_headers(**{TENANT_HEADER: other_tenant.id})):
        assert (await client.get(f"/v1/{owner.tenant.id}/stream/{name}")).ok()[0] == owner.marker
    (await admin.get(f"/v1/{NOBODY_IS}/stream/{name}")).problem(404, "tenant-not-found")


async def test_a_refused_request_does_not_use_up_a_token(owner: Owner, other_tenant: Tenant) -> None:
    name = owner.names["stream"]
    token = (await owner.tenant.client.post("/v1/tokens", {"resource": f"stream/{name}", "once": True})).ok(201)["token"]
    client = other_tenant.gateway.with_key(token)
    (await client.get(f"/v1/{other_tenant.id}/stream/{name}")).problem(401, "unauthenticated")
    (await client.get(f"/v1/{owner.tenant.id}/stream/{name}/more")).problem(401, "unauthenticated")
    assert (await client.get(f"/v1/{owner.tenant.id}/stream/{name}")).ok()[0] == owner.marker
    (await client.get(f"/v1/{owner.tenant.id}/stream/{name}")).problem(401, "unauthenticated")


async def test_a_fork_needs_the_scope_to_read(owner: Owner) -> None:
    writer, name = await owner.tenant.another_key((Scope.WRITE,)), owner.names["stream"]
    fork = {"Stream-Forked-From": f"/v1/stream/{name}", "Stream-Public": "true", "Content-Type": "application/json"}
    answer = await writer.client.call("PUT", "/v1/stream/copy", headers=fork)
    assert "'read'" in answer.problem(403, "forbidden")["detail"]
    narrow = await owner.tenant.another_key(allowed_streams=("copy",))
    (await narrow.client.call("PUT", "/v1/stream/copy", headers=fork)).problem(403, "forbidden")
    both = await owner.tenant.another_key((Scope.WRITE, Scope.READ))
    (await both.client.call("PUT", "/v1/stream/copy", headers=fork)).ok(201)


async def test_queries_for_another_tenant_find_nothing(owner: Owner, other_tenant: Tenant) -> None:
    client = other_tenant.client
    for query in (f"tenant={owner.tenant.id}", "tenant=_platform"):
        (await client.get(f"/api/control/audit?{query}")).problem(403, "forbidden")
    (await client.get("/api/control/keys?platform=true")).problem(403, "forbidden")
    for query in (f"actor={owner.tenant.record.id}", f"target={owner.names['key']}", "action=*"):
        answer = await client.get(f"/api/control/audit?{query}&limit=1000")
        own = {entry["tenant"] for entry in answer.ok()["entries"]}  # of the attempts above
        assert own <= {other_tenant.id} and traces(owner, answer) == []
    for query in ("cursor=0.0000000000000000", "limit=1000"):
        answer = await client.get(f"/api/control/keys?{query}")
        assert [key["tenant"] for key in answer.ok()["keys"]] == [other_tenant.id] and traces(owner, answer) == []


async def test_the_events_after_an_id_of_a_tenant_are_its_own(owner: Owner, other_tenant: Tenant) -> None:
    await other_tenant.queue("mine")
    async with other_tenant.client.events("/v1/telemetry/stream") as reader:
        await other_tenant.publish("/v1/queues/mine", 1)
        await reader.take(1)
    await owner.tenant.publish("/v1/queues/orders", owner.marker)
    await other_tenant.publish("/v1/queues/mine", 2)
    path = f"/v1/telemetry/stream?lastEventId={reader.last_event_id}"
    async with other_tenant.client.events(path) as reader:
        seen = await reader.take(1)
    assert {event.json["tenant"] for event in seen} == {other_tenant.id}
    assert owner.marker not in repr(seen)
    token = (await other_tenant.client.post("/v1/tokens", {"resource": "telemetry"})).ok(201)["token"]
    async with other_tenant.gateway.anonymous.events(f"{path}&bearer={token}", {TENANT_HEADER: owner.tenant.id}) as reader:
        assert {event.json["tenant"] for event in await reader.take(1)} == {other_tenant.id}


async def test_keys_are_refused_by_the_state_of_the_tenant_record(gateway: Gateway) -> None:
    """The state in the record counts, not the API call that wrote it."""
    tenant = await gateway.tenant()
    gone = TenantRecord(id=tenant.id, state=TenantState.DELETING, created_at_ms=0, updated_at_ms=0)
    await gateway.node.access.tenants._table.change(tenant.id, lambda _: gone)
    (await tenant.client.get("/v1/whoami")).problem(403, "tenant-disabled")
