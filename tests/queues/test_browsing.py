"""Peek, search, dead letters, redrive, purge, pause and stats of queues."""

import asyncio
from typing import Any

import pytest

from postroad.container import Role
from postroad.kernel.errors import EngineUnavailable
from postroad.queues.dead_letters import DeadLetters
from postroad.queues.records import QueueRecord
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.waiting import eventually


async def dead_letter(tenant: Tenant, queue: str, payload: object, reason: str = "broken", **more: object) -> str:
    published = await tenant.publish(queue, payload, **more)
    [message] = await tenant.pull(queue, waitMs=5000, visibilityTimeoutMs=60_000)
    body = {"receiptId": message["receiptId"], "action": "dlq", "reason": reason}
    (await tenant.client.post(f"{queue}/nack", body)).ok()
    return str(published["messageId"])


# Peek and search


async def test_peek_shows_messages_without_leasing_them(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(3):
        await tenant.publish(queue, {"n": number}, headers={"kind": "x"}, correlationId=f"c-{number}")
    shown = (await tenant.client.get(f"{queue}/messages")).ok()
    assert [one["payload"] for one in shown["messages"]] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert (shown["scanned"], shown["matched"], shown["nextCursor"]) == (3, 3, None)
    first = shown["messages"][0]
    assert (first["state"], first["headers"], first["correlationId"]) == ("ready", {"kind": "x"}, "c-0")
    assert [one["attempt"] for one in await tenant.pull(queue, 3)] == [1, 1, 1]


async def test_peek_continues_with_a_cursor(tenant: Tenant) -> None:
    queue = await tenant.queue()
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": n} for n in range(25)]})).ok()
    seen: list[int] = []
    page: dict[str, Any] = {"nextCursor": 1}
    while page["nextCursor"] is not None:
        page = (await tenant.client.get(f"{queue}/messages?limit=10&cursor={page['nextCursor']}")).ok()
        seen += [one["payload"] for one in page["messages"]]
    assert seen == list(range(25))


async def test_delayed_messages_are_shown_separately(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, "now")
    await tenant.publish(queue, "later", delayMs=60_000)
    assert [one["payload"] for one in (await tenant.client.get(f"{queue}/messages")).ok()["messages"]] == ["now"]
    delayed = (await tenant.client.get(f"{queue}/messages?state=delayed")).ok()["messages"]
    assert [(one["payload"], one["state"]) for one in delayed] == [("later", "delayed")]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("search=zebra", [1]),
        ("search=caf%C3%A9", [3]),
        ("search=%22animal%22", [0, 1]),
        ("header=kind", [0, 1]),
        ("header=kind=b", [1]),
        ("field=animal=zebra", [1]),
        ("field=deep.0.n=7", [2]),
        ("field=deep.0.n=8", []),
        ("field=flag=true", [3]),
        ("field=code=42", [2, 3]),
        ("correlationId=c-2", [2]),
        ("correlationId=c-2&search=zebra", []),
    ],
)
async def test_messages_are_found_by_filters(tenant: Tenant, query: str, found: list[int]) -> None:
    queue = await tenant.queue()
    payloads: list[Any] = [
        {"animal": "ape"},
        {"animal": "zebra"},
        {"deep": [{"n": 7}], "code": 42},
        {"flag": True, "code": "42", "drink": "caf\u00e9"},
    ]
    headers = [{"kind": "a"}, {"kind": "b"}, {}, {}]
    for number, (payload, some) in enumerate(zip(payloads, headers, strict=True)):
        await tenant.publish(queue, payload, headers=some, correlationId=f"c-{number}")
    answer = (await tenant.client.get(f"{queue}/messages?{query}")).ok()
    assert [payloads.index(one["payload"]) for one in answer["messages"]] == found
    assert (answer["scanned"], answer["matched"]) == (4, len(found))


