"""Records that another client of the NATS server wrote, or that are damaged: no 5xx, nothing delivered, nothing stuck."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.commands.capability import CommandsCapability
from postroad.commands.records import ROUTES_BUCKET, SERVICES_BUCKET, RouteRecord, ServiceRecord
from postroad.commands.registry_view import known_route
from tests.commands.senders import grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


@pytest.mark.parametrize("junk", [b"", b"junk", b"[]", b"{}", b'{"v":1,"tenant":1}', b"\xff"])
async def test_an_unreadable_route_refuses_its_commands_and_can_be_replaced(
    gateway: Gateway, tenant: Tenant, junk: bytes
) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    platform = gateway.node.platform
    await platform.bucket(ROUTES_BUCKET).put(f"{tenant.id}.bot.post", junk)
    commands = platform.use(CommandsCapability)
    await eventually(lambda: commands.route_table.get(f"{tenant.id}.bot.post") is None)
    (await sender.send()).problem(404, "route-missing")
    assert [one["reason"] for one in await outcomes(tenant)] == ["route-missing"]
    assert (await tenant.stats("/v1/queues/bot-post"))["ready"] == 0


@pytest.mark.parametrize("junk", [b"junk", b"{}"])
async def test_an_unreadable_service_sends_nothing(gateway: Gateway, tenant: Tenant, junk: bytes) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    platform = gateway.node.platform
    await platform.bucket(SERVICES_BUCKET).put(f"{tenant.id}.billing", junk)
    commands = platform.use(CommandsCapability)
    await eventually(lambda: commands.service_table.get(f"{tenant.id}.billing") is None)
    (await sender.send()).problem(403, "source-refused")
    assert await outcomes(tenant) == []


async def test_keys_that_no_name_can_have_and_damaged_secrets_are_left_alone(gateway: Gateway, tenant: Tenant) -> None:
    sender = await register_sender(tenant)
    await register_target(tenant)
    await grant(tenant, "billing")
    platform = gateway.node.platform
    commands = platform.use(CommandsCapability)
    for bucket in (ROUTES_BUCKET, SERVICES_BUCKET):
        for key in (tenant.id, f"{tenant.id}.a.b.c.d", f"{tenant.id}._zz._q"):
            await platform.bucket(bucket).put(key, b"junk")
    record = commands.service_table.get(f"{tenant.id}.billing")
    assert record is not None
    damaged = tuple(msgspec.structs.replace(one, locked="not base64!") for one in record.secrets)
    await platform.bucket(SERVICES_BUCKET).put(
        f"{tenant.id}.billing", msgspec.json.encode(msgspec.structs.replace(record, secrets=damaged))
    )

    def is_seen() -> bool:
        current = commands.service_table.get(f"{tenant.id}.billing")
        return current is not None and current.secrets == damaged

    await eventually(is_seen)
    await commands.services.maintain_secrets()
    assert (await sender.send()).problem(400, "command-invalid")["reason"] == "version-unknown"
    (await tenant.client.post("/v1/services/billing/secrets/rotate")).ok()
    current = (await tenant.client.get("/v1/tenant-config")).ok()["services"][0]["secrets"][0]
    assert current["versionId"] == "hmac-v2"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_ROUTE = {"v": 1, "tenant": "a", "service": "b", "command": "c", "queue": "q", "createdAtMs": 0, "updatedAtMs": 0}


@given(field=st.sampled_from([*_ROUTE, "grants", "revoked", "expiresAtMs", "sensitivity", "other"]), value=_JSON)
def test_a_route_with_any_field_is_read_or_refused(field: str, value: Any) -> None:
    """And what is read can be used."""
    try:
        text = msgspec.json.encode({**_ROUTE, field: value})
        record = msgspec.json.decode(text, type=RouteRecord)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return
    known_route(record).grant("a/b", 0)


def test_records_of_a_later_version_can_be_read() -> None:
    later = {**_ROUTE, "v": 2, "rateLimit": {"max": 5}, "grants": [["a/b", 1, "key", None, "low", "more"]]}
    record = msgspec.json.decode(msgspec.json.encode(later), type=RouteRecord)
    assert record.grants[0].sensitivity == "low"
    service = {"tenant": "a", "name": "b", "incarnation": "i", "secrets": [], "createdAtMs": 0, "updatedAtMs": 0, "x": 1}
    assert msgspec.json.decode(msgspec.json.encode(service), type=ServiceRecord).trusted_keys == ()
