"""Replays of archived commands and of dead letters, over HTTP, with the selection of `selection.py`."""

from collections import Counter
from typing import Any

import msgspec
import pytest

from postroad.container import Role
from postroad.contracts.replays import REPLAYS, ReplayMessage
from postroad.jetstream.commit import PendingMessage
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.ids import new_id
from postroad.replays.selection_watcher import INCOMPLETE
from tests.commands.senders import Sender, envelope, grant, outcomes, register_sender, register_target
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.replays.selection import answer
from tests.servers import Server
from tests.waiting import eventually

HOUR_AGO = rfc3339(now_ms() - 3_600_000)


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    return await register_sender(tenant)


async def replay(tenant: Tenant, **fields: Any) -> dict[str, Any]:
    body = {"from": "archive", "selection": {"from": HOUR_AGO}, "reason": "the bot was down", "ratePerSecond": 1000, **fields}
    made: dict[str, Any] = (await tenant.client.post("/v1/replays", body)).ok(202)
    return made


async def shown(tenant: Tenant, made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(f"/v1/replays/{made['id']}")).ok()
    return found


async def reached(tenant: Tenant, made: dict[str, Any], *states: str) -> dict[str, Any]:
    async def check() -> dict[str, Any] | None:
        found = await shown(tenant, made)
        return found if found["state"] in states else None

    return await eventually(check) or {}


