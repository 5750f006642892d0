"""Webhook subscriptions over HTTP."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.gateway import ShiftedClock, session
from tests.servers import OpenConnection, Server, restart
from tests.stream_subscriptions.conftest import ROOT, Hook, MakeNode, Node, running
from tests.stream_subscriptions.test_keys import verify
from tests.waiting import eventually

from postroad.api.stream_subscriptions import Jwk
from postroad.governance.audit import audit_stream
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.management import ensure_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit


def webhook(hook: Hook, **more: Any) -> dict[str, Any]:
    return {"type": "webhook", "pattern": "events/*", "webhook": {"url": hook.url}, **more}


async def test_a_repeated_create_is_accepted_and_a_different_one_refused(node: Node, hook: Hook) -> None:
    wanted = webhook(hook, lease_ttl_ms=1000, description="a test's")
    made = (await node.subscribe(**wanted)).ok(201)
    assert made["id"] == made["subscription_id"] == "sub"
    assert (made["type"], made["pattern"], made["status"], made["description"]) == ("webhook", "events/*", "active", "a test's")
    assert made["webhook"]["url"] == hook.url
    assert made["webhook"]["signing"]["jwks_url"] == f"{node.url}/v1/stream/__ds/jwks.json"
    assert (await node.subscribe(**wanted)).ok(200) == made
    assert await node.show() == made
    other = await node.subscribe(**{**wanted, "lease_ttl_ms": 2000})
    assert other.json["error"]["code"] == "SUBSCRIPTION_ALREADY_EXISTS"
    assert (other.status, other.json["code"]) == (409, "already-exists")


async def test_the_keys_are_published(node: Node, hook: Hook) -> None:
    made = (await node.subscribe(**webhook(hook))).ok(201)
    published = await node.client.get("/v1/stream/__ds/jwks.json")
    assert published.headers["content-type"] == "application/jwk-set+json"
    assert [key["kid"] for key in published.json["keys"]] == [made["webhook"]["signing"]["kid"]]


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/hook",
        "https://169.254.169.254/",
        "ftp://example.com/",
        "https://u:p@example.com/",
        "http://example.com/",
        "x",
    ],
)
async def test_a_webhook_with_an_internal_address_is_refused(node: Node, url: str) -> None:
    refused = await node.subscribe(type="webhook", pattern="events/*", webhook={"url": url})
    assert (refused.status, refused.json["error"]["code"], refused.json["code"]) == (
        400,
        "WEBHOOK_URL_REJECTED",
        "webhook-refused",
    )


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"type": "webhook", "pattern": "a/*"},
        {"type": "webhook", "webhook": {"url": "https://example.com/"}},
        {"type": "pull-wake", "pattern": "a/*"},
        {"type": "pull-wake", "pattern": "a/*", "wake_stream": "w", "lease_ttl_ms": 1},
    ],
)
async def test_an_invalid_request_is_refused_with_the_protocols_code(node: Node, wanted: dict[str, Any]) -> None:
    refused = await node.subscribe(**wanted)
    assert (refused.status, refused.json["error"]["code"]) == (400, "INVALID_REQUEST")


async def test_a_new_stream_causes_a_wake_and_done_acknowledges_it(node: Node, hook: Hook) -> None:
    hook.answer = {"done": True}
    made = (await node.subscribe(**webhook(hook))).ok(201)
    tail = await node.create("events/a", {"n": 1})
    (call,) = await hook.received()
    assert call["subscription_id"] == "sub"
    assert call["generation"] == 1
    assert call["callback_url"] == f"{node.url}{ROOT}/sub/callback"
    assert call["streams"] == [
        {"path": "events/a", "link_type": "glob", "acked_offset": "-1", "tail_offset": tail, "has_pending": True}
    ]
    signature, body = hook.raw[0]
    keys = (await node.client.get("/v1/stream/__ds/jwks.json")).json["keys"]
    assert made["webhook"]["signing"]["kid"] in signature
    verify(msgspec.convert(keys[0], Jwk), signature, body)

    async def is_acked() -> bool:
        return await node.acked("events/a") == tail

    await eventually(is_acked)
    second = await node.append("events/a", {"n": 2})
    await hook.received(2)
    assert hook.calls[1]["generation"] == 2
    assert hook.calls[1]["streams"][0]["acked_offset"] == tail
    assert hook.calls[1]["streams"][0]["tail_offset"] == second


async def test_existing_streams_are_followed_from_their_ends(node: Node, hook: Hook) -> None:
    tail = await node.create("events/old", 1, 2)
    await node.create("other/old", 1)
    hook.answer = {"done": True}
    made = (await node.subscribe(**webhook(hook))).ok(201)
    assert made["streams"] == [{"path": "events/old", "link_type": "glob", "acked_offset": tail}]
    await node.append("other/old", 2)
    await node.append("events/old", 3)
    (call,) = await hook.received()
    assert [one["path"] for one in call["streams"]] == ["events/old"]
    assert call["streams"][0]["acked_offset"] == tail


async def test_an_empty_stream_causes_no_wake(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook))
    await node.create("events/empty")
    tail = await node.create("events/full", 1)
    (call,) = await hook.received()
    pending = {one["path"]: one["has_pending"] for one in call["streams"]}
    assert pending["events/full"] is True
    assert pending.get("events/empty", False) is False
    assert tail


async def test_a_callback_acknowledges_and_then_is_fenced(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook))
    tail = await node.create("events/a", 1)
    (call,) = await hook.received()
    ack = {"wake_id": call["wake_id"], "generation": 1, "acks": [{"stream": "events/a", "offset": tail}], "done": True}
    done = await node.act("callback", ack, call["callback_token"])
    assert done.ok() == {"ok": True, "next_wake": False}
    assert await node.acked("events/a") == tail
    stale = await node.act("callback", ack, call["callback_token"])
    assert (stale.status, stale.json["error"]["code"]) == (409, "FENCED")


async def test_data_appended_during_a_wake_causes_the_next_one(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook))
    first = await node.create("events/a", 1)
    (call,) = await hook.received()
    second = await node.append("events/a", 2)
    ack = {"wake_id": call["wake_id"], "generation": 1, "acks": [{"stream": "events/a", "offset": first}], "done": True}
    assert (await node.act("callback", ack, call["callback_token"])).ok() == {"ok": True, "next_wake": True}
    await hook.received(2)
    assert (hook.calls[1]["generation"], hook.calls[1]["streams"][0]["tail_offset"]) == (2, second)


async def test_there_is_no_second_wake_during_a_wake(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook))
    await node.create("events/a", 1)
    await hook.received()
    for number in range(5):
        await node.append("events/a", number)
    await node.create("events/b", 1)

    async def is_linked() -> bool:
        return await node.acked("events/b") == "-1"

    await eventually(is_linked)  # so it was processed, without a wake
    assert len(hook.calls) == 1


async def test_an_expired_lease_causes_another_wake(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook, lease_ttl_ms=600_000))
    await node.create("events/a", 1)
    (call,) = await hook.received()
    await node.leased()
    node.clock.ahead_ms += 600_001
    await hook.received(2)
    assert hook.calls[1]["generation"] == 2
    for other in hook.calls:  # the old token is not valid for the new wake
        beat = {"wake_id": other["wake_id"], "generation": other["generation"]}
        assert (await node.act("callback", beat, call["callback_token"])).json["error"]["code"] == "FENCED"


async def test_a_heartbeat_keeps_the_lease(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook, lease_ttl_ms=60_000))
    await node.create("events/a", 1)
    (call,) = await hook.received()
    beat = {"wake_id": call["wake_id"], "generation": 1}

    async def is_leased() -> bool:
        return (await node.act("callback", beat, call["callback_token"])).status == 200

    for _ in range(3):
        assert await is_leased()
        node.clock.ahead_ms += 40_000
    assert await is_leased()
    assert len(hook.calls) == 1


async def test_a_failed_webhook_is_called_again_with_the_same_wake(node: Node, hook: Hook) -> None:
    hook.status = 500
    await node.subscribe(**webhook(hook))
    await node.create("events/a", 1)
    await hook.received()

    await node.reaches("failed")
    hook.status, hook.answer = 200, {"done": True}
    node.clock.ahead_ms += 2_000
    await hook.received(2)
    assert hook.calls[0]["wake_id"] == hook.calls[1]["wake_id"]
    assert hook.calls[0]["callback_token"] == hook.calls[1]["callback_token"]

    await node.reaches("active")


async def test_a_callback_before_the_response_counts(node: Node, hook: Hook) -> None:
    """The receiver processes the wake and calls back before it responds."""
    tails: list[str] = []

    async def call_back(call: dict[str, Any]) -> None:
        tails.append(call["streams"][0]["tail_offset"])
        acks = [{"stream": "events/a", "offset": tails[-1]}]
        body = {"wake_id": call["wake_id"], "generation": call["generation"], "acks": acks, "done": True}
        (await node.act("callback", body, call["callback_token"])).ok()

    hook.before = call_back
    hook.status = 500  # after the callback
    await node.subscribe(**webhook(hook))
    await node.create("events/a", 1)
    await hook.received()

    async def is_acked() -> bool:
        return bool(tails) and await node.acked("events/a") == tails[0]

    await eventually(is_acked)
    await node.append("events/a", 2)
    await hook.received(2)
    assert hook.calls[1]["generation"] == 2


async def test_named_streams_are_added_and_removed(node: Node, hook: Hook) -> None:
    await node.subscribe(type="webhook", streams=["manual/a"], webhook={"url": hook.url})
    assert (await node.client.post(f"{ROOT}/sub/streams", {"streams": ["manual/b"]})).status == 204
    assert [one["path"] for one in (await node.show())["streams"]] == ["manual/a", "manual/b"]
    assert (await node.client.delete(f"{ROOT}/sub/streams/manual%2Fb")).status == 204
    assert (await node.show())["streams"] == [
        {"path": "manual/a", "link_type": "explicit", "acked_offset": "0000000000000000_0000000000000000"}
    ]
    await node.create("manual/a", 1)
    (call,) = await hook.received()
    assert call["streams"][0]["link_type"] == "explicit"


async def test_a_deleted_stream_is_unlinked(node: Node, hook: Hook) -> None:
    hook.answer = {"done": True}
    await node.subscribe(**webhook(hook))
    await node.create("events/a", 1)
    await hook.received()
    assert (await node.client.delete("/v1/stream/events/a")).status == 204

    async def is_unlinked() -> bool:
        return await node.acked("events/a") is None

    await eventually(is_unlinked)
    await node.create("events/a", 1)
    await hook.received(2)


async def test_closing_a_stream_causes_no_wake(node: Node, hook: Hook) -> None:
    hook.answer = {"done": True}
    await node.subscribe(**webhook(hook))
    await node.create("events/a", 1)
    await hook.received()
    closed = await node.client.post("/v1/stream/events/a", headers={"Stream-Closed": "true"})
    assert closed.status == 204
    await node.create("events/b", 1)
    await hook.received(2)
    assert {one["path"]: one["has_pending"] for one in hook.calls[1]["streams"]} == {"events/a": False, "events/b": True}


async def test_a_deleted_subscription_sends_no_wakes(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook))
    await node.subscribe("other", **webhook(hook))
    for _ in range(2):
        assert (await node.client.delete(f"{ROOT}/sub")).status == 204
    gone = await node.client.get(f"{ROOT}/sub")
    assert (gone.status, gone.json["error"]["code"], gone.json["code"]) == (
        404,
        "SUBSCRIPTION_NOT_FOUND",
        "subscription-not-found",
    )
    await node.create("events/a", 1)
    assert [call["subscription_id"] for call in await hook.received()] == ["other"]


async def test_a_token_is_valid_for_one_subscription_and_cannot_be_forged(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook))
    await node.subscribe("other", **webhook(hook))
    await node.create("events/a", 1)
    await hook.received(2)
    call = next(one for one in hook.calls if one["subscription_id"] == "sub")
    beat = {"wake_id": call["wake_id"], "generation": call["generation"]}
    for token, subscription in [
        (None, "sub"),
        ("made-up", "sub"),
        (call["callback_token"], "other"),
        (call["callback_token"][:-2], "sub"),
    ]:
        refused = await node.act("callback", beat, token, subscription)
        assert (refused.status, refused.json["error"]["code"]) == (401, "TOKEN_INVALID"), token
    elsewhere = await node.client.post(
        "/v1/another/stream/__ds/subscriptions/sub/callback", beat, headers={"Authorization": f"Bearer {call['callback_token']}"}
    )
    assert elsewhere.status == 401
    (await node.act("callback", beat, call["callback_token"])).ok()


async def test_an_ack_beyond_the_end_or_backwards_is_refused(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook))
    tail = await node.create("events/a", 1)
    (call,) = await hook.received()
    for stream, offset in [("events/a", "0000000000000000_9999999999999999"), ("events/a", "-1"), ("events/x", tail)]:
        body = {"wake_id": call["wake_id"], "generation": 1, "acks": [{"stream": stream, "offset": offset}]}
        refused = await node.act("callback", body, call["callback_token"])
        assert (refused.status, refused.json["error"]["code"]) == (409, "INVALID_OFFSET")
    assert await node.acked("events/a") == "-1"


async def test_the_next_leader_continues(make_node: MakeNode, hook: Hook) -> None:
    """It continues with an undelivered wake, a stream created without a leader, and a lease."""
    first, second = await make_node(), await make_node()
    first.lead()
    hook.status = 503
    await first.subscribe(**webhook(hook))
    await first.create("events/a", 1)
    await hook.received()
    await first.step_down()
    tail = await first.create("events/b", 1)
    hook.status, hook.answer = 200, {"done": True}
    first.clock.ahead_ms += 2_000
    second.lead()
    await hook.received(2)
    assert hook.calls[1]["wake_id"] == hook.calls[0]["wake_id"]

    async def is_acked() -> bool:
        return await second.acked("events/b") == tail

    await eventually(is_acked)
    assert await first.acked("events/b") == tail


async def test_any_worker_serves_any_call(make_node: MakeNode, hook: Hook) -> None:
    one, other = await make_node(), await make_node()
    one.lead()
    (await other.subscribe(**webhook(hook))).ok(201)
    (await one.subscribe(**webhook(hook))).ok(200)
    tail = await one.create("events/a", 1)
    (call,) = await hook.received()
    acks = [{"stream": "events/a", "offset": tail}]
    body = {"wake_id": call["wake_id"], "generation": 1, "acks": acks, "done": True}
    answers = await asyncio.gather(*(node.act("callback", body, call["callback_token"]) for node in (one, other, one, other)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]


async def test_a_worker_with_an_outdated_table_reads_before_it_refuses(make_node: MakeNode, hook: Hook) -> None:
    one, deaf = await make_node(), await make_node()
    one.lead()
    await one.subscribe(**webhook(hook))
    await eventually(lambda: deaf.parts.table.get(f"{deaf.tenant}.sub") is not None)
    await deaf.stop_following()
    await one.create("events/a", 1)
    (call,) = await hook.received()
    beat = {"wake_id": call["wake_id"], "generation": 1}
    (await deaf.act("callback", beat, call["callback_token"])).ok()
    await one.client.delete(f"{ROOT}/sub")
    (await deaf.subscribe(**webhook(hook))).ok(201)


async def test_a_deleted_subscription_can_be_created_again(node: Node, hook: Hook) -> None:
    for number in range(3):
        (await node.subscribe(**webhook(hook))).ok(201)
        await node.create(f"events/{number}", 1)
        await hook.received(number + 1)
        await node.client.delete(f"{ROOT}/sub")
    assert [call["generation"] for call in hook.calls] == [1, 1, 1]


async def test_each_project_has_its_own_subscriptions(node: Node, hook: Hook) -> None:
    path = f"/v1/{node.tenant}-b/stream/__ds/subscriptions/sub"
    made = (await node.client.put(path, webhook(hook))).ok(201)
    assert made["webhook"]["signing"]["jwks_url"] == f"{node.url}/v1/{node.tenant}-b/stream/__ds/jwks.json"
    await node.create("events/a", 1)
    (await node.client.put(f"/v1/{node.tenant}-b/stream/events/b", [1])).ok(201)
    (call,) = await hook.received()
    assert call["callback_url"] == f"{node.url}{path}/callback"
    assert [one["path"] for one in call["streams"]] == ["events/b"]
    assert (await node.client.get(f"{ROOT}/sub")).status == 404


async def test_a_restricted_key_can_subscribe_to_its_streams_only(node: Node, hook: Hook) -> None:
    narrow = node.client.with_headers(**{"X-Streams": "mine/*"})
    assert (await narrow.put(f"{ROOT}/a", webhook(hook, pattern="mine/*"))).status == 403
    assert (await narrow.put(f"{ROOT}/a", webhook(hook, pattern=None, streams=["mine/x", "theirs/x"]))).status == 403
    (await narrow.put(f"{ROOT}/a", webhook(hook, pattern=None, streams=["mine/x"]))).ok(201)
    assert (await narrow.post(f"{ROOT}/a/streams", {"streams": ["theirs/x"]})).status == 403
    await node.subscribe("all", **webhook(hook))
    assert (await narrow.get(f"{ROOT}/all")).status == 404
    (await narrow.get(f"{ROOT}/a")).ok()


async def test_webhooks_that_never_answer_delay_no_other_subscription(node: Node, hook: Hook) -> None:
    released = asyncio.Event()

    async def hang(call: dict[str, Any]) -> None:
        if call["subscription_id"].startswith("hanging"):
            await released.wait()

    hook.before = hang
    for number in range(12):
        await node.subscribe(f"hanging-{number}", **webhook(hook))
    await node.create("events/a", 1)
    await hook.received(12)
    await node.subscribe("sub", **webhook(hook, pattern="other/*"))
    await node.create("other/a", 1)
    await hook.received(13)
    assert hook.calls[-1]["subscription_id"] == "sub"
    released.set()


async def test_webhooks_of_a_disabled_tenant_wait(node: Node, hook: Hook) -> None:
    await node.subscribe(**webhook(hook))
    await node.subscribe("other", **webhook(hook))
    await node.create("events/a", 1)
    await hook.received(2)
    await node.leased("sub")
    await node.leased("other")
    call = hook.calls[0]
    node.disabled.add(node.tenant)
    beat = {"wake_id": call["wake_id"], "generation": 1}
    refused = await node.act("callback", beat, call["callback_token"], call["subscription_id"])
    assert (refused.status, refused.json["code"]) == (403, "tenant-disabled")
    node.clock.ahead_ms += 60_000
    another = f"/v1/{node.tenant}-b/stream"
    (await node.client.put(f"{another}/__ds/subscriptions/theirs", webhook(hook))).ok(201)
    (await node.client.put(f"{another}/events/a", [1])).ok(201)
    await hook.received(3)
    assert [one["subscription_id"] for one in hook.calls[2:]] == ["theirs"]
    node.disabled.clear()
    node.clock.ahead_ms += 6_000
    await hook.received(5)


async def test_webhooks_continue_after_a_server_outage(
    own_server: Server,
    open_connection: OpenConnection,
    name: str,
    clock: ShiftedClock,
    hook: Hook,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = await open_connection(own_server.url)
    committers = Committers(connection, CommitPolicy(), WriteBufferLimit(1_000_000))
    await ensure_stream(connection, audit_stream(1))
    await Bucket(connection, f"{name}_subscriptions", committers).ensure()
    async with session() as http, running(connection, monkeypatch, name, clock, http) as node:
        node.lead()
        hook.answer = {"done": True}
        await node.subscribe(**webhook(hook))
        await node.create("events/a", 1)
        await hook.received()
        await restart(own_server, connection)
        await node.append("events/a", 2)
        await node.create("events/b", 1)

        async def has_received_all() -> bool:
            seen = {one["path"]: one["tail_offset"] for call in hook.calls for one in call["streams"]}
            return "events/b" in seen and any(call["generation"] > 1 for call in hook.calls)

        await eventually(has_received_all)
