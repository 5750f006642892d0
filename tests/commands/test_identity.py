"""Who may send as which service: keys, emit tokens, trust, tenants."""

import itertools
from dataclasses import replace

import pytest

from postroad.kernel.identity import Scope
from tests.commands.senders import Sender, envelope, grant, outcomes, register_sender, register_target
from tests.gateway import Client, Gateway, ShiftedClock, Tenant


async def emit_token(tenant: Tenant, service: str = "billing", **body: object) -> str:
    token: str = (await tenant.client.post(f"/v1/services/{service}/token", body or None)).ok(201)["token"]
    assert token.startswith("pr_emit_")
    return token


async def send(client: Client, sender: Sender, service: str | None, *, target: str = "bot") -> str:
    """Send a command that is validly signed with the secret of `sender`; return the code of the refusal, or the source."""
    headers = {} if service is None else {"X-Postroad-Service": service}
    answer = await client.post("/v1/commands", envelope(sender.secret, target=target), headers=headers)
    return "delivered" if answer.status == 202 else str(answer.json["code"])


async def test_no_key_can_send_as_a_service_that_does_not_trust_it(gateway: Gateway) -> None:
    """(key x service x claimed source), within a tenant and across tenants. Requirements 19, 145, 166, 172, 174"""
    acme, other = await gateway.tenant(), await gateway.tenant()
    queue = await register_target(acme)
    await grant(acme, f"{acme.id}/*")
    await grant(acme, f"{other.id}/*")
    first, second = await register_sender(acme, "first"), await register_sender(await acme.another_key(), "second")
    foreign = await register_sender(other, "first")
    keys = {"first": first.tenant, "second": second.tenant, "foreign": foreign.tenant}
    secrets = {"first": first, "second": second, "foreign": foreign}
    target = f"{acme.id}/bot"
    for (key, holder), claimed, (signer, secret) in itertools.product(keys.items(), ("first", "second", "none"), secrets.items()):
        found = await send(holder.client, secret, claimed, target=target)
        is_trusted = (key, claimed) in {("first", "first"), ("second", "second"), ("foreign", "first")}
        expected = "source-refused" if not is_trusted else "delivered" if signer == key else "command-invalid"
        assert found == expected, (key, claimed, signer)
    sources = [one["headers"]["Snavio-Source"] for one in await acme.pull(queue, 10)]
    assert sorted(sources) == sorted([first.source, second.source, foreign.source])


async def test_a_refused_sender_has_no_event(gateway: Gateway, tenant: Tenant) -> None:
    await register_target(tenant)
    sender = await register_sender(tenant)
    stranger = await tenant.another_key()
    answer = await stranger.client.post("/v1/commands", envelope(sender.secret), headers={"X-Postroad-Service": "billing"})
    answer.problem(403, "source-refused")
    assert await tenant.events("COMMANDS") == []
    (await tenant.client.post("/v1/commands", envelope(sender.secret))).problem(400, "invalid-parameter")
    assert await send(tenant.client, sender, "a b") == "invalid-parameter"
    platform = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    assert await send(platform, sender, "billing") == "source-refused"


async def test_an_emit_token_sends_for_its_service_and_nothing_else(gateway: Gateway, tenant: Tenant) -> None:
    """Requirements 17, 168, 169, 171"""
    await register_target(tenant)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    await register_sender(tenant, "mailer")
    client = gateway.with_key(await emit_token(tenant))
    assert await send(client, sender, None) == "delivered"
    assert await send(client, sender, "billing") == "delivered"
    assert await send(client, sender, "mailer") == "source-refused"
    config = (await client.get("/v1/tenant-config")).ok()
    assert [one["name"] for one in config["services"]] == ["billing"]
    for method, path in (
        ("GET", "/v1/services"),
        ("POST", "/v1/queues/bot-post/messages"),
        ("POST", "/v1/services/billing/token"),
        ("GET", "/v1/whoami"),
        ("PUT", "/v1/services/billing"),
    ):
        assert (await client.call(method, path, {})).status == 401, path
    anonymous = await gateway.anonymous.get(f"/v1/tenant-config?bearer={client.headers['Authorization'][7:]}")
    assert anonymous.status == 401
    named = client.with_headers(**{"X-Postroad-Tenant": (await gateway.tenant()).id})
    assert await send(named, sender, None) == "unauthenticated"


