"""Search of what happened to commands."""

from typing import Any

import pytest

from postroad.commands import search
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.identity import Scope
from tests.commands.senders import Sender, envelope, grant, register_sender, register_target
from tests.gateway import Gateway, Tenant


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    return await register_sender(tenant)


async def find(tenant: Tenant, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(f"/v1/commands?{query}")).ok()
    return found


async def _traffic(tenant: Tenant, sender: Sender) -> list[str]:
    """Ids of a delivered, a denied and an invalid command."""
    await register_target(tenant)
    await grant(tenant, "billing")
    delivered = (await sender.send(payload=b'{ "n": 1 }')).ok(202)["commandId"]
    bodies = [envelope(sender.secret, name="none"), envelope(sender.secret, timestamp=rfc3339(now_ms() - 600_000))]
    for body in bodies:
        assert (await sender.client.post("/v1/commands", body)).status in (400, 404)
    return [delivered, *(body["metadata"]["id"] for body in bodies)]


async def test_each_condition_finds_its_commands(tenant: Tenant, sender: Sender) -> None:
    delivered, missing, late = ids = await _traffic(tenant, sender)
    second = await register_sender(tenant, "mailer")
    (await second.send()).problem(403, "acl-deny")
    page = await find(tenant)
    assert [one["commandId"] for one in page["commands"]][:3] == ids
    assert (page["scanned"], page["matched"], page["nextCursor"]) == (4, 4, None)

    async def ids_of(query: str) -> list[str]:
        return [one["commandId"] for one in (await find(tenant, query))["commands"]]

    assert await ids_of(f"id={delivered.upper()}") == [delivered]
    assert await ids_of("outcome=failed&source=billing") == [missing]
    assert await ids_of("reason=timestamp-expired") == [late]
    assert await ids_of("command=none") == [missing]
    assert await ids_of(f"target={tenant.id}%2Fbot&source=billing") == ids
    assert await ids_of("target=bot&source=billing&outcome=delivered") == [delivered]
    assert len(await ids_of(f"source={tenant.id}%2Fmailer")) == 1
    assert await ids_of(f"from={rfc3339(now_ms() + 60_000)}") == []
    assert await ids_of(f"to={rfc3339(now_ms() - 60_000)}") == []
    assert len(await ids_of(f"from={rfc3339(now_ms() - 60_000)}&to={rfc3339(now_ms() + 60_000)}")) == 4


async def test_a_command_is_shown_with_what_is_known(tenant: Tenant, sender: Sender) -> None:
    delivered, *_ = await _traffic(tenant, sender)
    [plain] = (await find(tenant, f"id={delivered}"))["commands"]
    assert (plain["outcome"], plain["source"], plain["target"], plain["command"]) == (
        "delivered", sender.source, f"{tenant.id}/bot", "post"
    )  # fmt: skip
    assert (plain["path"], plain["payloadBytes"]) == ("fast", 10) and "payload" not in plain
    [whole] = (await find(tenant, f"id={delivered}&bodyMax=10"))["commands"]
    assert whole["payload"] == '{ "n": 1 }' and "payloadStart" not in whole
    [cut] = (await find(tenant, f"id={delivered}&bodyMax=3"))["commands"]
    assert cut["payloadStart"] == '{ "' and "payload" not in cut


async def test_pages_continue_within_a_frame(tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    await register_target(tenant)
    await grant(tenant, "billing")
    batch = {"commands": [envelope(sender.secret, payload=b"%d" % n) for n in range(25)]}
    (await sender.client.post("/v1/commands/batch", batch)).ok()
    everything = [one["commandId"] for one in (await find(tenant, "limit=100"))["commands"]]
    assert sorted(everything) == sorted(one["metadata"]["id"] for one in batch["commands"])
    for limit, scanned_max in ((4, 20_000), (100, 7)):
        monkeypatch.setattr(search, "_SCANNED_MAX", scanned_max)
        found: list[str] = []
        cursor = ""
        while True:
            page = await find(tenant, f"limit={limit}{cursor}")
            assert page["scanned"] <= scanned_max and page["matched"] <= limit
            found += [one["commandId"] for one in page["commands"]]
            if page["nextCursor"] is None:
                break
            cursor = f"&cursor={page['nextCursor']}"
        assert found == everything


async def test_tenants_and_restricted_keys_find_their_own_commands(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    await _traffic(tenant, sender)
    other = await gateway.tenant()
    assert (await find(other))["commands"] == []
    page = await find(tenant, "limit=1")
    (await other.client.get(f"/v1/commands?cursor={page['nextCursor']}")).problem(400, "invalid-parameter")
    (await tenant.client.get("/v1/commands?cursor=abc")).problem(400, "invalid-parameter")
    sending = await tenant.another_key((Scope.PUBLISH,))
    (await sending.client.get("/v1/commands")).problem(403, "forbidden")


@pytest.mark.parametrize("query", ["outcome=lost", "source=a/b/c", "from=yesterday", "limit=0", "bodyMax=-1", "other=1"])
async def test_an_invalid_query_is_refused(tenant: Tenant, query: str) -> None:
    (await tenant.client.get(f"/v1/commands?{query}")).problem(400, "invalid-parameter")
