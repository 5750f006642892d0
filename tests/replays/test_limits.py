"""Replays beside rate limits and strict deduplication."""

from typing import Any

import pytest

from postroad.container import Role
from postroad.kernel.errors import EngineUnavailable
from postroad.replays.capability import ReplaysCapability
from postroad.replays.records import ReplayRecord
from postroad.replays.sender import ReplaySender
from postroad.replays.sources import Item
from tests.commands.senders import grant, register_sender, register_target
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.replays.selection import answer
from tests.replays.test_replays import messages, reached, replay, shown
from tests.servers import Server
from tests.waiting import eventually


async def test_a_strict_route_answers_duplicate_within_its_time(gateway: Gateway, tenant: Tenant) -> None:
    queue, sender = await register_target(tenant, dedupe_mode="strict"), await register_sender(tenant)
    await grant(tenant, "billing")
    for _ in range(4):
        (await sender.send()).ok(202)
    await messages(tenant, queue)
    made = await replay(tenant)
    await answer(gateway, tenant, made["id"])
    counts = (await reached(tenant, made, "done"))["counts"]
    assert (counts["duplicates"], counts["delivered"], counts["refused"], counts["remaining"]) == (4, 0, {}, 0)
    assert await messages(tenant, queue) == []
    again = await replay(tenant, keepIds=False)
    await answer(gateway, tenant, again["id"])
    assert (await reached(tenant, again, "done"))["counts"]["delivered"] == 4


async def test_a_limit_delays_a_replay_and_refuses_nothing(gateway: Gateway, tenant: Tenant) -> None:
    queue, sender = await register_target(tenant), await register_sender(tenant)
    await grant(tenant, "billing")
    for _ in range(8):
        (await sender.send()).ok(202)
    await messages(tenant, queue)
    limit = {"max": 4, "interval_seconds": 1}
    (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post", "rate_limit": limit})).ok()
    made = await replay(tenant)
    await answer(gateway, tenant, made["id"])
    counts = (await reached(tenant, made, "done"))["counts"]
    assert (counts["delivered"], counts["refused"], counts["remaining"]) == (8, {}, 0)
    assert len(await messages(tenant, queue)) == 8


async def test_a_replay_leaves_half_of_a_limit_to_live_commands(own_server: Server) -> None:
    """In an interval of a day: the replay stops at its half, live commands get all of the other."""
    async with running_gateway(gateway_settings(own_server.url), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        queue, sender = await register_target(tenant), await register_sender(tenant)
        await grant(tenant, "billing")
        for _ in range(8):
            (await sender.send()).ok(202)
        await messages(tenant, queue)
        limit = {"max": 10, "interval_seconds": 86_400}
        (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post", "rate_limit": limit})).ok()
        made = await replay(tenant)
        await answer(gateway, tenant, made["id"])

        async def is_throttled() -> bool:
            return (await shown(tenant, made))["throttledUntil"] is not None

        await eventually(is_throttled)
        assert [(await sender.send()).status for _ in range(6)] == [202] * 5 + [429]
        waiting = await shown(tenant, made)
        assert (waiting["state"], waiting["counts"]["refused"]) == ("running", {})
        assert (waiting["counts"]["delivered"], waiting["counts"]["remaining"]) == (5, 3)
        found = await messages(tenant, queue)
        assert sum("Snavio-Replay-Id" in one["headers"] for one in found) == 5 and len(found) == 10
        (await tenant.client.delete(f"/v1/replays/{made['id']}")).ok(202)


async def test_a_full_queue_costs_one_event_for_each_attempt(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is an event of the sender: a replay that waits tries one command, not all."""
    monkeypatch.setattr("postroad.replays.sender._FULL_MS", 1)
    monkeypatch.setattr("postroad.replays.sender._THROTTLE_MS_MIN", 1)
    queue, sender = await register_target(tenant), await register_sender(tenant)
    await grant(tenant, "billing")
    for _ in range(30):
        (await sender.send()).ok(202)
    await messages(tenant, queue)
    (await tenant.client.put(f"{queue}", {"maxMessages": 1})).ok()  # it has 30 leased ones
    rounds: list[int] = []
    save = ReplaySender._save

    async def counting(self: ReplaySender, *values: Any) -> ReplayRecord:
        rounds.append(1)
        return await save(self, *values)

    monkeypatch.setattr(ReplaySender, "_save", counting)
    made = await replay(tenant)
    await answer(gateway, tenant, made["id"])
    await eventually(lambda: len(rounds) >= 5)
    (await tenant.client.put(f"{queue}", {"maxMessages": 1000})).ok()
    counts = (await reached(tenant, made, "done"))["counts"]
    assert (counts["delivered"], counts["refused"]) == (30, {})
    failed = [one for one in await tenant.events("COMMANDS") if one["event"] == "snavio.command.failed"]
    assert 5 <= len(failed) <= len(rounds)


async def test_an_interrupted_replay_to_a_strict_route_counts_what_it_delivered(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt is not a duplicate, and the dead letter is removed."""
    queue, sender = await register_target(tenant), await register_sender(tenant)
    await grant(tenant, "billing")
    (await sender.send()).ok(202)
    [message] = await tenant.pull(queue)
    dead = {"receiptId": message["receiptId"], "action": "dlq", "reason": "down"}
    (await tenant.client.post(f"{queue}/nack", dead)).ok()
    capability = gateway.node.platform.use(ReplaysCapability)
    interrupted: list[Item] = []
    source = capability.sender._sources["dead-letters"]
    delivered = type(source).delivered

    async def failing_once(self: Any, record: ReplayRecord, item: Item) -> None:
        if record.tenant == tenant.id:
            interrupted.append(item)
            if len(interrupted) == 1:
                raise EngineUnavailable("the engine was away", retry_after=0)
        await delivered(self, record, item)

    monkeypatch.setattr(type(source), "delivered", failing_once)  # another gateway of this process may be the leader
    (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post", "dedupe_mode": "strict"})).ok()
    body = {"from": "dead-letters", "queue": queue.rpartition("/")[2], "reason": "the bot is back"}
    made = (await tenant.client.post("/v1/replays", body)).ok(202)
    counts = (await reached(tenant, made, "done"))["counts"]
    assert (counts["delivered"], counts["duplicates"]) == (1, 0)
    assert len(interrupted) == 2
    assert (await tenant.client.get(f"{queue}/dlq")).ok()["messages"] == []
    assert len(await messages(tenant, queue)) == 1
