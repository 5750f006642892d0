"""Replays beside rate limits and strict deduplication."""

from postroad.container import Role
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