async def test_a_token_is_only_for_trusted_keys_that_may_publish(gateway: Gateway, tenant: Tenant) -> None:
    await register_sender(tenant)
    stranger = await tenant.another_key()
    (await stranger.client.post("/v1/services/billing/token")).problem(403, "source-refused")
    reader = await tenant.another_key((Scope.READ,))
    (await reader.client.post("/v1/services/billing/token")).problem(403, "forbidden")
    (await tenant.client.post("/v1/services/none/token")).problem(404, "service-not-found")
    (await gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id}).post("/v1/services/billing/token")).problem(
        403, "source-refused"
    )
    for seconds in (59, 3601):
        answer = await tenant.client.post("/v1/services/billing/token", {"expiresInSeconds": seconds})
        answer.problem(422, "invalid-body")


@pytest.mark.parametrize("end", ["expiry", "trust", "service", "key", "rotation", "altered", "disabled"])
async def test_a_token_ends_with_what_it_depends_on(gateway: Gateway, tenant: Tenant, clock: ShiftedClock, end: str) -> None:
    """Requirements 169"""
    await register_target(tenant)
    await grant(tenant, "billing")
    holder = await tenant.another_key()
    (await tenant.client.put("/v1/services/billing", {"trustedKeys": [holder.record.id]})).ok(201)
    sender = Sender(holder, "billing", (await holder.client.get("/v1/tenant-config")).ok()["services"][0]["secrets"][0]["secret"])
    token = await emit_token(holder)
    client = gateway.with_key(token)
    assert await send(client, sender, None) == "delivered"
    if end == "expiry":
        clock.ahead_ms = 15 * 60_000
    elif end == "trust":
        (await tenant.client.put("/v1/services/billing", {})).ok()
    elif end == "service":
        (await tenant.client.delete("/v1/services/billing")).ok(204)
        (await tenant.client.put("/v1/services/billing", {"trustedKeys": [holder.record.id]})).ok(201)
    elif end == "key":
        (await tenant.client.delete(f"/api/control/keys/{holder.record.id}")).ok(204)
    elif end == "rotation":
        (await tenant.client.post(f"/api/control/keys/{holder.record.id}/rotate", {"graceSeconds": 0})).ok()
    elif end == "altered":
        client = gateway.with_key(token[:-2] + ("AA" if token[-2:] != "AA" else "BB"))
    else:
        (await gateway.admin.patch(f"/api/control/tenants/{tenant.id}", {"enabled": False})).ok()
    assert await send(client, sender, None) == "unauthenticated"


async def test_a_tenant_may_require_emit_tokens(gateway: Gateway, tenant: Tenant) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    (await tenant.client.post("/v1/admin/settings", {"commandsByKey": False})).ok()
    assert await send(tenant.client, sender, "billing") == "source-refused"
    assert await send(gateway.with_key(await emit_token(tenant)), sender, None) == "delivered"


async def test_a_key_is_restricted_to_services(gateway: Gateway, tenant: Tenant) -> None:
    await register_target(tenant)
    await grant(tenant, f"{tenant.id}/*")
    narrow = await tenant.another_key(allowed_services=("mail*",))
    for name in ("billing", "mailer"):
        (await tenant.client.put(f"/v1/services/{name}", {"trustedKeys": [narrow.record.id]})).ok(201)
    config = (await narrow.client.get("/v1/tenant-config")).ok()["services"]
    assert [one["name"] for one in config] == ["mailer"]
    sender = Sender(narrow, "mailer", config[0]["secrets"][0]["secret"])
    assert await send(narrow.client, sender, "mailer") == "delivered"
    assert await send(narrow.client, replace(sender, service="billing"), "billing") == "source-refused"
    (await narrow.client.post("/v1/services/billing/token")).problem(403, "forbidden")
    assert [one["source"] for one in await outcomes(tenant)] == [f"{tenant.id}/mailer"]