async def test_a_message_is_found_by_its_ids(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = [await tenant.publish(queue, number) for number in range(3)]
    for name, field in (("messageId", "messageId"), ("jobId", "jobId")):
        answer = (await tenant.client.get(f"{queue}/messages?{name}={published[1][field]}")).ok()
        assert [one["payload"] for one in answer["messages"]] == [1]


async def test_a_search_has_a_budget_and_returns_a_cursor(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.queues.scan._SECONDS_MAX", 0.0)
    monkeypatch.setattr("postroad.queues.scan._PAGE_SIZE", 10)
    queue = await tenant.queue()
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": f"m-{n}"} for n in range(25)]})).ok()
    first = (await tenant.client.get(f"{queue}/messages?search=m-24")).ok()
    assert (first["messages"], first["scanned"]) == ([], 10)
    cursor, scanned = first["nextCursor"], 10
    while cursor is not None:
        page = (await tenant.client.get(f"{queue}/messages?search=m-24&cursor={cursor}")).ok()
        cursor, scanned = page["nextCursor"], scanned + page["scanned"]
    assert [one["payload"] for one in page["messages"]] == ["m-24"] and scanned == 25


async def test_payloads_over_body_max_are_cut(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, "x" * 2000)
    [one] = (await tenant.client.get(f"{queue}/messages")).ok()["messages"]
    assert (one["payloadBytes"], len(one["payloadStart"])) == (2002, 512) and "payload" not in one
    [one] = (await tenant.client.get(f"{queue}/messages?bodyMax=5000")).ok()["messages"]
    assert one["payload"] == "x" * 2000


async def test_a_search_can_be_limited_to_an_interval(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    second = await tenant.publish(queue, 2)
    middle = second["enqueuedAt"].replace("+", "%2B")
    assert (await tenant.client.get(f"{queue}/messages?to=2020-01-01T00:00:00Z")).ok()["messages"] == []
    assert len((await tenant.client.get(f"{queue}/messages?from=2020-01-01T00:00:00Z")).ok()["messages"]) == 2
    assert 2 in [one["payload"] for one in (await tenant.client.get(f"{queue}/messages?from={middle}")).ok()["messages"]]
    (await tenant.client.get(f"{queue}/messages?from=yesterday")).problem(400, "invalid-parameter")


# Dead letters


async def test_dead_letters_are_searched_and_grouped(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(5):
        await dead_letter(tenant, queue, {"n": number}, "even" if number % 2 == 0 else "odd")
    grouped = (await tenant.client.get(f"{queue}/dlq?groupBy=reason")).ok()
    assert [(one["reason"], one["count"]) for one in grouped["groups"]] == [("even", 3), ("odd", 2)]
    assert (grouped["total"], grouped["scanned"], grouped["matched"]) == (5, 5, 5)
    odd = (await tenant.client.get(f"{queue}/dlq?reason=odd&limit=1")).ok()
    assert [one["payload"] for one in odd["messages"]] == [{"n": 1}]
    rest = (await tenant.client.get(f"{queue}/dlq?reason=odd&cursor={odd['nextCursor']}")).ok()
    assert [one["payload"] for one in rest["messages"]] == [{"n": 3}]


async def test_a_dead_letter_is_shown_and_deleted(tenant: Tenant) -> None:
    queue = await tenant.queue()
    message = await dead_letter(tenant, queue, {"big": "x" * 2000})
    assert (await tenant.client.get(f"{queue}/dlq/{message}")).ok()["payload"] == {"big": "x" * 2000}
    assert (await tenant.client.delete(f"{queue}/dlq/{message}")).status == 204
    (await tenant.client.get(f"{queue}/dlq/{message}")).problem(404, "message-not-found")
    (await tenant.client.delete(f"{queue}/dlq/{message}")).problem(404, "message-not-found")
    (await tenant.client.get(f"{queue}/dlq/*")).problem(404, "message-not-found")


async def test_dead_letters_are_purged_by_filter_or_all_after_a_dry_run(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(4):
        await dead_letter(tenant, queue, number, "a" if number < 3 else "b")
    purge = f"{queue}/dlq/purge"
    assert (await tenant.client.post(purge, {"dryRun": True})).ok() == {"count": 4, "dryRun": True}
    assert (await tenant.client.post(purge, {"filter": {"reason": "a"}, "dryRun": True})).ok()["count"] == 3
    assert (await tenant.client.post(purge, {"filter": {"reason": "a"}})).ok() == {"count": 3, "dryRun": False}
    assert [one["payload"] for one in (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]] == [3]
    assert (await tenant.client.post(purge, {})).ok()["count"] == 1
    assert (await tenant.client.get(f"{queue}/dlq")).ok()["total"] == 0


async def test_a_recreated_queue_has_no_dead_letters(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await dead_letter(tenant, queue, 1)
    await tenant.client.delete(queue)
    await tenant.queue()
    assert (await tenant.client.get(f"{queue}/dlq")).ok()["total"] == 0


# Redrive, which needs the control role


@pytest.fixture(scope="module")
async def whole(engine_url: str) -> Any:
    """A gateway that also has the control role."""
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as running:
        yield running


async def ended(tenant: Tenant, task: dict[str, Any]) -> dict[str, Any]:
    async def fetch() -> dict[str, Any] | None:
        found: dict[str, Any] = (await tenant.client.get(f"/v1/tasks/{task['id']}")).ok()
        return found if found["endedAt"] else None

    return await eventually(fetch, 15) or {}


async def test_a_bulk_action_applies_to_a_selection(whole: Gateway) -> None:
    """The dead letters that it names are read, others are not; further conditions hold beside it."""
    tenant = await whole.tenant()
    queue = await tenant.queue()
    ids = [await dead_letter(tenant, queue, number, reason=f"error {number % 2}") for number in range(6)]
    nobody = "00000000-0000-7000-8000-000000000000"
    cases: list[tuple[dict[str, Any], int]] = [
        ({"messageIds": [ids[1], ids[4], ids[4]]}, 2),
        ({"messageIds": [ids[1], nobody]}, 1),
        ({"messageIds": [nobody]}, 0),
        ({"messageIds": [ids[1], ids[2]], "error": "error 1"}, 1),
        ({"messageIds": [ids[1], ids[2]], "messageId": ids[2]}, 1),
        ({"messageId": ids[3]}, 1),
    ]
    for wanted, expected in cases:
        for operation in ("purge", "redrive"):
            dry = (await tenant.client.post(f"{queue}/dlq/{operation}", {"filter": wanted, "dryRun": True})).ok()
            assert dry["count"] == expected, (operation, wanted)
    found = (await tenant.client.get(f"{queue}/dlq?messageId={ids[3]}")).ok()
    assert ([one["payload"] for one in found["messages"]], found["scanned"]) == ([3], 1)
    assert (await tenant.client.post(f"{queue}/dlq/purge", {"filter": {"messageIds": [ids[0], ids[5]]}})).ok()["count"] == 2
    task = (await tenant.client.post(f"{queue}/dlq/redrive", {"filter": {"messageIds": [ids[1], ids[3]]}})).ok(202)["task"]
    assert (await ended(tenant, task))["progress"]["moved"] == 2
    assert [one["payload"] for one in (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]] == [2, 4]
    assert [one["payload"] for one in (await tenant.client.get(f"{queue}/messages")).ok()["messages"]] == [1, 3]
    for refused in ([], ["a.b"], ["*"], ids * 20):
        (await tenant.client.post(f"{queue}/dlq/purge", {"filter": {"messageIds": refused}})).problem(422, "invalid-body")


async def test_a_redrive_moves_dead_letters_back_with_attempt_1(whole: Gateway) -> None:
    tenant = await whole.tenant()
    queue = await tenant.queue()
    ids = {await dead_letter(tenant, queue, number) for number in range(3)}
    answer = (await tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)
    assert answer["count"] == 3
    task = await ended(tenant, answer["task"])
    assert (task["state"], task["progress"]["moved"], task["progress"]["failed"]) == ("done", 3, 0)
    pulled = await tenant.pull(queue, 10, waitMs=5000)
    assert {one["messageId"] for one in pulled} == ids and {one["attempt"] for one in pulled} == {1}
    assert (await tenant.client.get(f"{queue}/dlq")).ok()["total"] == 0
    redriven = [event for event in await tenant.events() if event["event"] == "job.redriven"]
    assert {event["message_id"] for event in redriven} == ids


async def test_a_resumed_redrive_repeats_the_same_events(whole: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after the messages and events were stored, before the dead letters were deleted."""
    tenant = await whole.tenant()
    queue = await tenant.queue()
    ids = {await dead_letter(tenant, queue, number) for number in range(3)}
    remove, tries = DeadLetters.remove, 0

    async def fail_first(self: DeadLetters, record: QueueRecord, sequence: int) -> None:
        nonlocal tries
        tries += 1
        if tries <= len(ids):
            raise EngineUnavailable("away")
        await remove(self, record, sequence)

    monkeypatch.setattr(DeadLetters, "remove", fail_first)
    await ended(tenant, (await tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)["task"])
    redriven = [event for event in await tenant.events() if event["event"] == "job.redriven"]
    assert len(redriven) == 6
    assert sorted(redriven[:3], key=str) == sorted(redriven[3:], key=str)
    dead = {event["message_id"]: event["timestamp"] for event in await tenant.events() if event["event"] == "job.dead"}
    assert all(event["timestamp"] > dead[event["message_id"]] for event in redriven)


async def test_a_redrive_moves_matching_dead_letters_to_another_queue(whole: Gateway) -> None:
    tenant = await whole.tenant()
    queue, other = await tenant.queue("q"), await tenant.queue("other")
    for number in range(4):
        await dead_letter(tenant, queue, number, "good" if number % 2 else "bad")
    body = {"filter": {"reason": "good"}, "to": "other"}
    dry = (await tenant.client.post(f"{queue}/dlq/redrive", {**body, "dryRun": True})).ok(200)
    assert dry == {"count": 2, "task": None}
    await ended(tenant, (await tenant.client.post(f"{queue}/dlq/redrive", body)).ok(202)["task"])
    assert [one["payload"] for one in await tenant.pull(other, 10, waitMs=5000)] == [1, 3]
    assert [one["payload"] for one in (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]] == [0, 2]


async def test_a_redrive_has_a_rate_can_be_cancelled_and_runs_once_per_queue(whole: Gateway) -> None:
    tenant = await whole.tenant()
    queue = await tenant.queue()
    for number in range(6):
        await dead_letter(tenant, queue, number)
    task = (await tenant.client.post(f"{queue}/dlq/redrive", {"ratePerSecond": 1})).ok(202)["task"]
    second = await tenant.client.post(f"{queue}/dlq/redrive", {})
    assert task["id"] in second.problem(409, "precondition-failed")["detail"]

    async def has_started() -> bool:
        return bool((await tenant.client.get(f"/v1/tasks/{task['id']}")).ok()["progress"]["moved"])

    await eventually(has_started)
    (await tenant.client.delete(f"/v1/tasks/{task['id']}")).ok(202)
    found = await ended(tenant, task)
    assert found["state"] == "cancelled" and 1 <= found["progress"]["moved"] < 6
    left = (await tenant.client.get(f"{queue}/dlq")).ok()["total"]
    assert left == 6 - found["progress"]["moved"]
    (await tenant.client.delete(f"/v1/tasks/{task['id']}")).ok(202)
    assert [one["id"] for one in (await tenant.client.get("/v1/tasks?state=cancelled")).ok()["tasks"]] == [task["id"]]


async def test_a_message_that_fails_again_during_a_redrive_is_not_moved_twice(whole: Gateway) -> None:
    tenant = await whole.tenant()
    queue = await tenant.queue()
    for number in range(3):
        await dead_letter(tenant, queue, number)
    task = (await tenant.client.post(f"{queue}/dlq/redrive", {"ratePerSecond": 2})).ok(202)["task"]
    again = 0
    while again < 3:
        for message in await tenant.pull(queue, 10, waitMs=5000):
            body = {"receiptId": message["receiptId"], "action": "dlq", "reason": "again"}
            (await tenant.client.post(f"{queue}/nack", body)).ok()
            again += 1
    found = await ended(tenant, task)
    assert (found["state"], found["progress"]["moved"]) == ("done", 3)
    letters = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    assert [one["reason"] for one in letters] == ["again"] * 3


async def test_tasks_belong_to_their_tenant(whole: Gateway, tenant: Tenant) -> None:
    owner = await whole.tenant()
    queue = await owner.queue()
    await dead_letter(owner, queue, 1)
    task = (await owner.client.post(f"{queue}/dlq/redrive", {})).ok(202)["task"]
    (await tenant.client.get(f"/v1/tasks/{task['id']}")).problem(404, "task-not-found")
    (await tenant.client.delete(f"/v1/tasks/{task['id']}")).problem(404, "task-not-found")
    assert (await tenant.client.get("/v1/tasks")).ok()["tasks"] == []
    (await owner.client.get("/v1/tasks/nonsense")).problem(404, "task-not-found")


# Purge, pause, stats


async def test_a_purge_deletes_messages_after_a_dry_run(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await dead_letter(tenant, queue, "dead")
    for number in range(3):
        await tenant.publish(queue, number)
    await tenant.publish(queue, "later", delayMs=60_000, idempotencyKey="once")
    await tenant.pull(queue, visibilityTimeoutMs=60_000)
    assert (await tenant.client.post(f"{queue}/purge", {"dryRun": True})).ok() == {"count": 4, "dryRun": True}
    assert (await tenant.client.post(f"{queue}/purge", {})).ok() == {"count": 4, "dryRun": False}

    async def is_empty() -> bool:
        return (await tenant.stats(queue)) == {"ready": 0, "leased": 0, "delayed": 0}

    await eventually(is_empty)
    assert (await tenant.client.get(f"{queue}/dlq")).ok()["total"] == 1
    await tenant.publish(queue, "later", delayMs=60_000, idempotencyKey="once")
    await tenant.publish(queue, "after")
    assert [one["payload"] for one in await tenant.pull(queue, 10, waitMs=5000)] == ["after"]


async def test_a_paused_queue_delivers_nothing_on_all_gateways_until_resumed(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()
    elsewhere = second_gateway.seen_by(tenant)
    await tenant.publish(queue, 1)
    [held] = await tenant.pull(queue, visibilityTimeoutMs=60_000)
    assert (await tenant.client.post(f"{queue}/pause")).ok()["paused"] is True
    await tenant.publish(queue, 2)
    assert await tenant.pull(queue, 10) == [] == await elsewhere.pull(queue, 10)
    (await tenant.ack(queue, held["receiptId"])).ok()
    waiting = asyncio.create_task(elsewhere.pull(queue, waitMs=10_000))
    assert (await tenant.client.post(f"{queue}/resume")).ok()["paused"] is False
    assert [one["payload"] for one in await waiting] == [2]


async def test_stats_count_messages_by_state(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await dead_letter(tenant, queue, "dead")
    await tenant.publish(queue, "leased")
    await tenant.pull(queue, visibilityTimeoutMs=60_000)
    await tenant.publish(queue, "ready")
    await tenant.publish(queue, "later", delayMs=60_000)
    stats = (await tenant.client.get(queue)).ok()["stats"]
    assert (stats["ready"], stats["leased"], stats["delayed"], stats["dead"]) == (1, 1, 1, 1)
    assert 0 <= stats["oldestAgeMs"] < 60_000
    [listed] = (await tenant.client.get("/v1/queues?stats=true")).ok()["queues"]
    assert listed["stats"]["ready"] == 1


async def test_rates_include_all_workers(gateway: Gateway, second_gateway: Gateway) -> None:
    tenant = await gateway.tenant()
    queue = await tenant.queue()

    async def busy() -> bool:
        await second_gateway.seen_by(tenant).publish(queue, 1)
        [message] = await tenant.pull(queue, waitMs=5000)
        (await tenant.ack(queue, message["receiptId"])).ok()
        stats = (await tenant.client.get(queue)).ok()["stats"]
        return bool(stats["inPerSecond"] > 0 and stats["outPerSecond"] > 0)

    await eventually(busy)


async def test_a_restricted_key_cannot_redrive_to_or_see_tasks_of_other_queues(whole: Gateway) -> None:
    tenant = await whole.tenant()
    queue = await tenant.queue("mine")
    await tenant.queue("other")
    await dead_letter(tenant, queue, 1)
    limited = await tenant.another_key(allowed_queues=("mine",))
    (await limited.client.post(f"{queue}/dlq/redrive", {"to": "other"})).problem(404, "queue-not-found")
    task = (await tenant.client.post(f"{queue}/dlq/redrive", {})).ok(202)["task"]
    other_tenant = await tenant.another_key(allowed_queues=("other",))
    (await other_tenant.client.get(f"/v1/tasks/{task['id']}")).problem(404, "task-not-found")
    assert (await limited.client.get(f"/v1/tasks/{task['id']}")).ok()["kind"] == "redrive"
