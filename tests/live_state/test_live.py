"""`GET /v1/live` on a running gateway."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from postroad.container import Role
from postroad.kernel.identity import Scope
from postroad.queues import live_queues
from tests.access.test_web_sessions import sign_in
from tests.commands.senders import grant, register_sender, register_target
from tests.gateway import Client, EventReader, Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

LIVE = "/v1/live?watch="


class LiveClient:
    """Applies the messages of a stream, as a page does."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self.sections: dict[str, dict[str, Any]] = {}
        self.snapshot: dict[str, Any] = {}
        self.messages = 0

    async def next(self, seconds: float = 15) -> bool:
        event = await self._reader.next(seconds)
        if event is None:
            return False
        self.messages += 1
        if event.event == "snapshot":
            assert not self.snapshot
            self.snapshot = event.json
        else:
            assert event.event == "changes" and self.snapshot
        for name, section in event.json["sections"].items():
            rows = self.sections.setdefault(name, {})
            if section.get("reset"):
                rows.clear()
            rows.update(section["rows"])
            for key in section.get("removed", ()):
                rows.pop(key, None)
        return True

    async def until(self, is_met: Any, seconds: float = 20) -> None:
        async with asyncio.timeout(seconds):
            while not is_met():
                assert await self.next(), "the stream ended"


@asynccontextmanager
async def live(client: Client, watch: str, path: str = LIVE) -> AsyncIterator[LiveClient]:
    async with client.events(path + watch) as reader:
        found = LiveClient(reader)
        assert await found.next()
        yield found


