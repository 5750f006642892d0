"""Pull-wake subscriptions: wakes in a stream, claimed by workers."""

import asyncio
from typing import Any

from tests.stream_subscriptions.conftest import ROOT, MakeNode, Node
from tests.waiting import eventually

PULL: dict[str, Any] = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool", "lease_ttl_ms": 60_000}


async def wakes(node: Node, count: int) -> list[dict[str, Any]]:
    async def are_appended() -> list[Any] | None:
        found = await node.read("wake/pool")
        return found if len(found) >= count else None

    return list(await eventually(are_appended) or ())


async def test_claim_ack_and_release(node: Node) -> None:
    await node.create("wake/pool")
    (await node.subscribe(**PULL)).ok(201)
    tail = await node.create("events/a", 1)
    (event,) = await wakes(node, 1)
    assert (event["type"], event["subscription_id"], event["stream"], event["generation"]) == ("wake", "sub", "events/a", 1)

    claim = (await node.act("claim", {"worker": "worker-1"})).ok()
    assert (claim["generation"], claim["lease_ttl_ms"]) == (1, 60_000)
    assert claim["streams"][0]["tail_offset"] == tail
    busy = await node.act("claim", {"worker": "worker-2"})
    assert busy.status == 409
    assert busy.json["error"]["code"] == "ALREADY_CLAIMED"
    assert (busy.json["error"]["current_holder"], busy.json["error"]["generation"]) == ("worker-1", 1)

    wake = {"wake_id": claim["wake_id"], "generation": 1}
    done = await node.act("ack", {**wake, "acks": [{"stream": "events/a", "offset": tail}], "done": True}, claim["token"])
    assert done.ok() == {"ok": True, "next_wake": False}
    nothing = await node.act("claim", {"worker": "worker-1"})
    assert (nothing.status, nothing.json["error"]["code"]) == (409, "NO_PENDING_WORK")

    await node.append("events/a", 2)
    again = (await node.act("claim", {"worker": "worker-1"})).ok()
    assert again["generation"] == 2
    wake = {"wake_id": again["wake_id"], "generation": 2}
    assert (await node.act("release", wake, again["token"])).status == 204
    assert (await node.act("release", wake, again["token"])).json["error"]["code"] == "FENCED"
    third = await eventually(lambda: claimed(node))
    assert third["generation"] == 3


async def claimed(node: Node) -> Any:
    answer = await node.act("claim", {"worker": "w"})
    return answer.json if answer.status == 200 else None


async def test_an_ack_without_done_is_a_heartbeat(node: Node) -> None:
    await node.create("wake/pool")
    await node.subscribe(**PULL)
    await node.create("events/a", 1)
    await wakes(node, 1)
    claim = (await node.act("claim", {"worker": "w"})).ok()
    beat = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    for _ in range(3):
        node.clock.ahead_ms += 40_000
        (await node.act("ack", beat, claim["token"])).ok()
    node.clock.ahead_ms += 60_001
    assert (await node.act("ack", beat, claim["token"])).json["error"]["code"] == "FENCED"
    assert [one["generation"] for one in await wakes(node, 2)] == [1, 2]


async def test_an_ack_of_many_streams_needs_a_valid_token_before_it_is_read(node: Node) -> None:
    await node.create("wake/pool")
    await node.subscribe(**PULL)
    tail = await node.create("events/a", 1)
    await wakes(node, 1)
    claim = (await node.act("claim", {"worker": "w"})).ok()
    wake = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
    many = {**wake, "acks": [{"stream": "events/a", "offset": tail}] * 500}
    assert (await node.act("ack", many, claim["token"])).status == 200
    assert (await node.act("ack", many, claim["token"] + "x")).status == 413
    assert (await node.act("ack", wake, claim["token"] + "x")).status == 401


async def test_a_missing_wake_stream_is_retried(node: Node) -> None:
    (await node.subscribe(**PULL)).ok(201)
    await node.create("events/a", 1)

    await node.reaches("failed")
    await node.create("wake/pool")
    node.clock.ahead_ms += 60_000
    (event,) = await wakes(node, 1)
    assert event["generation"] == 1
    (await node.act("claim", {"worker": "w"})).ok()


async def test_the_wake_stream_does_not_cause_wakes(node: Node) -> None:
    await node.create("wake/pool")
    (await node.subscribe(**{**PULL, "pattern": "**"})).ok(201)
    tail = await node.create("events/a", 1)
    await wakes(node, 1)
    claim = (await node.act("claim", {"worker": "w"})).ok()
    assert [one["path"] for one in claim["streams"]] == ["events/a"]
    acks = [{"stream": "events/a", "offset": tail}]
    body = {"wake_id": claim["wake_id"], "generation": 1, "acks": acks, "done": True}
    assert (await node.act("ack", body, claim["token"])).ok()["next_wake"] is False
    assert len(await node.read("wake/pool")) == 1


async def test_one_of_many_workers_gets_the_claim(make_node: MakeNode) -> None:
    nodes = [await make_node(), await make_node()]
    nodes[0].lead()
    await nodes[0].create("wake/pool")
    await nodes[0].subscribe(**PULL)
    await nodes[0].create("events/a", 1)
    await wakes(nodes[0], 1)
    answers = await asyncio.gather(*(nodes[n % 2].act("claim", {"worker": f"worker-{n}"}) for n in range(6)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409, 409, 409]
    winner = next(n for n, answer in enumerate(answers) if answer.status == 200)
    assert {answer.json["error"]["current_holder"] for answer in answers if answer.status == 409} == {f"worker-{winner}"}


async def test_a_webhook_subscription_cannot_be_claimed(node: Node) -> None:
    await node.subscribe("hooked", type="webhook", pattern="none/*", webhook={"url": "https://example.com/"})
    refused = await node.act("claim", {"worker": "w"}, subscription="hooked")
    assert (refused.status, refused.json["error"]["code"]) == (400, "INVALID_REQUEST")
    await node.subscribe(**PULL)
    for worker in ("", "w" * 257):
        assert (await node.act("claim", {"worker": worker})).json["error"]["code"] == "INVALID_REQUEST"
    assert (await node.act("claim", {"worker": "w"}, subscription="unheard-of")).status == 404


async def test_deleting_a_tenant_deletes_its_subscriptions(node: Node) -> None:
    await node.subscribe(**PULL)
    await node.parts.delete_tenant(node.tenant)
    assert (await node.client.get(f"{ROOT}/sub")).status == 404
