"""Strict deduplication: each id of a sender is delivered once per route while it is known, whatever the process."""

import asyncio
import uuid
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.commands import dispatcher
from postroad.commands.capability import CommandsCapability
from postroad.commands.dedupe import marker_of
from postroad.commands.seen_commands import FirstDelivery, SeenCommands
from postroad.queues.message_writes import DeliveryMarker
from tests.commands.senders import Sender, envelope, grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually

QUEUE = "/v1/queues/bot-post"


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    await register_target(tenant, dedupe_mode="strict")
    await grant(tenant, "billing")
    return await register_sender(tenant)


def forget(gateway: Gateway) -> None:
    """The gateway has been restarted: it remembers no ids."""
    gateway.node.platform.use(CommandsCapability).warm.seen._seen.clear()


async def test_a_repeated_id_gets_the_ids_of_the_first(tenant: Tenant, sender: Sender) -> None:
    """Requirements 36, 129, 131, 132, 133, 135, 136, 205: new timestamps and HMACs of a retry do not matter."""
    command_id = str(uuid.uuid4())
    first = (await sender.send(command_id=command_id)).ok(202)
    assert first["path"] == "slow" and "duplicate" not in first
    second = (await sender.send(command_id=command_id.upper())).ok(200)
    assert second == {**first, "path": "fast", "duplicate": True}
    assert (await tenant.stats(QUEUE))["ready"] == 1
    delivered, duplicate = await outcomes(tenant)
    assert (delivered["event"], delivered["escalated"]) == ("snavio.command.delivered", "dedupe_required")
    assert duplicate["event"] == "snavio.command.duplicate" and duplicate["dedupe_mode"] == "strict"
    assert (duplicate["command_id"], duplicate["source"]) == (command_id, sender.source)
    assert (duplicate["target"], duplicate["command.name"]) == (f"{tenant.id}/bot", "post")


async def test_another_gateway_knows_the_id_by_the_engine_and_repeats_the_event(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, sender: Sender
) -> None:
    """Requirements 130, 134: the process that stored the message may have died before it stored the event."""
    command_id = str(uuid.uuid4())
    first = (await sender.at(gateway).send(command_id=command_id)).ok(202)

    async def is_known() -> Any:
        return (await sender.at(second_gateway).send(command_id=command_id)).status == 200

    await eventually(is_known)
    second = (await sender.at(second_gateway).send(command_id=command_id)).ok(200)
    assert second == {**first, "duplicate": True}
    events = await outcomes(tenant)
    delivered = [one for one in events if one["event"] == "snavio.command.delivered"]
    assert len(delivered) >= 2 and all(one == delivered[0] for one in delivered), "identical events"
    assert (await tenant.stats(QUEUE))["ready"] == 1