async def test_a_stream_starts_with_the_state(tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    await tenant.publish(queue, 1)
    await tenant.queue("emails")
    async with live(tenant.client, "queues,tasks,health,flow,changes,subscriptions,routes") as state:
        assert state.sections["queues"].keys() == {"orders", "emails"}
        orders = state.sections["queues"]["orders"]
        assert (orders["ready"], orders["paused"], orders["name"]) == (1, False, "orders")
        assert orders["oldestAt"] and state.sections["queues"]["emails"]["oldestAt"] is None
        assert state.sections["health"]["engine"] == {"name": "engine", "ok": True, "detail": ""} or state.sections["health"]
        assert state.sections["health"]["engine"]["ok"]
        actions = [one["action"] for one in state.sections["changes"].values()]
        assert actions.count("queue.create") == 2 or len(actions) >= 2
        assert state.sections["tasks"] == state.sections["routes"] == state.sections["subscriptions"] == {}
        assert "refused" not in state.snapshot


async def test_rows_on_screen_follow_the_queue(tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    async with live(tenant.client, "queues:orders") as state:
        rows = state.sections["queues"]
        await tenant.publish(queue, 1)
        await state.until(lambda: rows["orders"]["ready"] == 1)
        [message] = await tenant.pull(queue)
        await state.until(lambda: rows["orders"]["leased"] == 1 and rows["orders"]["ready"] == 0)
        await tenant.ack(queue, message["receiptId"])
        await state.until(lambda: rows["orders"]["leased"] == 0)
        (await tenant.client.post(f"{queue}/pause", {"reason": "the crm is down"})).ok()
        await state.until(lambda: rows["orders"]["paused"])
        assert rows["orders"]["pauseReason"] == "the crm is down"
        (await tenant.client.delete(queue)).ok(204)
        await state.until(lambda: "orders" not in rows)


async def test_only_named_rows_are_sent(tenant: Tenant) -> None:
    for name in ("a", "b", "c"):
        await tenant.queue(name)
    async with live(tenant.client, "queues:a;c;missing") as state:
        assert state.sections["queues"].keys() == {"a", "c"}
        await tenant.queue("missing")
        await state.until(lambda: "missing" in state.sections["queues"])


async def test_a_restricted_key_sees_its_queues_only(tenant: Tenant) -> None:
    narrow = await tenant.another_key((Scope.READ,), allowed_queues=("mine-*",))
    await tenant.queue("mine-1")
    theirs = await tenant.queue("theirs")
    async with live(narrow.client, "queues:*;theirs;mine-1,flow,tasks") as state:
        assert state.sections["queues"].keys() == {"mine-1"}
        await tenant.publish(theirs, 1)
        await tenant.pull(theirs)
        (await tenant.client.delete(theirs)).ok(204)
        await tenant.queue("mine-2")
        await state.until(lambda: "mine-2" in state.sections["queues"])
        assert "theirs" not in repr(state.snapshot) + repr(state.sections)


async def test_a_key_of_some_services_sees_flows_between_these_only(tenant: Tenant) -> None:
    """Those that one of its services sends or receives, as in the stream of events."""
    for target in ("bot", "hidden"):
        await register_target(tenant, target)
    for source in ("billing", "crm"):
        sender = await register_sender(tenant, source)
        for target in ("bot", "hidden"):
            await grant(tenant, sender.source, target)
            (await sender.send(target=target)).ok(202)
    narrow = await tenant.another_key((Scope.READ,), allowed_services=("bot", "crm"))
    async with live(tenant.client, "flow") as everything, live(narrow.client, "flow") as state:
        pairs = {
            f"source:{tenant.id}/{source}>route:{target}/post" for source in ("billing", "crm") for target in ("bot", "hidden")
        }
        await everything.until(lambda: pairs <= everything.sections["flow"].keys())
        seen = pairs - {f"source:{tenant.id}/billing>route:hidden/post"}
        await state.until(lambda: seen <= state.sections["flow"].keys())
        assert not state.sections["flow"].keys() & pairs - seen


async def test_tenants_do_not_see_each_other(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    await other.queue("secret-queue")
    async with live(tenant.client, "queues,flow,changes,tasks") as state:
        await tenant.queue("own")
        await state.until(lambda: "own" in state.sections["queues"])
        assert state.sections["queues"].keys() == {"own"}
        assert "secret-queue" not in repr(state.sections)


async def test_sections_need_their_scopes(gateway: Gateway, tenant: Tenant) -> None:
    reader, publisher = await tenant.another_key((Scope.READ,)), await tenant.another_key((Scope.PUBLISH,))
    async with live(reader.client, "queues,changes") as state:
        assert state.snapshot["refused"] == {"changes": "admin"} and "changes" not in state.sections
    (await reader.client.get(LIVE + "changes")).problem(403, "forbidden")
    (await publisher.client.get(LIVE + "queues")).problem(403, "forbidden")
    (await tenant.client.get(LIVE + "nonsense")).problem(400, "invalid-parameter")
    (await tenant.client.get("/v1/live")).problem(400, "invalid-parameter")
    (await tenant.client.get("/api/control/live?watch=tenants")).problem(403, "forbidden")


async def test_flows_show_who_publishes_and_consumes(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    shop, mailer = await tenant.another_key(), await tenant.another_key()
    async with live(tenant.client, "flow") as state:
        for number in range(20):
            await shop.publish(queue, number)
        for message in await mailer.pull(queue, 20):
            await mailer.ack(queue, message["receiptId"])
        wanted = {f"key:{shop.record.id}>queue:orders", f"queue:orders>key:{mailer.record.id}"}
        await state.until(lambda: wanted <= state.sections["flow"].keys())
        flow = state.sections["flow"][f"key:{shop.record.id}>queue:orders"]
        assert flow["perSecond"] > 0 and flow["sourceName"] == "a test's" and flow["targetName"] == "orders"


async def test_changes_of_the_registry_appear(tenant: Tenant) -> None:
    async with live(tenant.client, "changes") as state:
        queue = await tenant.queue("orders")
        (await tenant.client.post(f"{queue}/pause", {"reason": "maintenance"})).ok()

        def actions() -> set[str]:
            return {one["action"] for one in state.sections["changes"].values() if one["target"] == "orders"}

        await state.until(lambda: "queue.pause" in actions())
        assert all(one["actorKeyId"] == tenant.record.id for one in state.sections["changes"].values())


async def test_a_stream_ends_with_its_session_and_its_key(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    key = await tenant.another_key()
    browser = await sign_in(gateway, key.key)
    elsewhere = Client(second_gateway.url, second_gateway.session, browser.headers)
    async with live(elsewhere, "queues,health") as state:
        (await tenant.client.patch(f"/api/control/keys/{key.record.id}", {"enabled": False})).ok()
        async with asyncio.timeout(1):
            while await state.next():
                pass


async def test_streams_of_a_tenant_share_their_reads(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    async with live(tenant.client, "queues:orders") as one, live(tenant.client, "queues:orders") as other:
        await tenant.publish(queue, 1)
        for state in (one, other):
            rows = state.sections["queues"]
            await state.until(lambda rows=rows: rows["orders"]["ready"] == 1)


async def test_the_platform_sees_tenants_and_processes(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url, sample_seconds=1), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        async with live(gateway.admin, "tenants,processes", "/api/control/live?watch=") as state:
            assert state.sections["tenants"][tenant.id]["state"] == "ready"
            await tenant.queue("orders")
            await state.until(lambda: state.sections["tenants"][tenant.id]["queues"] == 1)
            await state.until(lambda: any(one["role"] == "all" for one in state.sections["processes"].values()))


async def test_samples_fill_the_snapshot_and_other_rows(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url, sample_seconds=1), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue("orders")
        await tenant.publish(queue, 1)

        async def samples() -> list[list[float]]:
            async with live(tenant.client, "queues") as state:
                section = state.snapshot["sections"]["queues"]
                assert section["sampleFields"][0] == "ready"
                found: list[list[float]] = section["samples"].get("orders", [])
                return found

        async def has_samples() -> bool:
            found = await samples()
            return len(found) >= 2 and found[-1][1] == 1

        await eventually(has_samples, 20)
        found = await samples()
        assert [one[0] for one in found] == sorted(one[0] for one in found)
        async with live(tenant.client, "queues") as state:  # not on screen: from the samples
            await tenant.publish(queue, 2)
            await state.until(lambda: state.sections["queues"]["orders"]["ready"] == 2)


async def test_queues_on_screen_have_samples_before_busier_ones(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_queues, "_SAMPLES_QUEUES_MAX", 1)
    async with running_gateway(gateway_settings(own_server.url, sample_seconds=1), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        busy, quiet = await tenant.queue("busy"), await tenant.queue("quiet")
        for queue in (busy, busy, quiet):
            await tenant.publish(queue, 1)

        async def sampled(watch: str) -> set[str]:
            async with live(tenant.client, watch) as state:
                return set(state.snapshot["sections"]["queues"]["samples"])

        async def has_samples() -> bool:
            return await sampled("queues") == {"busy"} and await sampled("queues:quiet") == {"quiet"}

        await eventually(has_samples, 20)
        assert await sampled("queues:*;quiet") == {"quiet"}