async def messages(tenant: Tenant, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while batch := await tenant.pull(queue, 100):
        found += batch
    return found


async def test_failed_commands_are_sent_again_with_a_new_time(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    """Requirements 233, 234, 235, 236, 237, 239"""
    queue = await register_target(tenant)
    payloads = [b'{ "n": %d }' % n for n in range(5)]
    ids = []
    for payload in payloads:
        body = envelope(sender.secret, payload=payload)
        (await sender.client.post("/v1/commands", body)).problem(403, "acl-deny")
        ids.append(body["metadata"]["id"])
    await grant(tenant, "billing")
    made = await replay(tenant, selection={"from": HOUR_AGO, "outcomes": ["failed"], "reasons": ["acl-deny"], "target": "bot"})
    assert (made["state"], made["counts"]["selected"]) == ("selecting", 0)
    await answer(gateway, tenant, made["id"])
    done = await reached(tenant, made, "done")
    assert done["counts"] == {
        "selected": 5, "sent": 5, "delivered": 5, "duplicates": 0, "refused": {}, "remaining": 0
    }  # fmt: skip
    found = await messages(tenant, queue)
    assert sorted(one["headers"]["Snavio-Command-Id"] for one in found) == sorted(ids)
    assert sorted(one["payload"]["n"] for one in found) == [0, 1, 2, 3, 4]
    for one in found:
        assert one["headers"]["Snavio-Replayed"] == "true"
        assert one["headers"]["Snavio-Replay-Id"] == made["id"]
        assert one["headers"]["Snavio-Replay-Reason"] == "the bot was down"
        assert one["headers"]["Snavio-Sent-At"] >= made["createdAt"]
    events = [one for one in await outcomes(tenant) if one["replay"]]
    assert {(one["event"], one["replay_id"], one["replay_reason"]) for one in events} == {
        ("snavio.command.delivered", made["id"], "the bot was down")
    }
    assert "snavio.command.replayed" not in {one["event"] for one in await tenant.events("COMMANDS")}
    lines = [line for _, line in await tenant.archived() if line["replay"]]
    assert sorted(line["payload"].encode() for line in lines) == payloads


async def test_a_dry_run_selects_and_a_resume_sends(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    for _ in range(3):
        (await sender.send()).ok(202)
    assert len(await messages(tenant, queue)) == 3
    made = await replay(tenant, dryRun=True)
    await answer(gateway, tenant, made["id"])
    selected = await reached(tenant, made, "selected")
    assert (selected["counts"]["selected"], selected["counts"]["remaining"], selected["taskId"]) == (3, 3, None)
    assert await messages(tenant, queue) == []
    (await tenant.client.post(f"/v1/replays/{made['id']}/pause")).problem(409, "precondition-failed")
    (await tenant.client.post(f"/v1/replays/{made['id']}/resume")).ok(202)
    assert (await reached(tenant, made, "done"))["counts"]["delivered"] == 3
    assert len(await messages(tenant, queue)) == 3
    (await tenant.client.post(f"/v1/replays/{made['id']}/resume")).problem(409, "precondition-failed")


async def test_a_repeated_selection_is_sent_once(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    for _ in range(6):
        (await sender.send()).ok(202)
    await messages(tenant, queue)
    made = await replay(tenant)
    await answer(gateway, tenant, made["id"], repeats=3, cut=4)
    done = await reached(tenant, made, "done")
    assert (done["counts"]["selected"], done["counts"]["delivered"]) == (6, 6)
    assert len(await messages(tenant, queue)) == 6


async def test_a_second_replay_delivers_each_command_once_more(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    for _ in range(3):
        (await sender.send()).ok(202)
    await messages(tenant, queue)
    for _ in range(2):
        made = await replay(tenant)
        await answer(gateway, tenant, made["id"])
        assert (await reached(tenant, made, "done"))["counts"]["delivered"] == 3
        found = await messages(tenant, queue)
        assert Counter(one["headers"]["Snavio-Replay-Id"] for one in found) == {made["id"]: 3}


async def test_refusals_are_counted_by_reason_with_a_sample(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    """Requirement 236: a revoked grant, a missing route, a deleted sender: nothing passes."""
    queue = await register_target(tenant)
    second = await register_sender(tenant, "mailer")
    await grant(tenant, "billing")
    await grant(tenant, "mailer")
    for one in (sender, second):
        for _ in range(2):
            (await one.send()).ok(202)
    (await sender.send(name="none")).problem(404, "route-missing")
    await messages(tenant, queue)
    (await tenant.client.delete(f"/v1/grants/bot/post/{tenant.id}%2Fbilling")).ok(204)
    (await tenant.client.delete("/v1/services/mailer")).ok(204)
    made = await replay(tenant)
    await answer(gateway, tenant, made["id"])
    done = await reached(tenant, made, "done")
    counts = done["counts"]
    assert counts["refused"] == {"acl-deny": 2, "source-refused": 2, "route-missing": 1}
    assert (counts["selected"], counts["sent"], counts["delivered"], counts["remaining"]) == (5, 5, 0, 0)
    assert Counter(one["reason"] for one in done["refusedSample"]) == counts["refused"]
    assert await messages(tenant, queue) == []
    failed = [one for one in await outcomes(tenant) if one["event"] == "snavio.command.failed" and one["replay"]]
    assert Counter(one["reason"] for one in failed) == {"acl-deny": 2, "route-missing": 1}


async def test_a_rotated_secret_is_used(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant, signature="required")
    await grant(tenant, "billing")
    (await sender.send(source=sender.source)).ok(202)
    await messages(tenant, queue)
    (await tenant.client.post("/v1/services/billing/secrets/rotate", {"overlapSeconds": 0})).ok()
    made = await replay(tenant)
    await answer(gateway, tenant, made["id"])
    assert (await reached(tenant, made, "done"))["counts"]["delivered"] == 1
    assert not [one for one in await tenant.events("COMMANDS") if one["event"] == "snavio.secret.legacy_key_used"]


async def test_a_command_with_an_invalid_hmac_is_never_sent(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    forged = envelope(sender.secret)
    forged["metadata"]["hmac"] = "0" * 64
    (await sender.client.post("/v1/commands", forged)).problem(400, "command-invalid")
    (await sender.send(timestamp=rfc3339(now_ms() - 600_000))).problem(400, "command-invalid")
    made = await replay(tenant, selection={"from": HOUR_AGO, "outcomes": ["invalid"]})
    assert await answer(gateway, tenant, made["id"]) == 1, "the late one, whose HMAC is valid"
    assert (await reached(tenant, made, "done"))["counts"]["delivered"] == 1
    [message] = await messages(tenant, queue)
    assert message["headers"]["Snavio-Command-Id"] != forged["metadata"]["id"]


async def test_commands_get_new_ids_on_request(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    sent = [(await sender.send()).ok(202)["commandId"] for _ in range(2)]
    await messages(tenant, queue)
    made = await replay(tenant, keepIds=False)
    await answer(gateway, tenant, made["id"])
    await reached(tenant, made, "done")
    found = {one["headers"]["Snavio-Command-Id"] for one in await messages(tenant, queue)}
    assert len(found) == 2 and found.isdisjoint(sent)


async def test_a_paused_replay_goes_on_with_fresh_times(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    for _ in range(6):
        (await sender.send()).ok(202)
    await messages(tenant, queue)
    made = await replay(tenant, ratePerSecond=1)
    await answer(gateway, tenant, made["id"])
    await reached(tenant, made, "running")
    assert (await tenant.client.post(f"/v1/replays/{made['id']}/pause")).ok(202)["state"] == "paused"
    task = f"/v1/tasks/{(await shown(tenant, made))['taskId']}"

    async def is_stopped() -> bool:
        return bool((await tenant.client.get(task)).ok()["state"] == "paused")

    await eventually(is_stopped)
    before = (await shown(tenant, made))["counts"]
    assert before["delivered"] < 6 and before["delivered"] + before["remaining"] == 6
    gateway.clock.ahead_ms = 10 * 60_000  # longer than the window of a timestamp
    try:
        (await tenant.client.post(f"/v1/replays/{made['id']}/resume")).ok(202)
        done = await reached(tenant, made, "done")
    finally:
        gateway.clock.ahead_ms = 0
    assert (done["counts"]["delivered"], done["counts"]["refused"]) == (6, {})
    assert len(await messages(tenant, queue)) == 6


async def test_a_cancelled_replay_sends_no_more_and_counts_what_it_sent(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    for _ in range(5):
        (await sender.send()).ok(202)
    await messages(tenant, queue)
    waiting = await replay(tenant)
    assert (await tenant.client.delete(f"/v1/replays/{waiting['id']}")).ok(202)["state"] == "cancelled"
    made = await replay(tenant, ratePerSecond=1)
    await answer(gateway, tenant, made["id"])
    await reached(tenant, made, "running")
    (await tenant.client.post(f"/v1/replays/{made['id']}/pause")).ok(202)
    (await tenant.client.delete(f"/v1/replays/{made['id']}")).ok(202)
    ended = await reached(tenant, made, "cancelled")
    assert ended["counts"]["sent"] + ended["counts"]["remaining"] == 5
    assert len(await messages(tenant, queue)) == ended["counts"]["delivered"] < 5


async def test_dead_letters_are_sent_again_and_removed_when_delivered(tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    for n in range(3):
        (await sender.send(payload=b"%d" % n)).ok(202)
    forged = {
        "Snavio-Command-Id": "x",
        "Snavio-Source": sender.source,
        "Snavio-Target": f"{tenant.id}/bot",
        "Snavio-Command": "post",
    }
    await tenant.publish(queue, "forged", headers=forged)
    for one in await messages(tenant, queue):
        (await tenant.client.post(f"{queue}/nack", {"receiptId": one["receiptId"], "action": "dlq", "reason": "down"})).ok()
    made = await replay(tenant, **{"from": "dead-letters", "selection": None, "queue": "bot-post", "filter": {"reason": "down"}})
    done = await reached(tenant, made, "done")
    assert done["counts"]["selected"] == 4
    assert (done["counts"]["delivered"], done["counts"]["refused"]) == (3, {"not-a-command": 1})
    found = await messages(tenant, queue)
    assert sorted(one["payload"] for one in found) == [0, 1, 2]
    assert {one["headers"]["Snavio-Replay-Id"] for one in found} == {made["id"]}
    left = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    assert [one["payload"] for one in left] == ["forged"], "only what was delivered is removed"


async def test_dead_letters_of_a_revoked_sender_stay(tenant: Tenant, sender: Sender) -> None:
    queue = await register_target(tenant)
    await grant(tenant, "billing")
    (await sender.send()).ok(202)
    [one] = await messages(tenant, queue)
    (await tenant.client.post(f"{queue}/nack", {"receiptId": one["receiptId"], "action": "dlq"})).ok()
    (await tenant.client.delete(f"/v1/grants/bot/post/{tenant.id}%2Fbilling")).ok(204)
    made = await replay(tenant, **{"from": "dead-letters", "selection": None, "queue": "bot-post"})
    done = await reached(tenant, made, "done")
    assert done["counts"]["refused"] == {"acl-deny": 1}
    assert len((await tenant.client.get(f"{queue}/dlq")).ok()["messages"]) == 1


async def test_without_a_pipeline_the_replay_reports_it_and_waits(own_server: Server) -> None:
    """On its own engine: one process of an installation runs the watcher, and its clock must be this gateway's."""
    async with running_gateway(gateway_settings(own_server.url), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        await register_sender(tenant)
        made = await replay(tenant)
        gateway.clock.ahead_ms = 121_000

        async def note() -> str | None:
            text: str | None = (await shown(tenant, made))["note"]
            return text

        assert "pipeline" in (await eventually(note) or "")
        gateway.clock.ahead_ms = 0
        assert (await shown(tenant, made))["state"] == "selecting"
        subject = REPLAYS.subject_of(tenant=tenant.id, replay=made["id"])
        begun = PendingMessage(subject, msgspec.json.encode(ReplayMessage(v=1, replay=made["id"], index=0)), new_id())
        await gateway.node.platform.committers.of(REPLAYS.stream).append(begun)
        gateway.clock.ahead_ms = 121_000

        async def is_incomplete() -> bool:
            return bool((await shown(tenant, made))["note"] == INCOMPLETE)

        await eventually(is_incomplete)
        gateway.clock.ahead_ms = 0
        await answer(gateway, tenant, made["id"])
        assert (await reached(tenant, made, "done"))["note"] is None


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"reason": "x"}, 422, "invalid-body"),
        ({"reason": "x", "selection": {"target": "bot"}}, 422, "invalid-body"),
        ({"selection": {"from": HOUR_AGO}}, 422, "invalid-body"),
        ({"reason": "", "selection": {"from": HOUR_AGO}}, 422, "invalid-body"),
        ({"reason": "a\nb", "selection": {"from": HOUR_AGO}}, 422, "invalid-body"),
        ({"reason": "x", "selection": {"from": HOUR_AGO}, "queue": "q"}, 422, "invalid-body"),
        ({"reason": "x", "selection": {"from": HOUR_AGO, "source": "other/billing"}}, 422, "invalid-body"),
        ({"reason": "x", "selection": {"from": HOUR_AGO, "source": "billing\n"}}, 422, "invalid-body"),
        ({"reason": "x", "selection": {"from": HOUR_AGO, "target": "bot\n"}}, 422, "invalid-body"),
        ({"reason": "x", "selection": {"from": HOUR_AGO, "limit": 1_000_000}}, 422, "invalid-body"),
        ({"reason": "x", "from": "dead-letters"}, 422, "invalid-body"),
        ({"reason": "x", "from": "dead-letters", "queue": "none"}, 404, "queue-not-found"),
        ({"reason": "x", "from": "elsewhere"}, 422, "invalid-body"),
    ],
)
async def test_an_invalid_request_is_refused(tenant: Tenant, body: dict[str, Any], status: int, code: str) -> None:
    (await tenant.client.post("/v1/replays", body)).problem(status, code)
    assert (await tenant.client.get("/v1/replays")).ok()["replays"] == []


async def test_replays_are_for_administrators_and_belong_to_their_tenant(gateway: Gateway, tenant: Tenant) -> None:
    """Requirement 238"""
    made = await replay(tenant)
    other = await gateway.tenant()
    plain = await tenant.another_key(tuple(scope for scope in tenant.record.scopes if scope != "admin"))
    for method, path in (("GET", ""), ("GET", f"/{made['id']}"), ("DELETE", f"/{made['id']}"), ("POST", f"/{made['id']}/pause")):
        (await plain.client.call(method, f"/v1/replays{path}")).problem(403, "forbidden")
        if path:
            (await other.client.call(method, f"/v1/replays{path}")).problem(404, "replay-not-found")
    assert (await other.client.get("/v1/replays")).ok()["replays"] == []
    operator = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    assert (await operator.get(f"/v1/replays/{made['id']}")).ok()["id"] == made["id"]
    (await operator.delete(f"/v1/replays/{made['id']}")).ok(202)


async def test_a_replay_is_audited_with_its_reason_selection_and_counts(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    """Requirements 238, 239"""
    await register_target(tenant)
    await grant(tenant, "billing")
    (await sender.send()).ok(202)
    made = await replay(tenant)
    await answer(gateway, tenant, made["id"])
    await reached(tenant, made, "done")
    entries = (await tenant.client.get(f"/api/control/audit?target={made['id']}")).ok()["entries"]
    by_action = {one["action"]: one for one in entries}
    assert by_action["replay.create"]["after"]["reason"] == "the bot was down"
    assert by_action["replay.create"]["actorKeyId"] == tenant.record.id
    ended = by_action["replay.end"]
    assert ended["actorKeyId"] == tenant.record.id
    assert (ended["after"]["counts"]["delivered"], ended["after"]["state"]) == (1, "done")
    assert list(ended["after"]["selection"]) == ["from"]
    events = [one for one in await tenant.events("COMMANDS") if one["event"] == "replay.ended"]
    assert [(one["state"], one["delivered"]) for one in events] == [("done", 1)]


async def test_too_many_replays_are_refused(gateway: Gateway, tenant: Tenant) -> None:
    for _ in range(20):
        await replay(tenant)
    body = {"selection": {"from": HOUR_AGO}, "reason": "one more"}
    (await tenant.client.post("/v1/replays", body)).problem(409, "precondition-failed")
