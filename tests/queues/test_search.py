"""Search over all queues; single messages by id; newest first; dead letters by cause; removal by filter."""

from typing import Any

import pytest

from postroad.kernel.identity import Scope
from postroad.queues import message_search, scan
from tests.gateway import Gateway, Tenant

MESSAGES = "/v1/messages"


async def search(tenant: Tenant, query: str, pages_max: int = 50) -> list[dict[str, Any]]:
    """All hits, page by page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    for _ in range(pages_max):
        page = (await tenant.client.get(f"{MESSAGES}?{query}{cursor}")).ok()
        found += page["messages"]
        assert page["matched"] == len(page["messages"]) and page["queuesDone"] <= page["queuesTotal"]
        if page["nextCursor"] is None:
            assert page["queuesDone"] == page["queuesTotal"]
            return found
        cursor = f"&cursor={page['nextCursor']}"
    raise AssertionError("the search does not end")


async def reject(tenant: Tenant, queue: str, reason: str) -> str:
    """Dead-letter the next message; its id."""
    [message] = await tenant.pull(queue)
    body = {"receiptId": message["receiptId"], "action": "dlq", "reason": reason}
    (await tenant.client.post(f"{queue}/nack", body)).ok()
    found: str = message["messageId"]
    return found


@pytest.fixture
async def filled(tenant: Tenant) -> Tenant:
    """Three queues with an order 10003 in each state."""
    for name in ("audit", "emails", "orders"):
        queue = await tenant.queue(name)
        for number in range(10001, 10006):
            await tenant.publish(queue, {"order": number}, headers={"shop": name}, correlationId=f"c-{number}")
    emails = "/v1/queues/emails"
    for _ in range(3):
        await reject(tenant, emails, "HTTP 500 from crm")
    await tenant.publish("/v1/queues/orders", {"order": 10003, "again": True}, delayMs=600_000)
    return tenant


async def test_all_queues_and_states_are_searched(filled: Tenant) -> None:
    found = await search(filled, "search=10003")
    assert [(one["queue"], one["state"]) for one in found] == [
        ("audit", "ready"),
        ("emails", "dead"),
        ("orders", "ready"),
        ("orders", "delayed"),
    ]
    dead = found[1]
    assert (dead["lastError"], dead["attempts"], dead["payload"]) == ("HTTP 500 from crm", 1, {"order": 10003})
    assert all(one["publishedBy"] == filled.record.id and one["sequence"] > 0 for one in found)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("field=order=10003", 4),
        ("header=shop=orders", 5),
        ("correlationId=c-10001", 3),
        ("search=10003&queue=o*", 2),
        ("search=10003&state=dead", 1),
        ("search=10003&state=delayed", 1),
        ("errorGroup=HTTP %23 from crm", 3),
        ("error=crm&search=10003", 1),
        ("search=10003&to=2020-01-01T00:00:00Z", 0),
        ("search=10003&from=2020-01-01T00:00:00Z", 4),
        ("search=nothing", 0),
        ("queue=missing*", 0),
    ],
)
async def test_filters_combine(filled: Tenant, query: str, count: int) -> None:
    assert len(await search(filled, query)) == count


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_pages_return_each_message_once(filled: Tenant, order: str, limit: int) -> None:
    whole = await search(filled, f"order={order}&limit=1000")
    assert len(whole) == 16
    assert [one["messageId"] for one in await search(filled, f"order={order}&limit={limit}")] == [
        one["messageId"] for one in whole
    ]
    of_orders = [one["payload"]["order"] for one in whole if one["queue"] == "orders" and one["state"] == "ready"]
    assert of_orders == sorted(of_orders, reverse=order == "newest")


async def test_a_search_stops_at_its_budget_and_continues(filled: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_search, "_SCANNED_MAX", 1)
    monkeypatch.setattr(message_search, "_CONCURRENCY", 1)
    page = (await filled.client.get(f"{MESSAGES}?search=10003")).ok()
    assert page["nextCursor"] is not None and page["queuesDone"] < page["queuesTotal"] == 3
    assert len(await search(filled, "search=10003")) == 4


async def test_a_message_is_found_by_its_id(filled: Tenant) -> None:
    [one] = await search(filled, "search=10003&state=dead")
    [found] = await search(filled, f"messageId={one['messageId']}")
    assert found["messageId"] == one["messageId"] and found["state"] == "dead"
    assert await search(filled, "messageId=nonsense") == []


async def test_a_restricted_key_searches_its_queues(filled: Tenant) -> None:
    narrow = await filled.another_key((Scope.READ,), allowed_queues=("orders",))
    assert {one["queue"] for one in await search(narrow, "search=10003")} == {"orders"}
    assert await search(narrow, "search=10003&queue=emails") == []


async def test_tenants_search_their_own_messages(gateway: Gateway, filled: Tenant) -> None:
    other = await gateway.tenant()
    assert await search(other, "search=10003") == []


@pytest.mark.parametrize("query", ["cursor=nonsense", "cursor=1~ready", "cursor=1~gone~q", "state=leased", "limit=0", "from=x"])
async def test_invalid_searches_are_refused(tenant: Tenant, query: str) -> None:
    (await tenant.client.get(f"{MESSAGES}?{query}")).problem(400, "invalid-parameter")


# One message


async def test_one_message_is_shown_with_its_state(tenant: Tenant) -> None:
    queue = await tenant.queue("q")
    published, delayed = await tenant.publish(queue, 1), await tenant.publish(queue, 2, delayMs=600_000)
    path = f"{queue}/messages/{published['messageId']}"
    assert (await tenant.client.get(path)).ok()["state"] == "ready"
    await tenant.pull(queue)
    shown = (await tenant.client.get(path)).ok()
    assert shown["state"] == "leased" and shown["leaseUntil"] and shown["payload"] == 1
    assert (await tenant.client.get(f"{queue}/messages/{delayed['messageId']}")).ok()["state"] == "delayed"


async def test_a_message_that_is_not_there_is_404(tenant: Tenant) -> None:
    queue = await tenant.queue("q")
    published = await tenant.publish(queue, 1)
    await reject(tenant, queue, "no")
    for name in (published["messageId"], "nonsense", "00000000-0000-4000-8000-000000000000", "0" * 300):
        (await tenant.client.get(f"{queue}/messages/{name}")).problem(404, "message-not-found")
        (await tenant.client.delete(f"{queue}/messages/{name}")).problem(404, "message-not-found")
    (await tenant.client.get(f"/v1/queues/missing/messages/{published['messageId']}")).problem(404, "queue-not-found")


async def test_a_removed_message_is_not_delivered_and_its_job_is_cancelled(tenant: Tenant) -> None:
    queue = await tenant.queue("q")
    first, second = [await tenant.publish(queue, number) for number in range(2)]
    (await tenant.client.delete(f"{queue}/messages/{first['messageId']}")).ok(204)
    (await tenant.client.delete(f"{queue}/messages/{first['messageId']}")).problem(404, "message-not-found")
    assert [one["messageId"] for one in await tenant.pull(queue, 10)] == [second["messageId"]]
    cancelled = [one for one in await tenant.events() if one["event"] == "job.cancelled"]
    assert [one["message_id"] for one in cancelled] == [first["messageId"]]
    entries = (await tenant.client.get("/api/control/audit?action=message.delete")).ok()["entries"]
    assert [one["target"] for one in entries] == ["q"]


async def test_a_leased_message_can_be_removed(tenant: Tenant) -> None:
    queue = await tenant.queue("q")
    published = await tenant.publish(queue, 1)
    [leased] = await tenant.pull(queue)
    (await tenant.client.delete(f"{queue}/messages/{published['messageId']}")).ok(204)
    assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 0}
    extended = await tenant.client.post(f"{queue}/extend", {"receiptId": leased["receiptId"], "visibilityTimeoutMs": 1000})
    extended.problem(409, "job-cancelled")


async def test_only_writers_remove_messages(tenant: Tenant) -> None:
    queue = await tenant.queue("q")
    published = await tenant.publish(queue, 1)
    reader = await tenant.another_key((Scope.READ,))
    (await reader.client.delete(f"{queue}/messages/{published['messageId']}")).problem(403, "forbidden")
    (await reader.client.post(f"{queue}/purge", {"filter": {"search": "1"}})).problem(403, "forbidden")


# Removal by filter


async def test_a_purge_removes_exactly_what_matches(filled: Tenant) -> None:
    queue = "/v1/queues/orders"
    wanted = {"field": "order=10003"}
    assert (await filled.client.post(f"{queue}/purge", {"filter": wanted, "dryRun": True})).ok() == {"count": 2, "dryRun": True}
    only_ready = {**wanted, "state": "ready", "from": "2020-01-01T00:00:00Z"}
    assert (await filled.client.post(f"{queue}/purge", {"filter": only_ready})).ok()["count"] == 1
    left = await search(filled, "queue=orders")
    assert sorted((one["payload"]["order"], one["state"]) for one in left) == [
        (10001, "ready"),
        (10002, "ready"),
        (10003, "delayed"),
        (10004, "ready"),
        (10005, "ready"),
    ]
    assert (await filled.client.post(f"{queue}/purge", {"filter": {"to": "2020-01-01T00:00:00Z"}})).ok()["count"] == 0
    backwards = {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}
    (await filled.client.post(f"{queue}/purge", {"filter": backwards})).problem(422, "invalid-body")
    assert (await filled.client.post(f"{queue}/purge", {})).ok()["count"] == 5


# Newest first


async def test_peek_returns_the_newest_first_in_pages(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_PAGE_SIZE", 4)
    queue = await tenant.queue("q")
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": number} for number in range(30)]})).ok()
    for message in (await tenant.pull(queue, 10))[::2]:  # gaps
        await tenant.ack(queue, message["receiptId"])
    seen: list[int] = []
    cursor = ""
    while True:
        page = (await tenant.client.get(f"{queue}/messages?order=newest&limit=7{cursor}")).ok()
        seen += [one["payload"] for one in page["messages"]]
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert seen == sorted(seen, reverse=True) and len(seen) == 25 and seen[0] == 29


# Dead letters


async def test_dead_letters_are_grouped_by_cause_header_and_field(tenant: Tenant) -> None:
    queue = await tenant.queue("q", maxAttempts=1)
    for number in range(5):
        await tenant.publish(queue, {"kind": number % 2, "n": number}, headers={"shop": f"s{number % 3}"})
    for number in range(4):
        await reject(tenant, queue, f"HTTP {500 + number} from crm")
    await reject(tenant, queue, "no template")
    dlq = f"{queue}/dlq"

    async def groups(group_by: str, more: str = "") -> list[tuple[str | None, int]]:
        page = (await tenant.client.get(f"{dlq}?groupBy={group_by}{more}")).ok()
        assert page["matched"] == sum(one["count"] for one in page["groups"]) == sum(page["histogram"]["counts"])
        return [(one["group"], one["count"]) for one in page["groups"]]

    assert await groups("error") == [("HTTP # from crm", 4), ("no template", 1)]
    assert await groups("header:shop") == [("s0", 2), ("s1", 2), ("s2", 1)]
    assert await groups("field:kind") == [("0", 3), ("1", 2)]
    assert await groups("field:missing") == [(None, 5)]
    assert len(await groups("reason")) == 5
    assert await groups("error", "&field=kind=1") == [("HTTP # from crm", 2)]
    group = (await tenant.client.get(f"{dlq}?groupBy=error")).ok()["groups"][0]
    assert group["sample"] == "HTTP 503 from crm" and group["sampleId"]
    for invalid in ("nonsense", "header:", "field:"):
        (await tenant.client.get(f"{dlq}?groupBy={invalid}")).problem(400, "invalid-parameter")


async def test_dead_letters_come_newest_first(tenant: Tenant) -> None:
    queue = await tenant.queue("q", maxAttempts=1)
    for number in range(5):
        await tenant.publish(queue, number)
    for number in range(5):
        await reject(tenant, queue, f"error {number}")
    first = (await tenant.client.get(f"{queue}/dlq?order=newest&limit=3")).ok()
    rest = (await tenant.client.get(f"{queue}/dlq?order=newest&limit=3&cursor={first['nextCursor']}")).ok()
    assert [one["payload"] for one in [*first["messages"], *rest["messages"]]] == [4, 3, 2, 1, 0]
    assert rest["nextCursor"] is None


async def test_a_bulk_action_applies_the_group_on_screen(tenant: Tenant) -> None:
    queue = await tenant.queue("q", maxAttempts=1)
    for number in range(4):
        await tenant.publish(queue, number)
    for number in range(3):
        await reject(tenant, queue, f"HTTP {500 + number} from crm")
    await reject(tenant, queue, "no template")
    wanted = {"errorGroup": "HTTP # from crm"}
    dry = (await tenant.client.post(f"{queue}/dlq/redrive", {"filter": wanted, "dryRun": True})).ok()
    assert dry["count"] == 3
    assert (await tenant.client.post(f"{queue}/dlq/purge", {"filter": wanted})).ok()["count"] == 3
    left = (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]
    assert [one["lastError"] for one in left] == ["no template"]