async def test_concurrent_commands_of_one_id_are_delivered_once(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant, sender: Sender
) -> None:
    ids = [str(uuid.uuid4()) for _ in range(5)]
    both = (sender.at(gateway), sender.at(second_gateway))
    (await both[1].send()).ok(202)
    answers = await asyncio.gather(*[both[number % 2].send(command_id=ids[number // 8]) for number in range(40)])
    assert Counter(one.status for one in answers) == {202: 5, 200: 35}
    assert len({one.json["messageId"] for one in answers}) == 5
    assert (await tenant.stats(QUEUE))["ready"] == 6


async def test_another_payload_under_the_same_id_is_refused(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    command_id = str(uuid.uuid4())
    (await sender.send(command_id=command_id)).ok(202)
    for is_forgotten in (False, True):
        if is_forgotten:
            forget(gateway)
        refused = (await sender.send(command_id=command_id, payload=b"2")).problem(422, "command-mismatch")
        assert refused["reason"] == "command-mismatch"
    events = await outcomes(tenant)
    assert [(one["event"], one.get("reason")) for one in events[1:]] == [("snavio.command.invalid", "command-mismatch")] * 2
    assert (await tenant.stats(QUEUE))["ready"] == 1


async def test_ids_of_other_senders_and_routes_are_their_own(tenant: Tenant, sender: Sender) -> None:
    """Requirements 134"""
    await register_target(tenant, command="pay", dedupe_mode="strict")
    await grant(tenant, "billing", command="pay")
    await grant(tenant, "mailer")
    other = await register_sender(tenant, "mailer")
    command_id = str(uuid.uuid4())
    (await sender.send(command_id=command_id)).ok(202)
    (await other.send(command_id=command_id)).ok(202)
    (await sender.send(command_id=command_id, name="pay")).ok(202)


async def test_a_refused_command_can_be_sent_again(tenant: Tenant, sender: Sender) -> None:
    """Requirements 136: nothing is marked before the command is delivered."""
    command_id = str(uuid.uuid4())
    (await tenant.client.delete(QUEUE)).ok(204)
    (await sender.send(command_id=command_id)).problem(502, "delivery-failure")
    (await tenant.client.put(QUEUE, {"maxAttempts": 3})).ok(201)

    async def is_sent() -> bool:
        return (await sender.send(command_id=command_id)).status == 202

    await eventually(is_sent)


async def test_a_duplicate_returns_its_token(gateway: Gateway, tenant: Tenant) -> None:
    await register_target(tenant, dedupe_mode="strict", rate_limit={"max": 2, "interval_seconds": 86_400})
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    command_id = str(uuid.uuid4())
    (await sender.send(command_id=command_id)).ok(202)
    for _ in range(3):
        forget(gateway)
        (await sender.send(command_id=command_id)).ok(200)
        await gateway.node.platform.use(CommandsCapability).tokens_of_limits.drain()
    assert (await tenant.client.get("/v1/routes/bot/post")).ok()["usage"]["used"] == 1
    (await sender.send()).ok(202)
    (await sender.send()).problem(429, "rate-limit-exceeded")


@pytest.mark.parametrize("rate", [{"mode": "shadow"}, {"overflow": "delay", "max_delay_seconds": 86_400}])
async def test_the_repeated_event_of_a_command_above_the_limit_is_identical(
    gateway: Gateway, tenant: Tenant, rate: dict[str, Any]
) -> None:
    """Requirements 134: delayed, or reported by a limit in shadow mode."""
    await register_target(tenant, dedupe_mode="strict", rate_limit={"max": 1, "interval_seconds": 86_400, **rate})
    await grant(tenant, "billing")
    sender, command_id = await register_sender(tenant), str(uuid.uuid4())
    (await sender.send()).ok(202)
    (await sender.send(command_id=command_id)).ok(202)
    forget(gateway)
    # Without the limit, whose last token the first attempt took.
    (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post", "dedupe_mode": "strict"})).ok()
    assert (await sender.send(command_id=command_id)).ok(200)["duplicate"]
    delivered = [one for one in await outcomes(tenant) if one["event"].endswith("delivered") and one["command_id"] == command_id]
    assert len(delivered) == 2 and delivered[0] == delivered[1]
    assert bool(delivered[0]["deliver_at"]) is not bool(delivered[0]["shadow"])


async def test_an_id_is_new_after_its_time(tenant: Tenant, sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements 139"""

    def short_marker(*given: Any) -> DeliveryMarker:
        return msgspec.structs.replace(marker_of(*given), ttl_ms=1000)

    monkeypatch.setattr(dispatcher, "marker_of", short_marker)
    command_id = str(uuid.uuid4())
    first = (await sender.send(command_id=command_id)).ok(202)

    async def is_new() -> bool:
        answer = await sender.send(command_id=command_id)
        if answer.status == 200:
            assert answer.json["messageId"] == first["messageId"]
        return answer.status == 202

    await eventually(is_new, 10)
    assert (await tenant.stats(QUEUE))["ready"] == 2


async def test_a_batch_reports_duplicates(tenant: Tenant, sender: Sender) -> None:
    body = envelope(sender.secret)
    result = (await sender.client.post("/v1/commands/batch", {"commands": [body, body, body]})).ok()
    assert (result["delivered"], result["failed"]) == (3, 0)
    assert Counter(one.get("duplicate", False) for one in result["results"]) == {False: 1, True: 2}


async def test_the_time_to_live_has_limits(tenant: Tenant) -> None:
    """Requirements 138"""
    await register_target(tenant)
    for seconds, is_valid in ((59, False), (60, True), (604_800, True), (604_801, False)):
        body = {"queue": "bot-post", "dedupe_mode": "strict", "dedupe_ttl_seconds": seconds}
        assert (await tenant.client.put("/v1/routes/bot/post", body)).status == (200 if is_valid else 422)
    (await tenant.client.put("/v1/routes/bot/post", {"queue": "bot-post", "dedupe_mode": "strict"})).ok()
    assert (await tenant.client.get("/v1/routes/bot/post")).ok()["dedupe_ttl_seconds"] == 300


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 2), st.sampled_from(["send"] * 4 + ["crash"])),
        max_size=80,
    ),
    st.integers(1, 3),
    st.integers(0, 5),
)
def test_each_id_is_delivered_once_within_its_time_and_is_new_after_it(
    steps: list[tuple[str, int, int, str]], ids_max: int, longer: int
) -> None:
    """Requirements 130, 139: three workers that crash, forget, and share markers which the engine may keep a moment longer."""
    ttl, now = 30, 0
    workers = [SeenCommands(ids_max) for _ in range(3)]
    markers: dict[str, int] = {}  # id → when it ends
    delivered_at: dict[str, int] = {}
    for name, pause, worker, what in steps:
        now += pause
        if what == "crash":
            workers[worker] = SeenCommands(ids_max)
            continue
        if workers[worker].find("r", "s", name, now) is not None or markers.get(name, 0) > now:
            assert now < delivered_at[name] + ttl + longer, "a new id was taken for a repeated one"
            continue
        assert name not in delivered_at or now >= delivered_at[name] + ttl, "delivered twice"
        delivered_at[name], markers[name] = now, now + ttl + longer
        workers[worker].add("r", "s", name, FirstDelivery(name, "b", now + ttl))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.booleans()), max_size=60), st.integers(1, 4))
def test_an_id_is_found_until_its_time_unless_newer_ones_displaced_it(steps: list[tuple[str, int, bool]], ids_max: int) -> None:
    """Requirements 132: what memory says is always what was added last, and never after its time."""
    seen, known, now = SeenCommands(ids_max), dict[str, FirstDelivery](), 0
    for name, pause, is_added in steps:
        now += pause
        if is_added:
            known[name] = FirstDelivery(f"{name}{now}", "b", now + 30)
            seen.add("r", "s", name, known[name])
        found = seen.find("r", "s", name, now)
        assert found is None or (found == known[name] and now < found.until_ms)
        if ids_max >= 3 and name in known and now < known[name].until_ms:
            assert found == known[name]
        assert seen.find("r", "other", name, now) is None
